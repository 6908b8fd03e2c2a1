"""Formulas of elementwise operators: an expression of one element of the result.

A formula gets the node's operands as expressions of one element and gives the element of the result. Broadcasting has
happened before: it is a matter of indices. What an operator's older opsets said with attributes is read here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import attribute_of, string_attribute
from kernels.dtype import DType
from kernels.minifloat import FORMATS
from kernels.tensor import expression as x
from kernels.tensor.expression import Binary, Cast, Compare, Expression, Number, Select, Unary


@dataclass(frozen=True, slots=True)
class Operands:
    """A node for a formula: its operands (None where one is left out) and attributes."""

    node: ir.Node
    operands: tuple[Expression | None, ...]

    def operand(self, position: int) -> Expression:
        """An operand that must be there."""
        found = self.optional(position)
        if found is None:
            raise NotLowered(f"{self.node.op_type} '{self.node.name}' has no operand {position}.")
        return found

    def optional(self, position: int) -> Expression | None:
        """An operand; None when it is left out."""
        return self.operands[position] if position < len(self.operands) else None

    def number(self, name: str, otherwise: float) -> float:
        """An attribute that is a number, an integer or not."""
        attribute = attribute_of(self.node, name)
        return otherwise if attribute is None else float(attribute.value)

    def text(self, name: str, otherwise: str) -> str:
        """An attribute that is a text."""
        return string_attribute(self.node, name, otherwise)


Formula = Callable[[Operands], Expression]


def dtype_of(kind: ir.DataType) -> DType:
    """Our element type for ONNX's; raises NotLowered for one that kernels do not have."""
    if kind in _SHORT:
        return _SHORT[kind]
    try:
        return DType.of(kind.numpy())
    except (KeyError, TypeError) as error:
        raise NotLowered(f"elements of type {kind.name} are not computed with.") from error


_SHORT = {
    ir.DataType.BFLOAT16: DType.BF16, ir.DataType.FLOAT8E4M3FN: DType.E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ: DType.E4M3FNUZ, ir.DataType.FLOAT8E5M2: DType.E5M2,
    ir.DataType.FLOAT8E5M2FNUZ: DType.E5M2FNUZ, ir.DataType.FLOAT8E8M0: DType.E8M0,
    ir.DataType.FLOAT4E2M1: DType.E2M1, ir.DataType.INT4: DType.I4, ir.DataType.UINT4: DType.U4,
    ir.DataType.INT2: DType.I2, ir.DataType.UINT2: DType.U2,
}  # fmt: skip


def unary(op: x.UnaryOp) -> Formula:
    """A function of one operand that expressions have."""
    return lambda one: Unary(op, one.operand(0))


def binary(op: x.BinaryOp) -> Formula:
    """A function of two operands that expressions have."""
    return lambda one: Binary(op, one.operand(0), one.operand(1))


def variadic(op: x.BinaryOp) -> Formula:
    """A function of two, over any number of operands from the first on."""
    return lambda one: reduce(lambda a, b: Binary(op, a, b), _all(one))


def compare(op: x.CompareOp) -> Formula:
    """A comparison of two operands."""
    return lambda one: Compare(op, one.operand(0), one.operand(1))


def _all(one: Operands) -> Sequence[Expression]:
    return [one.operand(position) for position in range(len(one.operands))]


def _like(operand: Expression, value: float) -> Number:
    return Number(value if operand.dtype.is_float else int(value), operand.dtype)


def _max(a: Expression, b: float) -> Expression:
    return Binary("max", a, _like(a, b))


def _min(a: Expression, b: float) -> Expression:
    return Binary("min", a, _like(a, b))


def _positive(a: Expression) -> Expression:
    return Compare("gt", a, _like(a, 0))


def _exp(a: Expression) -> Expression:
    return Unary("exp", a)


def clip(one: Operands) -> Expression:
    """Bounds are inputs since opset 11, attributes before; a bound that is left out does not bound."""
    found = one.operand(0)
    for position, name, op in ((1, "min", "max"), (2, "max", "min")):
        bound = one.optional(position)
        if bound is None and name in one.node.attributes:
            bound = _like(found, one.number(name, 0.0))
        if bound is not None:
            found = Binary("max" if op == "max" else "min", found, bound)
    return found


def _softplus(a: Expression) -> Expression:
    """log(1 + e^a) = max(a, 0) + log(1 + e^-|a|): no term overflows."""
    return _max(a, 0) + log_of_more(_exp(-Unary("abs", a)))


