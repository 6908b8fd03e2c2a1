"""Products and convolutions of bytes with weights, scales or zero points that only a run gives.

Weights that a run gives are packed by a kernel of their own. What the kernels do not take (zero points of rows, weights
of single channels that a run gives) is refused here, and computed by plain loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import input_at, int_attribute, ints_attribute, required_input
from graphopt.model.operators.linear import requantized, requantized_by_scales
from graphopt.model.operators.padding import padding
from graphopt.program.regions import buffer as program
from graphopt.program.regions.copies import dense
from graphopt.program.regions.scope import Scope
from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.templates.convolution.problem import convolution
from kernels.templates.epilogue import ACCUMULATED_INTEGER, Epilogue
from kernels.templates.quantized.computed import (
    COMPUTED_PRODUCT,
    COMPUTED_WEIGHTS,
    REPACKED_PRODUCT,
    REPACKED_WEIGHTS,
)
from kernels.templates.quantized.problem import QuantizedConvolution
from kernels.templates.quantized.product import QUANTIZED_PRODUCT, QuantizedProduct
from kernels.templates.quantized.ways import QUANTIZED
from kernels.tensor.expression import Buffer, Expression, Index, Number

Array = npt.NDArray[Any]  # of integers, or of the floats that scales are
Buffers = dict[str, program.Buffer]  # by the names of operands


def lower_given_bytes(scope: Scope, node: ir.Node) -> None:
    """The regions of a node of GIVEN_BYTES; raises NotLowered for forms that need loops."""
    GIVEN_BYTES[node.op_type](scope, node)


def _product(scope: Scope, node: ir.Node) -> None:
    """The regions of a MatMulInteger or QLinearMatMul; raises NotLowered for forms that need loops."""
    quantizes = node.op_type.startswith("QLinear")
    operands = (0, 3, 2, 5) if quantizes else (0, 1, 2, 3)
    a, b = (required_input(node, at) for at in operands[:2])
    a_shape, b_shape = scope.shape(a), scope.shape(b)
    if len(b_shape) < 2 or not a_shape or (len(b_shape) > 2 and a_shape[:-2] != b_shape[:-2]):
        raise NotLowered(f"{node.op_type} '{node.name}' broadcasts its matrices.")
    batch, (depth, columns) = prod(b_shape[:-2]), b_shape[-2:]
    a_zero, b_zero = _zeros(scope, node, operands[2], 1), _zeros(scope, node, operands[3], columns)
    weights = scope.constant(b) if batch == 1 and b_zero is not None else None
    product = QuantizedProduct(
        prod(a_shape[:-1]) // batch if batch else 0, columns, depth, batch, scope.dtype(a), scope.dtype(b),
        a_zero[0] if a_zero else None, b_zero, weights is not None,
        zero_per_column=b_zero is None and _size(scope, node, operands[3]) > 1,
    )  # fmt: skip
    if 0 in (product.rows, columns, depth, batch):
        raise NotLowered(f"{node.op_type} '{node.name}' has an empty matrix.")
    given: Buffers = {} if a_zero else {"a_zero": dense(scope, required_input(node, operands[2])).buffer}
    if quantizes:
        value = _requantized(scope, node, columns, product.column, given)
        product = replace(product, epilogue=Epilogue(value))
    if weights is None and scope.steady and len(b_shape) > 2:
        raise NotLowered(f"{node.op_type} '{node.name}' packs matrices whose dims may be of any size.")  # of attention
    if weights is None:
        kernel, repack = scope.kernel(COMPUTED_PRODUCT, product), scope.kernel(REPACKED_PRODUCT, product)
        packed = _repacked(scope, node, repack, b, None if b_zero else required_input(node, operands[3]))
    else:
        kernel = scope.kernel(QUANTIZED_PRODUCT, product)
        packed = scope.weight("weights", node.outputs[0].name, weights, kernel.operand("b"))
    _add(scope, node, kernel, ("a", "b", "c"), a, packed, given)


def _images(scope: Scope, node: ir.Node) -> None:
    """The regions of a ConvInteger or QLinearConv; raises NotLowered for forms that need loops."""
    quantizes = node.op_type.startswith("QLinear")
    operands = (0, 3, 2, 5) if quantizes else (0, 1, 2, 3)
    x, w = (required_input(node, at) for at in operands[:2])
    (batch, channels, *size), (_, outputs, *out) = scope.shape(x), scope.shape(node.outputs[0])
    rank, kernel_shape = len(size), scope.shape(w)[2:]
    strides, dilations = (tuple(ints_attribute(node, one) or (1,) * rank) for one in ("strides", "dilations"))
    reach = [step * (taps - 1) + 1 for step, taps in zip(dilations, kernel_shape, strict=True)]
    before, after = padding(node, size, out, reach, strides)
    x_zero, w_zero = _zeros(scope, node, operands[2], 1), _zeros(scope, node, operands[3], outputs)
    if rank > 3:
        raise NotLowered(f"{node.op_type} '{node.name}' is of {rank} spatial dims.")
    geometry = convolution(
        batch, channels, outputs, tuple(size), kernel_shape, strides=strides, dilations=dilations,
        pads=(*before, *after), groups=int_attribute(node, "group", 1), order="NCHW",
    )  # fmt: skip
    weights = scope.constant(w) if w_zero is not None else None
    if weights is None and geometry.is_depthwise:
        raise NotLowered(f"{node.op_type} '{node.name}' has weights of single channels that a run gives.")
    problem = QuantizedConvolution(
        geometry, scope.dtype(x), scope.dtype(w), x_zero[0] if x_zero else None, w_zero, weights is not None,
        zero_per_channel=w_zero is None and _size(scope, node, operands[3]) > 1,
    )  # fmt: skip
    given: Buffers = {} if x_zero else {"x_zero": dense(scope, required_input(node, operands[2])).buffer}
    if quantizes:
        total: Expression = ACCUMULATED_INTEGER[()]
        if input_at(node, 8) is not None:
            given["bias"] = dense(scope, required_input(node, 8)).buffer
            total = total + problem.per_channel("bias", DType.I32)
        problem = problem.with_epilogue(_requantized(scope, node, outputs, geometry.channel, given, total))
    if weights is None:
        kernel, repack = scope.kernel(COMPUTED_WEIGHTS, problem), scope.kernel(REPACKED_WEIGHTS, problem)
        packed = _repacked(scope, node, repack, w, None if w_zero else required_input(node, operands[3]))
    else:
        kernel = scope.kernel(QUANTIZED, problem)
        packed = scope.weight("weights", node.outputs[0].name, weights, kernel.operand("weights"))
    _add(scope, node, kernel, ("x", "weights", "y"), x, packed, given)


def _add(
    scope: Scope, node: ir.Node, kernel: Kernel, names: tuple[str, str, str], source: ir.Value, packed: program.Buffer,
    given: Buffers,
) -> None:  # fmt: skip
    """A region; `names` are those of the kernel's operands for the source, the weights and the result."""
    places = (dense(scope, source).buffer, packed, scope.result(node.outputs[0]).buffer)
    scope.add(kernel, {**dict(zip(names, places, strict=True)), **given}, (node,))


