"""ONNX's elementwise operators as expressions: one table, one formula an operator.

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
from kernels.tensor import expression as x
from kernels.tensor.expression import Binary, Cast, Compare, Expression, Number, Select, Unary


@dataclass(frozen=True, slots=True)
class Operator:
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


Formula = Callable[[Operator], Expression]


def dtype_of(kind: ir.DataType) -> DType:
    """Our element type for ONNX's; raises NotLowered for one that kernels do not have."""
    if kind is ir.DataType.BFLOAT16:
        return DType.BF16
    try:
        return DType.of(kind.numpy())
    except (KeyError, TypeError) as error:
        raise NotLowered(f"elements of type {kind.name} are not computed with.") from error


def formula_of(node: ir.Node) -> Formula | None:
    """The formula of an elementwise node; None when the operator is none."""
    return FORMULAS.get(node.op_type) if node.domain in ("", "ai.onnx") else None


def _unary(op: x.UnaryOp) -> Formula:
    return lambda one: Unary(op, one.operand(0))


def _binary(op: x.BinaryOp) -> Formula:
    return lambda one: Binary(op, one.operand(0), one.operand(1))


def _variadic(op: x.BinaryOp) -> Formula:
    return lambda one: reduce(lambda a, b: Binary(op, a, b), _all(one))


def _compare(op: x.CompareOp) -> Formula:
    return lambda one: Compare(op, one.operand(0), one.operand(1))


def _all(one: Operator) -> Sequence[Expression]:
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


def _clip(one: Operator) -> Expression:
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
    return _max(a, 0) + Unary("log", 1.0 + _exp(-Unary("abs", a)))


def _elu(one: Operator) -> Expression:
    a, alpha = one.operand(0), one.number("alpha", 1.0)
    return Select(_positive(a), a, (_exp(a) - 1.0) * alpha)


def _selu(one: Operator) -> Expression:
    a = one.operand(0)
    alpha, gamma = one.number("alpha", 1.67326319217681884765625), one.number("gamma", 1.05070102214813232421875)
    return Select(_positive(a), a * gamma, (_exp(a) - 1.0) * (alpha * gamma))


def _celu(one: Operator) -> Expression:
    a, alpha = one.operand(0), one.number("alpha", 1.0)
    return _max(a, 0) + _min((_exp(a * (1 / alpha)) - 1.0) * alpha, 0)


def _leaky(one: Operator) -> Expression:
    a = one.operand(0)
    return Select(Compare("ge", a, _like(a, 0)), a, a * one.number("alpha", 0.01))


def _prelu(one: Operator) -> Expression:
    a = one.operand(0)
    return Select(Compare("ge", a, _like(a, 0)), a, Binary("mul", a, one.operand(1)))


def _hard_sigmoid(a: Expression, alpha: float, beta: float) -> Expression:
    return _min(_max(a * alpha + beta, 0), 1)


def _gelu(one: Operator) -> Expression:
    return x.gelu_tanh(one.operand(0)) if one.text("approximate", "none") == "tanh" else x.gelu(one.operand(0))


def _swish(one: Operator) -> Expression:
    a = one.operand(0)
    return a * Unary("sigmoid", a * one.number("alpha", 1.0))


def _mish(one: Operator) -> Expression:
    a = one.operand(0)
    return a * Unary("tanh", _softplus(a))


def _thresholded(one: Operator) -> Expression:
    a = one.operand(0)
    return Select(Compare("gt", a, _like(a, one.number("alpha", 1.0))), a, _like(a, 0))


def _shrink(one: Operator) -> Expression:
    a, limit, bias = one.operand(0), one.number("lambd", 0.5), one.number("bias", 0.0)
    below, above = Compare("lt", a, _like(a, -limit)), Compare("gt", a, _like(a, limit))
    return Select(below, a + _like(a, bias), Select(above, a - _like(a, bias), _like(a, 0)))


def _mean(one: Operator) -> Expression:
    return _variadic("add")(one) * (1 / len(one.operands))


