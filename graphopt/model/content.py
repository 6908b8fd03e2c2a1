"""Symbolic content: what an integer tensor holds when it was computed from shapes.

`Shape(x)` of an x of dims [batch, 3, 224] holds the numbers [batch, 3, 224], known although the batch is not. Content
is a NumPy object array of ints, bools and sympy expressions; the functions here carry it through the operators that
exporters write between a Shape and the Reshape, Expand, Slice or Range that uses it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import dims, nodes

Content = np.ndarray  # dtype object; rank at most 2, at most MAX_ELEMENTS elements
MAX_ELEMENTS = 64

INTEGER_TYPES = frozenset(
    {
        ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
        ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64, ir.DataType.BOOL,
    }
)  # fmt: skip
# Casting to a narrower type may wrap; dims are assumed to fit these.
WIDE_TYPES = frozenset({ir.DataType.INT32, ir.DataType.INT64})


def of_array(array: np.ndarray) -> Content | None:
    """The content of a constant integer or bool tensor, None when it is too large to follow."""
    if array.size > MAX_ELEMENTS or array.ndim > 2 or array.dtype.kind not in "iub":
        return None
    result = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        result[index] = array[index].item()
    return result


def of_dims(shape: dims.Dims) -> Content:
    """A vector holding dims."""
    result = np.empty(len(shape), dtype=object)
    for index, dim in enumerate(shape):
        result[index] = dim
    return result


def to_array(content: Content, dtype: ir.DataType) -> np.ndarray | None:
    """The numbers, or None when an element is symbolic."""
    if not all(isinstance(item, (int, bool)) for item in content.reshape(-1)):
        return None
    return np.array(content.tolist(), dtype=dtype.numpy()).reshape(content.shape)


Operands = list[Content | None]


def propagate(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    """The content of the node's first output, or None when it is not known."""
    function = _TABLE.get(node.op_type)
    if function is None:
        return None
    try:
        result = function(node, inputs, opset)
    except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError):
        return None  # an element that this algebra cannot express; the operator itself is not at fault
    if result is None or result.size > MAX_ELEMENTS:
        return None
    return result


def _map(function: Callable[..., object], *operands: Content | None) -> Content | None:
    if any(operand is None for operand in operands):
        return None
    arrays = np.broadcast_arrays(*[operand for operand in operands if operand is not None])
    result = np.empty(arrays[0].shape, dtype=object)
    for index in np.ndindex(result.shape):
        item = function(*(array[index] for array in arrays))
        if item is None:
            return None
        result[index] = item
    return result


