"""Inference that computes with symbolic dims: reshapes, slices, concatenation, broadcasting, windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import content, dims, nodes
from graphopt.model.infer.known import Known
from graphopt.model.limits import MOST_DIMS

if TYPE_CHECKING:
    from graphopt.model.facts import Facts

Result = tuple[Known, ...] | None  # one per output

SAME_AS_FIRST = frozenset(
    {
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Clip", "Cos", "Cosh", "CumSum",
        "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "LeakyRelu", "Log",
        "LogSoftmax", "LpNormalization", "LRN", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu",
        "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan",
        "Tanh", "ThresholdedRelu", "Trilu", "InstanceNormalization", "GroupNormalization", "RMSNormalization",
        "ScatterElements", "ScatterND", "Scatter", "ReverseSequence", "BitwiseNot",
    }
)  # fmt: skip
BROADCAST = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Mean", "Sum", "And", "Or", "Xor", "BitwiseAnd",
     "BitwiseOr", "BitwiseXor", "PRelu", "BitShift"}
)  # fmt: skip
COMPARE = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


def infer(node: ir.Node, facts: Facts) -> Result:
    """Dims of the outputs, or None where the schema's own inference should be asked."""
    if node.op_type in SAME_AS_FIRST and len(node.outputs) == 1 and node.inputs and node.inputs[0] is not None:
        known = facts.known(node.inputs[0])
        return None if known.shape is None else (Known(known.type, known.shape, None),)
    if node.op_type in BROADCAST or node.op_type in COMPARE or node.op_type == "Where":
        return _broadcast(node, facts)
    function = _TABLE.get(node.op_type)
    return None if function is None else function(node, facts)


def shape_content(node: ir.Node, facts: Facts, opset: int) -> content.Content | None:
    """What Shape and Size hold."""
    if node.inputs[0] is None:
        return None
    shape = facts.shape(node.inputs[0])
    if shape is None:
        return None
    if node.op_type == "Size":
        result = np.empty((), dtype=object)
        result[()] = dims.product(shape)
        return result
    start = nodes.int_attribute(node, "start", 0)
    attribute = node.attributes.get("end")
    end = len(shape) if attribute is None else attribute.as_int()
    return content.of_dims(shape[_clamp(start, len(shape)) : _clamp(end, len(shape))])


def _clamp(position: int, rank: int) -> int:
    return min(max(position + rank if position < 0 else position, 0), rank)


def _first_type(node: ir.Node, facts: Facts) -> ir.TypeProtocol | None:
    return None if node.inputs[0] is None else facts.known(node.inputs[0]).type


def _broadcast(node: ir.Node, facts: Facts) -> Result:
    if facts.opset(node) < 7:
        return None
    present = [value for value in node.inputs if value is not None]
    if node.op_type == "PRelu":
        shape = facts.shape(present[0])
    else:
        shape = dims.broadcast(*(facts.shape(value) for value in present))
    if shape is None:
        return None
    if node.op_type in COMPARE:
        kind: ir.TypeProtocol | None = ir.TensorType(ir.DataType.BOOL)
    else:
        kind = facts.known(present[1] if node.op_type == "Where" else present[0]).type
    return (Known(kind, shape, None),)


def _reshape(node: ir.Node, facts: Facts) -> Result:
    if facts.opset(node) < 5 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    source, target = facts.shape(node.inputs[0]), facts.content(node.inputs[1])
    kind = _first_type(node, facts)
    if target is None:
        length = facts.shape(node.inputs[1])
        if length is None or len(length) != 1 or not isinstance(length[0], int) or length[0] > MOST_DIMS:
            return (Known(kind, None, None),)
        return (Known(kind, tuple(facts.fresh() for _ in range(length[0])), None),)
    keep_zero = nodes.int_attribute(node, "allowzero", 0) == 1
    result: list[dims.Dim | None] = []
    for axis, item in enumerate(target.tolist()):
        if isinstance(item, int) and item == 0 and not keep_zero:
            known = source is not None and axis < len(source)
            result.append(source[axis] if known and source is not None else facts.fresh())
        elif isinstance(item, int) and item == -1:
            result.append(None)
        else:
            result.append(item)
    if result.count(None) == 1:
        rest = dims.product(dim for dim in result if dim is not None)
        missing = None if source is None else dims.quotient(dims.product(source), rest)
        if missing is None and source is not None and rest != 0:
            missing = dims.normal(sympy.floor(sympy.sympify(dims.product(source)) / sympy.sympify(rest)))
            missing = facts.fresh() if isinstance(missing, sympy.Expr) and not missing.is_Symbol else missing
        result = [(facts.fresh() if missing is None else missing) if dim is None else dim for dim in result]
    return (Known(kind, tuple(dim for dim in result if dim is not None), None),)


