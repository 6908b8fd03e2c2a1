"""Products and convolutions of bytes whose weights and numbers are constants, by the kernels for bytes.

What those do not take (weights, scales or zero points of a run) is refused here, and computed by plain loops.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import input_at, required_input
from graphopt.model.operators.linear import rounded
from graphopt.program.regions.copies import dense
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.templates.epilogue import ACCUMULATED_INTEGER, Epilogue
from kernels.templates.quantized.product import QUANTIZED_PRODUCT, QuantizedProduct
from kernels.tensor.expression import Buffer, Cast, Expression, Index, Number

Array = npt.NDArray[np.generic]


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


def _requantized(scope: Scope, node: ir.Node, columns: int, column: Index, places: dict[str, View]) -> Expression:
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
    return rounded(Cast(DType.F32, ACCUMULATED_INTEGER[()]) * factor, Number(int(zero[0]), kind), kind)


def _constant(scope: Scope, node: ir.Node, at: int) -> Array:
    found = scope.constant(required_input(node, at))
    if found is None:
        raise NotLowered(f"{node.op_type} '{node.name}' has an operand {at} that is known only when it runs.")
    return found


def _numbers(scope: Scope, node: ir.Node, at: int) -> Array:
    """A scale or zero point as a vector; 0 where it is left out."""
    return np.zeros(1, np.int32) if input_at(node, at) is None else _constant(scope, node, at).reshape(-1)