def _pow(one: Operator) -> Expression:
    """The exponent may have another type: the result has the base's."""
    base, exponent = one.operand(0), one.operand(1)
    if isinstance(exponent, Number) and base.dtype.is_float and exponent.value in (1, 2, 3, 0.5):
        if exponent.value == 0.5:
            return Unary("sqrt", base)
        return reduce(lambda a, b: Binary("mul", a, b), [base] * int(exponent.value))
    if base.dtype == exponent.dtype:
        return Binary("pow", base, exponent)
    wide = DType.F64 if not base.dtype.is_float else base.dtype
    return Cast(base.dtype, Binary("pow", Cast(wide, base), Cast(wide, exponent)))


def _mod(one: Operator) -> Expression:
    return Binary("fmod" if one.number("fmod", 0) else "mod", one.operand(0), one.operand(1))


def _cast(one: Operator) -> Expression:
    target = dtype_of(ir.DataType(int(one.number("to", 0))))
    return Cast(target, one.operand(0))


def _is_inf(one: Operator) -> Expression:
    a = one.operand(0)
    plus, minus = one.number("detect_positive", 1), one.number("detect_negative", 1)
    found: Expression = Unary("is_inf", a)
    if plus and minus:
        return found
    if not plus and not minus:
        return Number(False, DType.BOOL)
    return Binary("and", found, Compare("gt" if plus else "lt", a, _like(a, 0)))


def _shift(one: Operator) -> Expression:
    return Binary("shl" if one.text("direction", "LEFT") == "LEFT" else "shr", one.operand(0), one.operand(1))


FORMULAS: dict[str, Formula] = {
    "Abs": _unary("abs"),
    "Add": _binary("add"),
    "And": _binary("and"),
    "BitShift": _shift,
    "BitwiseAnd": _binary("and"),
    "BitwiseOr": _binary("or"),
    "BitwiseXor": _binary("xor"),
    "Cast": _cast,
    "Ceil": _unary("ceil"),
    "Celu": _celu,
    "Clip": _clip,
    "Cos": _unary("cos"),
    "Div": _binary("div"),
    "Elu": _elu,
    "Equal": _compare("eq"),
    "Erf": _unary("erf"),
    "Exp": _unary("exp"),
    "Floor": _unary("floor"),
    "Gelu": _gelu,
    "Greater": _compare("gt"),
    "GreaterOrEqual": _compare("ge"),
    "HardSigmoid": lambda one: _hard_sigmoid(one.operand(0), one.number("alpha", 0.2), one.number("beta", 0.5)),
    "HardSwish": lambda one: one.operand(0) * _hard_sigmoid(one.operand(0), 1 / 6, 0.5),
    "Identity": lambda one: one.operand(0),
    "IsInf": _is_inf,
    "IsNaN": _unary("is_nan"),
    "LeakyRelu": _leaky,
    "Less": _compare("lt"),
    "LessOrEqual": _compare("le"),
    "Log": _unary("log"),
    "Max": _variadic("max"),
    "Mean": _mean,
    "Min": _variadic("min"),
    "Mish": _mish,
    "Mod": _mod,
    "Mul": _binary("mul"),
    "Neg": _unary("neg"),
    "Not": _unary("not"),
    "Or": _binary("or"),
    "PRelu": _prelu,
    "Pow": _pow,
    "Reciprocal": _unary("reciprocal"),
    "Relu": lambda one: _max(one.operand(0), 0),
    "Round": _unary("round"),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _unary("sigmoid"),
    "Sign": _unary("sign"),
    "Sin": _unary("sin"),
    "Softplus": lambda one: _softplus(one.operand(0)),
    "Softsign": lambda one: one.operand(0) / (1.0 + Unary("abs", one.operand(0))),
    "Sqrt": _unary("sqrt"),
    "Sub": _binary("sub"),
    "Sum": _variadic("add"),
    "Swish": _swish,
    "Tan": lambda one: Unary("sin", one.operand(0)) / Unary("cos", one.operand(0)),
    "Tanh": _unary("tanh"),
    "ThresholdedRelu": _thresholded,
    "Where": lambda one: Select(one.operand(0), one.operand(1), one.operand(2)),
    "Xor": _binary("xor"),
}


def number_of(array: np.ndarray, dtype: DType) -> Number | None:
    """A constant of one element as a number; None for more elements, or a type that Python's numbers do not hold."""
    if array.size != 1 or dtype is DType.BF16:
        return None
    value = array.reshape(-1)[0].item()
    return Number(value, dtype)
