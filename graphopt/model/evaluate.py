"""Evaluating nodes on constant inputs: NumPy for what it does exactly, ONNX Runtime or the reference for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import InferenceError, infer_node_outputs

from graphopt.model import constants, nodes
from graphopt.model.inside import attribute_inside

Arrays = Sequence[np.ndarray | None]
MOST = 1 << 26  # elements of a result that is more than what is given, and of what repeats and would be written out
_KNOWN_TO_INFERENCE = 64  # elements; what tells of sizes is small


def evaluate(node: ir.Node, inputs: Arrays, opset: int) -> tuple[np.ndarray, ...] | None:
    """The outputs of `node`, or None when nothing here can compute them.

    The NumPy table holds only operators whose result is defined exactly (data movement, integers, single IEEE
    operations); everything with a rounding of its own is left to ONNX Runtime, which will also run the original.
    """
    function = _TABLE.get(node.op_type) if nodes.is_standard(node) and opset >= 7 else None
    if function is not None:
        try:
            with np.errstate(all="ignore"):
                result = function(node, inputs, opset)
        except (ValueError, IndexError, TypeError):
            result = None  # malformed for NumPy; ONNX Runtime decides
        if result is not None:
            return (result,)
    present = [array for array in inputs if array is not None]
    given = sum(array.size for array in present)
    if given > MOST and given > sum(_held(array) for array in present):
        return None  # would have to write out what repeats
    if not _may_run(node, inputs, opset):
        return None
    return _in_onnxruntime(node, inputs, opset) or _in_reference(node, inputs, opset)


def _may_run(node: ir.Node, inputs: Arrays, opset: int) -> bool:
    """Whether the operator's schema accepts the node and its result is not too large; what it refuses ends engines."""
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for index, (array, value) in enumerate(zip(inputs, node.inputs, strict=True)):
        name = "" if array is None else f"i{index}"
        proto.input.append(name)
        if array is not None:
            kind = value.dtype if value is not None and value.dtype is not None else _dtype(array)
            types[name] = onnx.helper.make_tensor_type_proto(int(kind), array.shape)
            if array.size <= _KNOWN_TO_INFERENCE:
                data[name] = constants.to_proto(array, kind, name)
    proto.output.extend(f"o{index}" for index in range(len(node.outputs)))
    for attribute in node.attributes.values():
        found = ir.to_proto(attribute_inside(attribute))
        if opset < 11 and found.name in ("axis", "axes") and inputs and inputs[0] is not None:
            _count_from_the_front(found, inputs[0].ndim)
        proto.attribute.append(found)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        results = infer_node_outputs(schema, proto, types, data, None, [onnx.helper.make_opsetid(node.domain, opset)])
    except (onnx.defs.SchemaError, InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError):
        return False
    largest = max((_elements(kind) for kind in results.values()), default=0)
    return largest <= max(MOST, sum(_held(array) for array in inputs if array is not None))


def _count_from_the_front(attribute: onnx.AttributeProto, rank: int) -> None:
    """Make negative axes positive: older schemas object to them, while ONNX Runtime takes them."""
    if attribute.i < 0:
        attribute.i += rank
    attribute.ints[:] = [axis + rank if axis < 0 else axis for axis in attribute.ints]


def _elements(kind: onnx.TypeProto) -> int:
    return math.prod(max(dim.dim_value, 1) for dim in kind.tensor_type.shape.dim)