def _expand(node: ir.Node, facts: Facts) -> Result:
    if node.inputs[0] is None or node.inputs[1] is None:
        return None
    target = facts.content(node.inputs[1])
    if target is None:
        return None
    shape = dims.broadcast(facts.shape(node.inputs[0]), tuple(target.tolist()))
    return None if shape is None else (Known(_first_type(node, facts), shape, None),)


def _constant_of_shape(node: ir.Node, facts: Facts) -> Result:
    target = None if node.inputs[0] is None else facts.content(node.inputs[0])
    attribute = node.attributes.get("value")
    dtype = ir.DataType.FLOAT if attribute is None else attribute.as_tensor().dtype
    return None if target is None else (Known(ir.TensorType(dtype), tuple(target.reshape(-1).tolist()), None),)


def _concat(node: ir.Node, facts: Facts) -> Result:
    shapes = [None if value is None else facts.shape(value) for value in node.inputs]
    if not shapes or any(shape is None for shape in shapes) or "axis" not in node.attributes:
        return None
    known = [shape for shape in shapes if shape is not None]
    rank = len(known[0])
    axis = nodes.int_attribute(node, "axis", 0) % max(rank, 1)
    if rank == 0 or any(len(shape) != rank for shape in known):
        return None
    result: list[dims.Dim] = []
    for position in range(rank):
        column = [shape[position] for shape in known]
        if position == axis:
            result.append(dims.normal(sum(column[1:], start=column[0])))
        else:
            numbers = [dim for dim in column if isinstance(dim, int)]
            result.append(numbers[0] if numbers else column[0])
    return (Known(_first_type(node, facts), tuple(result), None),)


def _slice(node: ir.Node, facts: Facts) -> Result:
    source = None if node.inputs[0] is None else facts.shape(node.inputs[0])
    if source is None:
        return None
    if facts.opset(node) < 10:
        starts, ends = nodes.ints_attribute(node, "starts"), nodes.ints_attribute(node, "ends")
        axes, steps = nodes.ints_attribute(node, "axes"), None
        begin: list[dims.Dim] = list(starts or ())
        finish: list[dims.Dim] = list(ends or ())
    else:
        operands = [None if v is None else facts.content(v) for v in node.inputs[1:]]
        if len(operands) < 2 or operands[0] is None or operands[1] is None:
            return _slice_unknown(node, facts, source)
        begin, finish = operands[0].reshape(-1).tolist(), operands[1].reshape(-1).tolist()
        axes = None if nodes.input_at(node, 3) is None else facts.ints(node.inputs[3])
        steps = None if nodes.input_at(node, 4) is None else facts.ints(node.inputs[4])
        if (axes is None and nodes.input_at(node, 3)) or (steps is None and nodes.input_at(node, 4)):
            return None
    if not source or any(len(given) != len(begin) for given in (finish, axes, steps) if given is not None):
        return None  # malformed; whoever runs it says so
    result = list(source)
    for position, (start, end) in enumerate(zip(begin, finish, strict=True)):
        axis = (axes[position] if axes else position) % len(source)
        result[axis] = _sliced(source[axis], start, end, steps[position] if steps else 1, facts)
    return (Known(_first_type(node, facts), tuple(result), None),)