def _arithmetic(function: Callable[..., object]) -> Callable[[ir.Node, Operands, int], Content | None]:
    def run(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
        return _map(lambda *items: dims.normal(function(*items)), *inputs)

    return run


def _divide(left: dims.Dim, right: dims.Dim) -> dims.Dim | None:
    """Integer division truncates towards zero; symbols are non-negative, other signs are not decided."""
    if isinstance(left, int) and isinstance(right, int):
        return None if right == 0 else int(abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)
    exact = dims.quotient(left, right)
    if exact is not None:
        return exact
    if sympy.sympify(left).is_nonnegative and sympy.sympify(right).is_positive:
        return dims.normal(sympy.floor(sympy.sympify(left) / sympy.sympify(right)))
    return None


def _modulo(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    def modulo(left: dims.Dim, right: dims.Dim) -> dims.Dim | None:
        if isinstance(left, int) and isinstance(right, int) and left >= 0 and right > 0:
            return left % right
        return None

    return _map(modulo, *inputs)


def _sign(expression: object) -> str | None:
    """'+', '-', '0' or None where the sign of an expression depends on its symbols."""
    value = sympy.sympify(expression)
    if value.is_zero:
        return "0"
    if value.is_positive:
        return "+"
    if value.is_negative:
        return "-"
    return None


def _compare(yes: str, no: str) -> Callable[[ir.Node, Operands, int], Content | None]:
    def compare(left: object, right: object) -> bool | None:
        if isinstance(left, bool) and isinstance(right, bool):
            left, right = int(left), int(right)
        difference = sympy.sympify(left) - sympy.sympify(right)
        sign = _sign(difference)
        if sign is None:
            if yes == "0" and difference.is_zero is False:
                return False
            return None
        if sign in yes:
            return True
        return False if sign in no else None

    return lambda node, inputs, opset: _map(compare, *inputs)


def _extreme(pick_larger: bool) -> Callable[[ir.Node, Operands, int], Content | None]:
    def extreme(*items: dims.Dim) -> dims.Dim | None:
        best = items[0]
        for item in items[1:]:
            sign = _sign(sympy.sympify(item) - sympy.sympify(best))
            if sign is None:
                return None
            if (sign == "+") == pick_larger and sign != "0":
                best = item
        return best

    return lambda node, inputs, opset: _map(extreme, *inputs)


def _where(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    condition, yes, no = inputs
    return _map(lambda c, a, b: (a if c else b) if isinstance(c, (bool, int)) else None, condition, yes, no)


def _axes(node: ir.Node, inputs: Operands, opset: int, since: int = 13) -> tuple[int, ...] | None:
    """The axes of Squeeze, Unsqueeze or a reduction: an attribute before `since`, an input after."""
    if opset < since:
        return nodes.ints_attribute(node, "axes")
    if len(inputs) < 2 or inputs[1] is None:
        return None
    return tuple(int(item) for item in inputs[1].reshape(-1))


def _unsqueeze(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    axes = _axes(node, inputs, opset)
    if inputs[0] is None or axes is None:
        return None
    rank = inputs[0].ndim + len(axes)
    return None if rank > 2 else np.expand_dims(inputs[0], tuple(axis % rank for axis in axes))


def _squeeze(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    if inputs[0] is None:
        return None
    axes = _axes(node, inputs, opset)
    if axes is None and (len(node.inputs) > 1 and node.inputs[1] is not None):
        return None
    result = np.squeeze(inputs[0], axes)
    return result if isinstance(result, np.ndarray) else np.array(result, dtype=object)


def _gather(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    data, index = inputs
    if data is None or index is None:
        return None
    positions = np.array(index.tolist(), dtype=np.int64).reshape(index.shape)
    result = np.take(data, positions, axis=nodes.int_attribute(node, "axis", 0))
    result = result if isinstance(result, np.ndarray) else np.array(result, dtype=object)
    return None if result.ndim > 2 else result


def _concat(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    if any(part is None for part in inputs):
        return None
    return np.concatenate([part for part in inputs if part is not None], nodes.int_attribute(node, "axis", 0))


def _slice(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    data = inputs[0]
    if data is None:
        return None
    if opset < 10:
        starts, ends = nodes.ints_attribute(node, "starts"), nodes.ints_attribute(node, "ends")
        axes, steps = nodes.ints_attribute(node, "axes"), None
    else:
        given: list[tuple[int, ...] | None] = []
        for position in range(1, 5):
            present = nodes.input_at(node, position) is not None
            operand = inputs[position] if position < len(inputs) else None
            if present and operand is None:
                return None
            given.append(None if operand is None else tuple(int(item) for item in operand.reshape(-1)))
        starts, ends, axes, steps = given
    if starts is None or ends is None:
        return None
    axes = axes or tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or any(axis >= data.ndim for axis in axes):
        return None  # malformed; whoever runs it says so
    index: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = data.shape[axis]
        if step < 0 and end < -size:
            index[axis] = slice(start, None, step)
        else:
            index[axis] = slice(start, end, step)
    return data[tuple(index)]


def _cast(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    target = ir.DataType(nodes.int_attribute(node, "to", 0))
    if inputs[0] is None:
        return None
    if target in WIDE_TYPES:
        return _map(lambda item: int(item) if isinstance(item, bool) else item, inputs[0])
    if target == ir.DataType.BOOL:
        return _map(lambda item: bool(item) if isinstance(item, (bool, int)) else None, inputs[0])
    return None


def _reshape(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    if inputs[0] is None or inputs[1] is None or nodes.int_attribute(node, "allowzero", 0):
        return None
    target = [int(item) for item in inputs[1].reshape(-1)]
    target = [inputs[0].shape[axis] if item == 0 else item for axis, item in enumerate(target)]
    return inputs[0].reshape(target) if len(target) <= 2 else None


def _reduce_product(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    if inputs[0] is None or inputs[0].ndim != 1:
        return None
    axes = _axes(node, inputs, opset, since=18)
    if axes not in (None, (0,), (-1,)):
        return None
    result = np.empty((1,) if nodes.int_attribute(node, "keepdims", 1) else (), dtype=object)
    result[...] = dims.product(inputs[0].tolist())
    return result


def _identity(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    return inputs[0]


def _expand(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    if inputs[0] is None or inputs[1] is None:
        return None
    target = tuple(int(item) for item in inputs[1].reshape(-1))
    shape = np.broadcast_shapes(inputs[0].shape, target)
    if int(np.prod(shape)) > MAX_ELEMENTS or len(shape) > 2:
        return None
    return np.broadcast_to(inputs[0], shape)


def _not(node: ir.Node, inputs: Operands, opset: int) -> Content | None:
    return _map(lambda item: (not item) if isinstance(item, (bool, int)) else None, inputs[0])


_TABLE: dict[str, Callable[[ir.Node, Operands, int], Content | None]] = {
    "Add": _arithmetic(lambda a, b: a + b),
    "Sub": _arithmetic(lambda a, b: a - b),
    "Mul": _arithmetic(lambda a, b: a * b),
    "Neg": _arithmetic(lambda a: -a),
    "Div": lambda node, inputs, opset: _map(_divide, *inputs),
    "Mod": _modulo,
    "Min": _extreme(False),
    "Max": _extreme(True),
    "Equal": _compare("0", "+-"),
    "Greater": _compare("+", "-0"),
    "GreaterOrEqual": _compare("+0", "-"),
    "Less": _compare("-", "+0"),
    "LessOrEqual": _compare("-0", "+"),
    "Not": _not,
    "Where": _where,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Cast": _cast,
    "Reshape": _reshape,
    "Flatten": lambda node, inputs, opset: None,
    "ReduceProd": _reduce_product,
    "Identity": _identity,
    "Expand": _expand,
}