def _single_node_model(node: ir.Node, inputs: Arrays, opset: int) -> onnx.ModelProto:
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    graph = onnx.GraphProto(name="fold")
    for index, array in enumerate(inputs):
        proto.input.append("" if array is None else f"i{index}")
        if array is not None:
            dtype = node.inputs[index].dtype if node.inputs[index] is not None else None  # type: ignore[union-attr]
            kind = dtype if dtype is not None else _dtype(array)
            graph.initializer.append(constants.to_proto(array, kind, f"i{index}"))
    for index, output in enumerate(node.outputs):
        name = f"o{index}" if output.name or nodes.is_used(output) or index == 0 else ""
        proto.output.append(name)
        if name:
            graph.output.append(onnx.ValueInfoProto(name=name))
    proto.attribute.extend(ir.to_proto(attribute_inside(attribute)) for attribute in node.attributes.values())
    graph.node.append(proto)
    version = onnx.helper.make_opsetid(node.domain, opset)
    imports = [version] if node.domain == "" else [version, onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def _dtype(array: np.ndarray) -> ir.DataType:
    return ir.DataType.STRING if array.dtype.kind in "OSU" else ir.DataType.from_numpy(array.dtype)


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def _in_onnxruntime(node: ir.Node, inputs: Arrays, opset: int) -> tuple[np.ndarray, ...] | None:
    try:
        model = _single_node_model(node, inputs, opset)
        session = ort.InferenceSession(model.SerializeToString(), _options(), providers=["CPUExecutionProvider"])
        results = session.run(None, {})
    except Exception:  # any failure means only that this evaluator cannot say; its errors share no base class
        return None
    return _align(node, results)


def _in_reference(node: ir.Node, inputs: Arrays, opset: int) -> tuple[np.ndarray, ...] | None:
    try:
        results = ReferenceEvaluator(_single_node_model(node, inputs, opset)).run(None, {})
    except Exception:  # as above
        return None
    return _align(node, list(results))


def evaluate_together(
    chain: Sequence[ir.Node], known: Mapping[ir.Value, np.ndarray], outputs: Sequence[ir.Value], opset: int
) -> tuple[np.ndarray, ...] | None:
    """The values that several nodes compute, in one run of ONNX Runtime; None when it cannot.

    For half precision, where ONNX Runtime keeps float32 between operators that it has no half kernels for: node by
    node, every intermediate result would be rounded once more than in the original.
    """
    graph = onnx.GraphProto(name="fold")
    names = {value: f"v{index}" for index, value in enumerate(known)}
    for value, array in known.items():
        kind = value.dtype if value.dtype is not None else _dtype(array)
        graph.initializer.append(constants.to_proto(array, kind, names[value]))
    for node in chain:
        proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
        proto.input.extend("" if value is None else names[value] for value in node.inputs)
        for output in node.outputs:
            names[output] = f"v{len(names)}" if output.name or nodes.is_used(output) else ""
            proto.output.append(names[output])
        proto.attribute.extend(ir.to_proto(attribute_inside(attribute)) for attribute in node.attributes.values())
        graph.node.append(proto)
    graph.output.extend(onnx.ValueInfoProto(name=names[output]) for output in outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
    try:
        session = ort.InferenceSession(model.SerializeToString(), _options(), providers=["CPUExecutionProvider"])
        return tuple(session.run(None, {}))
    except Exception:  # as in _in_onnxruntime
        return None


def _align(node: ir.Node, results: Sequence[object]) -> tuple[np.ndarray, ...] | None:
    """Results by output position; None unless all are tensors."""
    if not all(isinstance(result, np.ndarray) for result in results):
        return None
    remaining = iter(results)
    aligned = []
    for index, output in enumerate(node.outputs):
        wanted = output.name or nodes.is_used(output) or index == 0
        aligned.append(next(remaining) if wanted else np.zeros(0))
    return tuple(aligned)  # type: ignore[arg-type]


# -- the NumPy table ------------------------------------------------------------------------------------------------

Evaluator = Callable[[ir.Node, Arrays, int], np.ndarray | None]


def _needed(*arrays: np.ndarray | None) -> list[np.ndarray]:
    found = [array for array in arrays if array is not None]
    if len(found) != len(arrays):
        raise TypeError("an input is missing")
    return found


def _ints(array: np.ndarray | None) -> tuple[int, ...] | None:
    return None if array is None else tuple(int(item) for item in array.reshape(-1))


def _ufunc(function: Callable[..., np.ndarray]) -> Evaluator:
    def run(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
        arrays = _needed(*inputs)
        if any(array.dtype.kind in "OSUV" for array in arrays):
            return None
        return _elementwise(function, *arrays)

    return run


def _elementwise(function: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray | None:
    """The function of broadcasting arrays; None where broadcasting would make too much of them."""
    elements = math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    splat = all(constants.is_splat(array) or array.size == 1 for array in arrays)
    if elements > max(MOST, *(_held(array) for array in arrays)) and not splat:
        return None
    return constants.elementwise(function, *arrays)


def _held(array: np.ndarray) -> int:
    """The elements that lie in memory; those of a broadcast view count once."""
    return math.prod(size for size, stride in zip(array.shape, array.strides, strict=True) if stride)


def _divide(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    left, right = _needed(*inputs)
    if left.dtype.kind == "f":
        return _elementwise(np.divide, left, right)
    if left.dtype.kind not in "iu" or not np.all(right):
        return None
    quotient = np.abs(left.astype(object)) // np.abs(right.astype(object))
    return np.asarray(quotient * np.sign(left) * np.sign(right)).astype(left.dtype)


def _cast(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (array,) = _needed(inputs[0])
    target = ir.DataType(nodes.int_attribute(node, "to", 0))
    if target == ir.DataType.STRING or array.dtype.kind not in "fiub":
        return None
    dtype = target.numpy()
    if dtype.kind not in "fiub" or (array.dtype.kind == "f" and dtype.kind in "iu"):
        return None  # float to integer outside the range is the evaluator's choice
    return _elementwise(lambda item: np.asarray(item).astype(dtype), array)


def _reshape(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    data, target = _needed(inputs[0], inputs[1])
    shape = list(_ints(target) or ())
    if not nodes.int_attribute(node, "allowzero", 0):
        shape = [data.shape[axis] if item == 0 else item for axis, item in enumerate(shape)]
    if -1 in shape:
        rest = int(np.prod([item for item in shape if item != -1]))
        shape[shape.index(-1)] = data.size // rest if rest else 0
    return constants.reshape(data, shape)


def _transpose(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = _needed(inputs[0])
    return np.transpose(data, nodes.ints_attribute(node, "perm"))


def _axes(node: ir.Node, inputs: Arrays, opset: int) -> tuple[int, ...] | None:
    return nodes.ints_attribute(node, "axes") if opset < 13 else _ints(inputs[1] if len(inputs) > 1 else None)


def _unsqueeze(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = _needed(inputs[0])
    axes = _axes(node, inputs, opset)
    return None if axes is None else np.expand_dims(data, axes)


def _squeeze(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = _needed(inputs[0])
    axes = _axes(node, inputs, opset)
    return np.squeeze(data, axes)


def _concat(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    arrays = _needed(*inputs)
    if sum(array.size for array in arrays) > max(MOST, sum(_held(array) for array in arrays)):
        return None
    return np.concatenate(arrays, nodes.int_attribute(node, "axis", 0))


def _gather(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    data, indices = _needed(*inputs)
    axis = nodes.int_attribute(node, "axis", 0)
    if indices.size and (indices.max() >= data.shape[axis] or indices.min() < -data.shape[axis]):
        return None
    if indices.size * data.size > MOST * data.shape[axis] and indices.size > data.shape[axis]:
        return None
    return np.take(data, indices, axis=axis)


def _slice(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = _needed(inputs[0])
    if opset < 10:
        starts, ends = nodes.ints_attribute(node, "starts"), nodes.ints_attribute(node, "ends")
        axes, steps = nodes.ints_attribute(node, "axes"), None
    else:
        padded = [*inputs, None, None, None][:5]
        starts, ends, axes, steps = (_ints(item) for item in padded[1:])
    if starts is None or ends is None:
        return None
    index: list[slice] = [slice(None)] * data.ndim
    for position, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axes[position] if axes else position
        step = steps[position] if steps else 1
        stop = None if step < 0 and end < -data.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return data[tuple(index)]


def _expand(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    data, target = _needed(*inputs)
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, _ints(target) or ()))


def _constant_of_shape(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (shape,) = _needed(*inputs)
    attribute = node.attributes.get("value")
    filler = np.zeros((), np.float32) if attribute is None else attribute.as_tensor().numpy()
    return constants.splat(filler, _ints(shape) or ())


def _shape(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = _needed(*inputs)
    end = nodes.int_attribute(node, "end", data.ndim)
    return np.array(data.shape[nodes.int_attribute(node, "start", 0) : end], dtype=np.int64)


def _flatten(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (data,) = _needed(*inputs)
    axis = nodes.int_attribute(node, "axis", 1)
    axis = axis + data.ndim if axis < 0 else axis
    return constants.reshape(data, (int(np.prod(data.shape[:axis])), int(np.prod(data.shape[axis:]))))


def _where(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    return _elementwise(np.where, *_needed(*inputs))


def _range(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    """Of integers; ONNX Runtime takes tensors of one element for numbers, where the schema asks for scalars."""
    start, limit, step = arrays = _needed(*inputs)
    if any(array.size != 1 or array.dtype.kind not in "iu" for array in arrays) or not step.any():
        return None
    numbers = range(int(start.item()), int(limit.item()), int(step.item()))
    return None if len(numbers) > MOST else np.arange(numbers.start, numbers.stop, numbers.step, dtype=start.dtype)


def _identity(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    return inputs[0]


_TABLE: dict[str, Evaluator] = {
    "Add": _ufunc(np.add),
    "Sub": _ufunc(np.subtract),
    "Mul": _ufunc(np.multiply),
    "Div": _divide,
    "Neg": _ufunc(np.negative),
    "Abs": _ufunc(np.abs),
    "Not": _ufunc(np.logical_not),
    "And": _ufunc(np.logical_and),
    "Or": _ufunc(np.logical_or),
    "Xor": _ufunc(np.logical_xor),
    "Equal": _ufunc(np.equal),
    "Greater": _ufunc(np.greater),
    "Less": _ufunc(np.less),
    "GreaterOrEqual": _ufunc(np.greater_equal),
    "LessOrEqual": _ufunc(np.less_equal),
    "Where": _where,
    "Cast": _cast,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Flatten": _flatten,
    "Identity": _identity,
    "Range": _range,
}