def _slice_unknown(node: ir.Node, facts: Facts, source: dims.Dims) -> Result:
    """Only the rank and the dims of axes that are not sliced are known."""
    axes = facts.ints(nodes.input_at(node, 3))
    cut = set(range(len(source))) if axes is None else {axis % len(source) for axis in axes}
    shape = tuple(facts.fresh() if axis in cut else dim for axis, dim in enumerate(source))
    return (Known(_first_type(node, facts), shape, None),)


def _sliced(size: dims.Dim, start: dims.Dim, end: dims.Dim, step: int, facts: Facts) -> dims.Dim:
    """The length of one sliced axis."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        if step < 0 and end < -size:
            return len(range(size)[start::step])
        return len(range(size)[start:end:step])
    if step != 1:
        return facts.fresh()
    first = _position(size, start)
    last = _position(size, end)
    if first is None or last is None:
        return facts.fresh()
    length = dims.normal(sympy.sympify(last) - sympy.sympify(first))
    return length if sympy.sympify(length).is_nonnegative else facts.fresh()


def _position(size: dims.Dim, bound: dims.Dim) -> dims.Dim | None:
    """A slice bound as a position within [0, size], or None when the symbols do not decide it."""
    if isinstance(bound, int) and bound < 0:
        bound = dims.normal(sympy.sympify(size) + bound)
        return bound if sympy.sympify(bound).is_nonnegative else None
    if isinstance(bound, int) and bound >= 2**31 - 1:
        return size
    over = sympy.sympify(bound) - sympy.sympify(size)
    if over.is_nonnegative:
        return size
    if over.is_nonpositive and sympy.sympify(bound).is_nonnegative:
        return bound
    return None


def _transpose(node: ir.Node, facts: Facts) -> Result:
    source = None if node.inputs[0] is None else facts.shape(node.inputs[0])
    if source is None:
        return None
    perm = nodes.ints_attribute(node, "perm") or tuple(reversed(range(len(source))))
    if len(perm) != len(source):
        return None
    return (Known(_first_type(node, facts), tuple(source[axis] for axis in perm), None),)


def _flatten(node: ir.Node, facts: Facts) -> Result:
    source = None if node.inputs[0] is None else facts.shape(node.inputs[0])
    if source is None:
        return None
    axis = _clamp(nodes.int_attribute(node, "axis", 1), len(source))
    shape = (dims.product(source[:axis]), dims.product(source[axis:]))
    return (Known(_first_type(node, facts), shape, None),)


def _matmul(node: ir.Node, facts: Facts) -> Result:
    if node.inputs[0] is None or node.inputs[1] is None:
        return None
    left, right = facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    batch = dims.broadcast(left[:-2], right[:-2])
    return None if batch is None else (Known(_first_type(node, facts), (*batch, left[-2], right[-1]), None),)


def _gemm(node: ir.Node, facts: Facts) -> Result:
    if node.inputs[0] is None or node.inputs[1] is None:
        return None
    left, right = facts.shape(node.inputs[0]), facts.shape(node.inputs[1])
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return None
    rows = left[1 if nodes.int_attribute(node, "transA", 0) else 0]
    columns = right[0 if nodes.int_attribute(node, "transB", 0) else 1]
    return (Known(_first_type(node, facts), (rows, columns), None),)


def _window(node: ir.Node, facts: Facts) -> Result:
    """Conv and pools whose spatial dims are symbols: the arithmetic of the operator's specification."""
    source = None if node.inputs[0] is None else facts.shape(node.inputs[0])
    if source is None or dims.is_static(source) or len(source) < 3 or len(nodes.used_outputs(node)) > 1:
        return None
    spatial = len(source) - 2
    kernel: tuple[int, ...] | None = nodes.ints_attribute(node, "kernel_shape")
    channels: dims.Dim = source[1]
    if node.op_type == "Conv":
        weight = None if node.inputs[1] is None else facts.static_shape(node.inputs[1])
        if weight is None:
            return None
        kernel, channels = weight[2:], weight[0]
    if kernel is None or nodes.string_attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    if nodes.int_attribute(node, "ceil_mode", 0):
        return None
    strides = nodes.ints_attribute(node, "strides") or (1,) * spatial
    dilations = nodes.ints_attribute(node, "dilations") or (1,) * spatial
    pads = nodes.ints_attribute(node, "pads") or (0,) * (2 * spatial)
    result: list[dims.Dim] = [source[0], channels]
    for axis in range(spatial):
        free = source[2 + axis] + pads[axis] + pads[axis + spatial] - dilations[axis] * (kernel[axis] - 1) - 1
        if isinstance(free, int):
            result.append(free // strides[axis] + 1)
        else:
            result.append(dims.normal(sympy.floor(sympy.sympify(free) / strides[axis]) + 1))
    return (Known(_first_type(node, facts), tuple(result), None),) * max(len(node.outputs), 1)


def _range(node: ir.Node, facts: Facts) -> Result:
    operands = [None if value is None else facts.content(value) for value in node.inputs]
    if any(operand is None or operand.size != 1 for operand in operands):
        return None
    start, limit, step = (operand.reshape(-1)[0] for operand in operands if operand is not None)
    kind = _first_type(node, facts)
    if all(isinstance(item, int) for item in (start, limit, step)):
        return (Known(kind, (len(range(start, limit, step)),), None),) if step else None
    if step != 1:
        return None
    length = dims.normal(sympy.sympify(limit) - sympy.sympify(start))
    return (Known(kind, (length,), None),) if sympy.sympify(length).is_nonnegative else None


def _tile(node: ir.Node, facts: Facts) -> Result:
    if node.inputs[0] is None or node.inputs[1] is None or facts.opset(node) < 6:
        return None
    source, repeats = facts.shape(node.inputs[0]), facts.content(node.inputs[1])
    if source is None or repeats is None or len(source) != repeats.size:
        return None
    shape = tuple(dims.normal(size * times) for size, times in zip(source, repeats.tolist(), strict=True))
    return (Known(_first_type(node, facts), shape, None),)


def _pad(node: ir.Node, facts: Facts) -> Result:
    source = None if node.inputs[0] is None else facts.shape(node.inputs[0])
    if source is None:
        return None
    if facts.opset(node) < 11:
        pads: list[dims.Dim] = list(nodes.ints_attribute(node, "pads") or ())
    elif nodes.input_at(node, 3) is not None:
        return None
    else:
        operand = None if nodes.input_at(node, 1) is None else facts.content(node.inputs[1])  # type: ignore[arg-type]
        pads = [] if operand is None else operand.reshape(-1).tolist()
    if len(pads) != 2 * len(source):
        return None
    rank = len(source)
    shape = tuple(dims.normal(size + pads[axis] + pads[axis + rank]) for axis, size in enumerate(source))
    return (Known(_first_type(node, facts), shape, None),)


def _resize(node: ir.Node, facts: Facts) -> Result:
    """Dims times constant scales, or the sizes given; a symbol survives where its scale is a whole number."""
    source = None if node.inputs[0] is None else facts.shape(node.inputs[0])
    if source is None or dims.is_static(source) or "axes" in node.attributes:
        return None
    if nodes.string_attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    place = 1 if node.op_type == "Upsample" or facts.opset(node) < 11 else 2
    given = nodes.input_at(node, place)
    scales = facts.array(given) if given is not None and facts.is_constant(given) else None
    if scales is None or scales.size != len(source) or not np.isfinite(scales).all():
        return None
    result: list[dims.Dim] = []
    for size, scale in zip(source, scales.reshape(-1).astype(np.float32), strict=True):
        if isinstance(size, int):
            result.append(int(np.floor(np.float32(size) * scale)))
        else:
            result.append(dims.normal(size * int(scale)) if scale >= 1 and scale == int(scale) else facts.fresh())
    return (Known(_first_type(node, facts), tuple(result), None),)


_TABLE: dict[str, Callable[[ir.Node, Facts], Result]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Concat": _concat,
    "Slice": _slice,
    "Transpose": _transpose,
    "Flatten": _flatten,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _window,
    "MaxPool": _window,
    "AveragePool": _window,
    "Range": _range,
    "Tile": _tile,
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
}
