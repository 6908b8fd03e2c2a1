"""Evaluating nodes on constant inputs: NumPy for what it does exactly, ONNX Runtime or the reference for the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import InferenceError, infer_node_outputs

from graphopt.model import constants, nodes
from graphopt.model.inside import attribute_inside
from graphopt.model.operators.arrays import MOST, Arrays, stored_elements
from graphopt.model.operators.table import operator_of

_KNOWN_TO_INFERENCE = 64  # elements; what tells of sizes is small


def evaluate(node: ir.Node, inputs: Arrays, opset: int) -> tuple[np.ndarray, ...] | None:
    """The outputs of `node`, or None when nothing here can compute them.

    NumPy computes only operators whose result is defined exactly (data movement, integers, single IEEE operations),
    those with `Operator.evaluate`. Everything with a rounding of its own is left to ONNX Runtime, which will also run
    the original.
    """
    operator = operator_of(node) if opset >= 7 else None
    if operator is not None and operator.evaluate is not None:
        try:
            with np.errstate(all="ignore"):
                result = operator.evaluate(node, inputs, opset)
        except (ValueError, IndexError, TypeError):
            result = None  # malformed for NumPy; ONNX Runtime decides
        if result is not None:
            return (result,)
    present = [array for array in inputs if array is not None]
    given = sum(array.size for array in present)
    if given > MOST and given > sum(stored_elements(array) for array in present):
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
    return largest <= max(MOST, sum(stored_elements(array) for array in inputs if array is not None))


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