def _repacked(scope: Scope, node: ir.Node, repack: Kernel, weights: ir.Value, zero: ir.Value | None) -> program.Buffer:
    """A region that packs weights, and where they lie then."""
    packed = scope.temporary("packed", node.outputs[0].name, repack.operand("packed").bytes)
    places = {"weights": dense(scope, weights).buffer, "packed": packed}
    if zero is not None:
        places["weights_zero"] = dense(scope, zero).buffer
    scope.add(repack, places, (node,))
    return packed


def _requantized(
    scope: Scope, node: ir.Node, columns: int, column: Index, given: Buffers,
    total: Expression = ACCUMULATED_INTEGER[()],
) -> Expression:  # fmt: skip
    """The sums in the scale of the result; the multiplier is computed in the scales' type."""
    kind, known = scope.dtype(node.outputs[0]), [_numbers(scope, node, at) for at in (1, 4, 6)]
    zero: Expression = _operand(scope, node, 7, 1, column, given) if input_at(node, 7) else Number(0, kind)
    if any(one is None for one in known):
        a, b, y = (_operand(scope, node, at, columns if at == 4 else 1, column, given) for at in (1, 4, 6))
        return requantized_by_scales(total, (a, b), y, zero, kind)
    a_scale, b_scale, y_scale = (np.asarray(one, np.float64) for one in known if one is not None)
    if a_scale.size != 1 or y_scale.size != 1 or b_scale.size not in (1, columns):
        raise NotLowered(f"{node.op_type} '{node.name}' has a scale for each row.")
    exact = (a_scale * b_scale / y_scale).reshape(-1)
    high = exact.astype(np.float32)
    parts = [("multiplier", high), ("rest", (exact - high).astype(np.float32))]
    if exact.size == 1:
        first, second = (Number(float(one[0]), DType.F32) for _, one in parts)
        return requantized(total, (first, second), zero, kind)
    for name, one in parts:
        given[name] = scope.keep(name, node.outputs[0].name, one, DType.F32).buffer
    each, left = (Buffer(name, DType.F32, (columns,))[column] for name, _ in parts)
    return requantized(total, (each, left), zero, kind)


def _operand(scope: Scope, node: ir.Node, at: int, most: int, column: Index, given: Buffers) -> Expression:
    """A scale or zero point: a constant number, or an operand of one number or of `most`, one for each column."""
    value = required_input(node, at)
    known, size, dtype = scope.constant(value), prod(scope.shape(value)), scope.dtype(value)
    if size not in (1, most):
        raise NotLowered(f"{node.op_type} '{node.name}' has a scale or zero point for each row.")
    if known is not None and size == 1 and dtype in (DType.F32, DType.U8, DType.I8):
        return Number(known.reshape(-1)[0].item(), dtype)
    name = f"number{at}"
    given[name] = dense(scope, value).buffer
    return Buffer(name, dtype, (size,))[Index(()) if size == 1 else column]


def _zeros(scope: Scope, node: ir.Node, at: int, most: int) -> tuple[int, ...] | None:
    """Zero points, one or `most`; 0 where they are left out, None where a run gives them."""
    found = _numbers(scope, node, at)
    if (found.size if found is not None else _size(scope, node, at)) not in (1, most):
        raise NotLowered(f"{node.op_type} '{node.name}' has a zero point for each row.")
    return None if found is None else tuple(int(one) for one in found)


def _size(scope: Scope, node: ir.Node, at: int) -> int:
    return prod(scope.shape(required_input(node, at)))


def _numbers(scope: Scope, node: ir.Node, at: int) -> Array | None:
    """A scale or zero point as a vector; 0 where it is left out, None where it is no constant."""
    if input_at(node, at) is None:
        return np.zeros(1, np.int32)
    found = scope.constant(required_input(node, at))
    return None if found is None else found.reshape(-1)


GIVEN_BYTES: dict[str, Callable[[Scope, ir.Node], None]] = {
    "MatMulInteger": _product, "QLinearMatMul": _product, "ConvInteger": _images, "QLinearConv": _images,
}  # fmt: skip