def log_of_more(u: Expression) -> Expression:
    """log(1 + u) of u from 0 to 1, to the last places of small u: with what the sum rounds away (W. Kahan).

    That is u - ((1 + u) - 1) by 1 / (1 + u), for which 1 - u/2 is near enough.
    """
    total = 1.0 + u
    return Unary("log", total) + (u - (total - 1.0)) * (1.0 - u * 0.5)


def elu(one: Operands) -> Expression:
    """The element where it is positive, alpha (e^a - 1) elsewhere."""
    a, alpha = one.operand(0), one.number("alpha", 1.0)
    return Select(_positive(a), a, (_exp(a) - 1.0) * alpha)


def selu(one: Operands) -> Expression:
    """Elu with alpha and gamma for self-normalizing networks."""
    a = one.operand(0)
    alpha, gamma = one.number("alpha", 1.67326319217681884765625), one.number("gamma", 1.05070102214813232421875)
    return Select(_positive(a), a * gamma, (_exp(a) - 1.0) * (alpha * gamma))


def celu(one: Operands) -> Expression:
    """Elu of a / alpha, times alpha."""
    a, alpha = one.operand(0), one.number("alpha", 1.0)
    return _max(a, 0) + _min((_exp(a * (1 / alpha)) - 1.0) * alpha, 0)


def leaky(one: Operands) -> Expression:
    """The element, times alpha where it is negative."""
    a = one.operand(0)
    return Select(Compare("ge", a, _like(a, 0)), a, a * one.number("alpha", 0.01))


def prelu(one: Operands) -> Expression:
    """The element, times the slope of its place where it is negative."""
    a = one.operand(0)
    return Select(Compare("ge", a, _like(a, 0)), a, Binary("mul", a, one.operand(1)))


def _hard_sigmoid(a: Expression, alpha: float, beta: float) -> Expression:
    return _min(_max(a * alpha + beta, 0), 1)


def gelu(one: Operands) -> Expression:
    """By the error function, or by tanh where the node says so."""
    return x.gelu_tanh(one.operand(0)) if one.text("approximate", "none") == "tanh" else x.gelu(one.operand(0))


def swish(one: Operands) -> Expression:
    """a sigmoid(alpha a)."""
    a = one.operand(0)
    return a * Unary("sigmoid", a * one.number("alpha", 1.0))


def mish(one: Operands) -> Expression:
    """a tanh(softplus(a))."""
    a = one.operand(0)
    return a * Unary("tanh", _softplus(a))


def thresholded(one: Operands) -> Expression:
    """The element where it is above alpha, 0 elsewhere."""
    a = one.operand(0)
    return Select(Compare("gt", a, _like(a, one.number("alpha", 1.0))), a, _like(a, 0))


def shrink(one: Operands) -> Expression:
    """0 near 0, and moved towards it by the bias elsewhere."""
    a, limit, bias = one.operand(0), one.number("lambd", 0.5), one.number("bias", 0.0)
    below, above = Compare("lt", a, _like(a, -limit)), Compare("gt", a, _like(a, limit))
    return Select(below, a + _like(a, bias), Select(above, a - _like(a, bias), _like(a, 0)))


def mean(one: Operands) -> Expression:
    """The sum of the operands, by their number."""
    return variadic("add")(one) * (1 / len(one.operands))


def power(one: Operands) -> Expression:
    """The exponent may have another type: the result has the base's."""
    base, exponent = one.operand(0), one.operand(1)
    if isinstance(exponent, Number) and base.dtype.is_float and exponent.value in (1, 2, 3, 0.5):
        if exponent.value == 0.5:
            return Unary("sqrt", base)
        return reduce(lambda a, b: Binary("mul", a, b), [base] * int(exponent.value))
    if base.dtype == exponent.dtype:
        return Binary("pow", base, exponent)
    # f32 lacks the last bit of an integer exponent, which is that of the sign.
    wide = DType.F64 if not (base.dtype.is_float and exponent.dtype.is_float) else base.dtype
    made = Binary("pow", Cast(wide, base), Cast(wide, exponent))
    if not base.dtype.is_signed:
        return Cast(base.dtype, made)
    return _within(made, base.dtype)


def mod(one: Operands) -> Expression:
    """The remainder with the sign of the divisor, or of the dividend where the node says so."""
    return Binary("fmod" if one.number("fmod", 0) else "mod", one.operand(0), one.operand(1))


def cast(one: Operands) -> Expression:
    """The element in the type that the node names; short floats end at their largest number where it says so."""
    kind, a, saturates = dtype_of(ir.DataType(int(one.number("to", 0)))), one.operand(0), one.number("saturate", 1) != 0

    if kind is DType.E8M0 and a.dtype is not kind:
        return _power_of_two(a, one.text("round_mode", "up"), saturates=saturates)
    if kind in FORMATS and saturates and a.dtype.is_float and a.dtype is not kind:
        return saturated(a, kind)
    if a.dtype.is_float and kind.is_integer and kind.bits >= 8:
        return _integer(a, kind)
    return Cast(kind, a)


