"""Products and convolutions of bytes whose weights and numbers are constants, by the kernels for bytes.

What those do not take (weights, scales or zero points of a run) is refused here, and computed by plain loops.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import input_at, int_attribute, ints_attribute, required_input
from graphopt.model.operators.linear import rounded
from graphopt.model.operators.windows import padding
from graphopt.program.regions.copies import dense
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.templates.convolution.problem import convolution
from kernels.templates.epilogue import ACCUMULATED_INTEGER, Epilogue
from kernels.templates.quantized.problem import QuantizedConvolution
from kernels.templates.quantized.product import QUANTIZED_PRODUCT, QuantizedProduct
from kernels.templates.quantized.ways import QUANTIZED
from kernels.tensor.expression import Buffer, Cast, Expression, Index, Number

Array = npt.NDArray[Any]  # of integers, or of the floats that scales are


def lower_bytes(scope: Scope, node: ir.Node) -> None:
    """The region of a MatMulInteger or QLinearMatMul; raises NotLowered where its second operand is no constant."""
    quantizes = node.op_type.startswith("QLinear")
    operands = (0, 3, 2, 5) if quantizes else (0, 1, 2, 3)
    a = required_input(node, operands[0])
    b = _constant(scope, node, operands[1])
    shape = scope.shape(a)
    if b.ndim != 2 or len(shape) < 1:
        raise NotLowered(f"{node.op_type} '{node.name}' has a matrix for each of a batch.")
    zeros = [_numbers(scope, node, at) for at in operands[2:]]
    if zeros[0].size != 1 or zeros[1].size not in (1, b.shape[1]):
        raise NotLowered(f"{node.op_type} '{node.name}' has a zero point for each row.")
    product = QuantizedProduct(
        prod(shape[:-1]), b.shape[1], b.shape[0], a_dtype=scope.dtype(a), b_dtype=DType.of(b.dtype),
        a_zero=int(zeros[0][0]), b_zero=tuple(int(one) for one in zeros[1]),
    )  # fmt: skip
    places: dict[str, View] = {}
    if quantizes:
        value = _requantized(scope, node, product.columns, product.column, places)
        product = QuantizedProduct(
            product.rows, product.columns, product.depth, a_dtype=product.a_dtype, b_dtype=product.b_dtype,
            a_zero=product.a_zero, b_zero=product.b_zero, epilogue=Epilogue(value),
        )  # fmt: skip
    source = dense(scope, a)
    kernel = scope.kernel(QUANTIZED_PRODUCT, product)
    result = scope.result(node.outputs[0])
    packed = scope.weight("weights", node.outputs[0].name, b, kernel.operand("b"))
    given = {name: view.buffer for name, view in places.items()}
    scope.add(kernel, {"a": source.buffer, "b": packed, "c": result.buffer, **given}, (node,))


def lower_byte_images(scope: Scope, node: ir.Node) -> None:
    """The region of a ConvInteger or QLinearConv; raises NotLowered where its weights are no constants."""
    quantizes = node.op_type.startswith("QLinear")
    operands = (0, 3, 2, 5) if quantizes else (0, 1, 2, 3)
    x, weights = required_input(node, operands[0]), _constant(scope, node, operands[1])
    (batch, channels, *size), (_, outputs, *out) = scope.shape(x), scope.shape(node.outputs[0])
    rank, kernel_shape = len(size), weights.shape[2:]
    strides, dilations = (tuple(ints_attribute(node, one) or (1,) * rank) for one in ("strides", "dilations"))
    reach = [step * (taps - 1) + 1 for step, taps in zip(dilations, kernel_shape, strict=True)]
    before, after = padding(node, size, out, reach, strides)
    zeros = [_numbers(scope, node, at) for at in operands[2:]]
    if rank > 3 or zeros[0].size != 1 or zeros[1].size not in (1, outputs):
        raise NotLowered(f"{node.op_type} '{node.name}' is of {rank} spatial dims.")
    geometry = convolution(
        batch, channels, outputs, tuple(size), kernel_shape, strides=strides, dilations=dilations,
        pads=(*before, *after), groups=int_attribute(node, "group", 1), order="NCHW",
    )  # fmt: skip
    problem = QuantizedConvolution(
        geometry, scope.dtype(x), DType.of(weights.dtype), int(zeros[0][0]), tuple(int(one) for one in zeros[1])
    )
    places: dict[str, View] = {}
    if quantizes:
        total: Expression = ACCUMULATED_INTEGER[()]
        if input_at(node, 8) is not None:
            bias = _constant(scope, node, 8)
            places["bias"] = scope.keep("bias", node.outputs[0].name, bias, DType.I32)
            total = total + problem.per_channel("bias", DType.I32)
        problem = problem.with_epilogue(_requantized(scope, node, outputs, geometry.channel, places, total))
    source = dense(scope, x)
    kernel = scope.kernel(QUANTIZED, problem)
    result = scope.result(node.outputs[0])
    packed = scope.weight("weights", node.outputs[0].name, weights, kernel.operand("weights"))
    given = {name: view.buffer for name, view in places.items()}
    scope.add(kernel, {"x": source.buffer, "weights": packed, "y": result.buffer, **given}, (node,))


def _requantized(
    scope: Scope, node: ir.Node, columns: int, column: Index, places: dict[str, View],
    total: Expression = ACCUMULATED_INTEGER[()],
) -> Expression:  # fmt: skip
    """The sums in the scale of the result; the multiplier is computed in the scales' type."""
    a, b, y = (_numbers(scope, node, at) for at in (1, 4, 6))
    zero = _numbers(scope, node, 7)
    if a.size != 1 or y.size != 1 or zero.size != 1 or b.size not in (1, columns):
        raise NotLowered(f"{node.op_type} '{node.name}' has a scale for each row.")
    multiplier = np.asarray((a * b / y), np.float32)
    factor: Expression = Number(float(multiplier.reshape(-1)[0]), DType.F32)
    if multiplier.size > 1:
        places["multiplier"] = scope.keep("multiplier", node.outputs[0].name, multiplier, DType.F32)
        factor = Buffer("multiplier", DType.F32, (columns,))[column]
    kind = scope.dtype(node.outputs[0])
    return rounded(Cast(DType.F32, total) * factor, Number(int(zero[0]), kind), kind)


def _constant(scope: Scope, node: ir.Node, at: int) -> Array:
    found = scope.constant(required_input(node, at))
    if found is None:
        raise NotLowered(f"{node.op_type} '{node.name}' has an operand {at} that is known only when it runs.")
    return found


def _numbers(scope: Scope, node: ir.Node, at: int) -> Array:
    """A scale or zero point as a vector; 0 where it is left out."""
    return np.zeros(1, np.int32) if input_at(node, at) is None else _constant(scope, node, at).reshape(-1)