def _integer(a: Expression, kind: DType) -> Expression:
    """A float as an integer, beyond the type as x86 and so NumPy and ONNX Runtime have it: ONNX leaves it open.

    The low bits of an int32, or of an int64 for uint32 and longer types, whose least number stands for what is beyond.
    """
    a = a if a.dtype.held is a.dtype else Cast(a.dtype.held, a)
    word = DType.I32 if kind.bits < 32 or kind is DType.I32 else DType.I64
    found = _within(a, word)
    if kind is DType.U64:
        found = Select(Compare("ge", a, Number(2.0**63, a.dtype)), Cast(kind, a), Cast(kind, found))
    return found if found.dtype is kind else Cast(kind, found)


def _within(a: Expression, kind: DType) -> Expression:
    """A float as a signed integer, whose least number stands for NaN and for what is beyond the type."""
    inside = Compare("lt", Unary("abs", a), Number(2.0 ** (kind.bits - 1), a.dtype))
    return Select(inside, Cast(kind, a), Number(-(1 << kind.bits - 1), kind))


def saturated(a: Expression, kind: DType) -> Expression:
    """A float in a shorter type, at most its largest number; NaN stays."""
    limit = FORMATS[kind].maximum
    return Cast(kind, x.clip(a if a.dtype.held is a.dtype else Cast(a.dtype.held, a), -limit, limit))


def _power_of_two(a: Expression, mode: str, *, saturates: bool) -> Expression:
    """The power of two below, above or nearest: the cast keeps the exponent of a product that reaches the next one."""
    wide: Expression = Cast(DType.F32, a)
    if saturates:
        wide = Binary("min", wide, Number(2.0**127, DType.F32))
    factor = {"up": 2 - 2.0**-23, "nearest": 4 / 3 + 2.0**-25}.get(mode)
    found = wide if factor is None else wide * factor
    if not saturates:  # nothing stands for a number below the least one
        found = Select(Compare("eq", wide, Number(0.0, DType.F32)), Number(float("nan"), DType.F32), found)
    return Cast(DType.E8M0, found)


def is_inf(one: Operands) -> Expression:
    """Whether the element is infinite, of the signs that the node asks for."""
    a = one.operand(0)
    plus, minus = one.number("detect_positive", 1), one.number("detect_negative", 1)
    found: Expression = Unary("is_inf", a)
    if plus and minus:
        return found
    if not plus and not minus:
        return Number(False, DType.BOOL)
    return Binary("and", found, Compare("gt" if plus else "lt", a, _like(a, 0)))


def shift(one: Operands) -> Expression:
    """Bits to the left or to the right."""
    return Binary("shl" if one.text("direction", "LEFT") == "LEFT" else "shr", one.operand(0), one.operand(1))


def relu(one: Operands) -> Expression:
    """The element where it is positive, 0 elsewhere."""
    return _max(one.operand(0), 0)


def softplus(one: Operands) -> Expression:
    """log(1 + e^a)."""
    return _softplus(one.operand(0))


def softsign(one: Operands) -> Expression:
    """a / (1 + |a|)."""
    return one.operand(0) / (1.0 + Unary("abs", one.operand(0)))


def hard_sigmoid(one: Operands) -> Expression:
    """alpha a + beta, between 0 and 1."""
    return _hard_sigmoid(one.operand(0), one.number("alpha", 0.2), one.number("beta", 0.5))


def hard_swish(one: Operands) -> Expression:
    """a times its hard sigmoid with alpha 1/6."""
    return one.operand(0) * _hard_sigmoid(one.operand(0), 1 / 6, 0.5)


def tan(one: Operands) -> Expression:
    """sin a / cos a."""
    return Unary("sin", one.operand(0)) / Unary("cos", one.operand(0))


def identity(one: Operands) -> Expression:
    """The element."""
    return one.operand(0)


def where(one: Operands) -> Expression:
    """The second operand's element where the first one's is true, else the third one's."""
    return Select(one.operand(0), one.operand(1), one.operand(2))


def number_of(array: np.ndarray, dtype: DType) -> Number | None:
    """A constant of one element as a number; None for more elements, or a type that Python's numbers do not hold."""
    if array.size != 1:
        return None
    value = array.reshape(-1)[0]
    if dtype.held is not dtype:
        return Number(float(value) if dtype.is_float else int(value), dtype)
    return Number(value.item(), dtype)
