"""Elementwise operators: of one tensor, and of several that broadcast."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import dims, nodes
from graphopt.model.content import REAL_TYPES, WIDE_TYPES, Content
from graphopt.model.operators import arrays, formulas, shapes
from graphopt.model.operators.arrays import Arrays, Evaluator, arithmetic, of_symbols, ufunc
from graphopt.model.operators.formulas import Formula, Operands
from graphopt.model.operators.gradients import elementwise as gradients
from graphopt.model.operators.gradients.backward import GradientRule
from graphopt.model.operators.parts import Shape, Wanted
from graphopt.model.operators.record import Operator, ShapeRule, no_flops, per_element
from graphopt.model.reals import Real
from kernels.tensor.expression import Binary, BinaryOp, CompareOp, Expression, Number, UnaryOp


def _each(
    name: str, formula: Formula | UnaryOp | None = None, flops: int = 1, *,
    shape: ShapeRule | None = shapes.same_as_first, evaluate: Evaluator | None = None,
    content: Evaluator | None = None, not_negative: bool = False, gradient: GradientRule | None = None,
) -> Operator:  # fmt: skip
    """An operator of one tensor; what other operands it has are numbers."""
    return Operator(
        name=name, shape=shape, flops=per_element(flops), storage="in place", axes="each", evaluate=evaluate,
        content=content, formula=formulas.unary(formula) if isinstance(formula, str) else formula,
        not_negative=not_negative, gradient=gradient,
    )  # fmt: skip


def _broadcast(
    name: str, since: int | None, formula: Formula | BinaryOp, *, evaluate: Evaluator | None = None,
    content: Evaluator | None = None, shape: ShapeRule = shapes.broadcast, commutative: bool = False,
    variadic: bool = False, gradient: GradientRule | None = None,
) -> Operator:  # fmt: skip
    """An operator of tensors that broadcast, in both directions from opset `since` on; variadic: of any number."""
    if isinstance(formula, str):
        formula = formulas.variadic(formula) if variadic else formulas.binary(formula)
    return Operator(
        name=name, shape=shape, flops=_one_less if variadic else per_element(1), storage="in place", axes="broadcast",
        evaluate=evaluate, content=content, formula=formula, broadcasts=since, commutative=commutative,
        gradient=gradient,
    )  # fmt: skip


def _compare(name: str, since: int, op: CompareOp, evaluate: np.ufunc, yes: str, no: str) -> Operator:
    """A comparison, and the signs of the difference for which it is true and false."""
    return _broadcast(
        name, since, formulas.compare(op), shape=shapes.compare, evaluate=ufunc(evaluate), content=_sign_in(yes, no),
        commutative=op == "eq", gradient=gradients.nothing,
    )  # fmt: skip


def _one_less(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """Sum, Max, Min and Mean of n operands: n - 1 operations per element."""
    return max(len(inputs) - 1, 0) * prod(outputs[0])


def _every_bit(one: Operands) -> Expression:
    """The element with every bit turned: its exclusive or with the number that has them all."""
    a = one.operand(0)
    return Binary("xor", a, Number(-1 if a.dtype.is_signed else (1 << 8 * a.dtype.bytes) - 1, a.dtype))


# -- evaluation -------------------------------------------------------------------------------------------------------


def _divide(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    left, right = arrays.present(*inputs)
    if left.dtype.kind == "f":
        return arrays.elementwise(np.divide, left, right)
    if left.dtype.kind not in "iu" or not np.all(right):
        return None
    quotient = np.abs(left.astype(object)) // np.abs(right.astype(object))
    return np.asarray(quotient * np.sign(left) * np.sign(right)).astype(left.dtype)


def _cast(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    (array,) = arrays.present(inputs[0])
    target = ir.DataType(nodes.int_attribute(node, "to", 0))
    if target == ir.DataType.STRING or array.dtype.kind not in "fiub":
        return None
    dtype = target.numpy()
    if dtype.kind not in "fiub" or (array.dtype.kind == "f" and dtype.kind in "iu"):
        return None  # float to integer outside the range is the evaluator's choice
    if dtype.kind == "f" and dtype.itemsize == 1:
        return None  # NumPy's casts do not saturate
    return arrays.elementwise(lambda item: np.asarray(item).astype(dtype), array)


def _where(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    return arrays.elementwise(np.where, *arrays.present(*inputs))


# -- symbols ----------------------------------------------------------------------------------------------------------


def _quotient(left: dims.Dim | Real, right: dims.Dim | Real) -> dims.Dim | Real | None:
    """Integer division truncates towards zero; symbols are non-negative, other signs are not decided."""
    if isinstance(left, Real) or isinstance(right, Real):
        return left.over(right) if isinstance(left, Real) and isinstance(right, Real) else None
    if isinstance(left, int) and isinstance(right, int):
        return None if right == 0 else int(abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)
    exact = dims.quotient(left, right)
    if exact is not None:
        return exact
    if _is_counted(sympy.sympify(left)) and sympy.sympify(right).is_positive:
        return dims.floor(sympy.sympify(left) / sympy.sympify(right))
    return None


def _is_counted(number: sympy.Expr) -> bool:
    """Whether it is never negative where every dim is one at least: of an empty image no window is counted."""
    return bool(number.is_nonnegative or number.subs({one: one + 1 for one in number.free_symbols}).is_nonnegative)


def _remainders(node: ir.Node, inputs: Arrays, opset: int) -> np.ndarray | None:
    """Of the divisor's sign, or with fmod of the dividend's, where that is known not to be negative."""
    of_dividend = nodes.int_attribute(node, "fmod", 0) != 0

    def remainder(left: dims.Dim, right: dims.Dim) -> dims.Dim | None:
        number = sympy.sympify(left)
        if not sympy.sympify(right).is_positive or (of_dividend and not number.is_nonnegative):
            return None
        return dims.normal(number - right * sympy.sympify(dims.floor(number / right)))

    return arrays.symbols(remainder, *inputs)


def _difference(left: object, right: object) -> Any:
    """left - right; of numbers a number."""
    return left - right if type(left) is type(right) is int else sympy.sympify(left) - sympy.sympify(right)


def _sign(expression: object) -> str | None:
    """'+', '-', '0' or None where the sign of an expression depends on its symbols."""
    if isinstance(expression, int):
        return "0" if expression == 0 else "+" if expression > 0 else "-"
    value = sympy.sympify(expression)
    if value.is_zero:
        return "0"
    if value.is_positive:
        return "+"
    if value.is_negative:
        return "-"
    return None


def _sign_in(yes: str, no: str) -> Evaluator:
    def compare(left: object, right: object) -> bool | None:
        if isinstance(left, bool) and isinstance(right, bool):
            left, right = int(left), int(right)
        difference = _difference(left, right)
        sign = _sign(difference)
        if sign is None:
            if yes == "0" and difference.is_zero is False:
                return False
            return None
        if sign in yes:
            return True
        return False if sign in no else None

    return of_symbols(compare)


def _extreme(pick_larger: bool) -> Evaluator:
    def extreme(*items: dims.Dim) -> dims.Dim | None:
        best = items[0]
        for item in items[1:]:
            sign = _sign(_difference(item, best))
            if sign is None:
                best = dims.normal((sympy.Max if pick_larger else sympy.Min)(best, item))
            elif (sign == "+") == pick_larger and sign != "0":
                best = item
        return best

    return of_symbols(extreme)


def _chosen(condition: object, yes: object, no: object) -> object:
    return (yes if condition else no) if isinstance(condition, (bool, int)) else None


def _negated(item: object) -> bool | None:
    return (not item) if isinstance(item, (bool, int)) else None


def _of_reals(function: Callable[[Real], Real]) -> Evaluator:
    return of_symbols(lambda item: function(item) if isinstance(item, Real) else None)


def _whole(item: object) -> object:
    """An element as an integer tensor has it."""
    if isinstance(item, Real):
        return item.truncated()
    return int(item) if isinstance(item, bool) else item


def _cast_content(node: ir.Node, inputs: Arrays, opset: int) -> Content | None:
    target = ir.DataType(nodes.int_attribute(node, "to", 0))
    if target in REAL_TYPES:
        return arrays.symbols(lambda item: item if isinstance(item, Real) else Real.of(item), inputs[0])
    if target in WIDE_TYPES:
        return arrays.symbols(_whole, inputs[0])
    if target == ir.DataType.BOOL:
        return arrays.symbols(lambda item: bool(item) if isinstance(item, (bool, int)) else None, inputs[0])
    return None


OPERATORS = (
    _each("Abs", "abs", evaluate=ufunc(np.abs), not_negative=True, gradient=gradients.absolute),
    _each("Acos", "acos", gradient=gradients.arc_cosine),
    _each("Acosh", "acosh", gradient=gradients.arc_cosine_hyperbolic),
    _each("Asin", "asin", gradient=gradients.arc_sine),
    _each("Asinh", "asinh", gradient=gradients.arc_sine_hyperbolic),
    _each("Atan", "atan", gradient=gradients.arc_tangent),
    _each("Atanh", "atanh", gradient=gradients.arc_tangent_hyperbolic),
    _each("BitwiseNot", _every_bit),
    _each("Ceil", "ceil", content=_of_reals(Real.ceiling), gradient=gradients.nothing),
    _each("Celu", formulas.celu, gradient=gradients.celu),
    _each("Clip", formulas.clip, gradient=gradients.clip),
    _each("Cos", "cos", gradient=gradients.cosine),
    _each("Cosh", "cosh", gradient=gradients.cosine_hyperbolic),
    _each("Elu", formulas.elu, gradient=gradients.elu),
    _each("Erf", "erf", gradient=gradients.error_function),
    _each("Exp", "exp", not_negative=True, gradient=gradients.exponential),
    _each("Floor", "floor", content=_of_reals(Real.floor), gradient=gradients.nothing),
    _each("Gelu", formulas.gelu, 8, gradient=gradients.gelu),
    _each("HardSigmoid", formulas.hard_sigmoid, not_negative=True, gradient=gradients.hard_sigmoid),
    _each("HardSwish", formulas.hard_swish, 3, gradient=gradients.hard_swish),
    _each("IsInf", formulas.is_inf, shape=None, gradient=gradients.nothing),
    _each("IsNaN", "is_nan", shape=None, gradient=gradients.nothing),
    _each("LeakyRelu", formulas.leaky, gradient=gradients.leaky),
    _each("Log", "log", gradient=gradients.logarithm),
    _each("Mish", formulas.mish, 6, gradient=gradients.mish),
    _each("Neg", "neg", evaluate=ufunc(np.negative), content=arithmetic(lambda a: -a), gradient=gradients.negative),
    _each("Not", "not", evaluate=ufunc(np.logical_not), content=of_symbols(_negated)),
    _each("Reciprocal", "reciprocal", gradient=gradients.reciprocal),
    _each("Relu", formulas.relu, not_negative=True, gradient=gradients.relu),
    _each("Round", "round", gradient=gradients.nothing),
    _each("Selu", formulas.selu, gradient=gradients.selu),
    _each("Shrink", formulas.shrink, gradient=gradients.shrink),
    _each("Sigmoid", "sigmoid", 4, not_negative=True, gradient=gradients.sigmoid),
    _each("Sign", "sign", gradient=gradients.nothing),
    _each("Sin", "sin", gradient=gradients.sine),
    _each("Sinh", "sinh", gradient=gradients.sine_hyperbolic),
    _each("Softplus", formulas.softplus, not_negative=True, gradient=gradients.softplus),
    _each("Softsign", formulas.softsign, gradient=gradients.softsign),
    _each("Sqrt", "sqrt", not_negative=True, gradient=gradients.square_root),
    _each("Swish", formulas.swish, 5, gradient=gradients.swish),
    _each("Tan", formulas.tan, gradient=gradients.tangent),
    _each("Tanh", "tanh", gradient=gradients.tangent_hyperbolic),
    _each("ThresholdedRelu", formulas.thresholded, gradient=gradients.thresholded),
    _each("Cast", formulas.cast, 0, shape=None, evaluate=_cast, content=_cast_content, gradient=gradients.cast),
    Operator(name="CastLike", flops=no_flops, axes="symmetric", gradient=gradients.cast),
    Operator(
        name="Identity", moves=True, shape=shapes.same_as_first, flops=no_flops, storage="same", axes="each",
        evaluate=arrays.first_operand, content=arrays.first_operand, formula=formulas.identity,
        gradient=gradients.same,
    ),
    Operator(name="BitCast", flops=no_flops, storage="same", axes="symmetric"),
    Operator(
        name="Dropout", flops=no_flops, storage="same", purity="training", axes="symmetric", part=Wanted.same,
        gradient=gradients.dropout,
    ),
    _broadcast("Add", 7, "add", evaluate=ufunc(np.add), content=arithmetic(lambda a, b: a + b), commutative=True,
               gradient=gradients.add),
    _broadcast("Sub", 7, "sub", evaluate=ufunc(np.subtract), content=arithmetic(lambda a, b: a - b),
               gradient=gradients.subtract),
    _broadcast("Mul", 7, "mul", evaluate=ufunc(np.multiply), content=arithmetic(lambda a, b: a * b), commutative=True,
               gradient=gradients.multiply),
    _broadcast("Div", 7, "div", evaluate=_divide, content=of_symbols(_quotient), gradient=gradients.divide),
    _broadcast("Pow", 7, formulas.power, gradient=gradients.power),
    _broadcast("And", 7, "and", evaluate=ufunc(np.logical_and), commutative=True),
    _broadcast("Or", 7, "or", evaluate=ufunc(np.logical_or), commutative=True),
    _broadcast("Xor", 7, "xor", evaluate=ufunc(np.logical_xor), commutative=True),
    _compare("Equal", 7, "eq", np.equal, "0", "+-"),
    _compare("Less", 7, "lt", np.less, "-", "+0"),
    _compare("Greater", 7, "gt", np.greater, "+", "-0"),
    _broadcast("Max", 8, "max", content=_extreme(True), variadic=True, commutative=True, gradient=gradients.extreme),
    _broadcast("Min", 8, "min", content=_extreme(False), variadic=True, commutative=True, gradient=gradients.extreme),
    _broadcast("Sum", 8, "add", variadic=True, gradient=gradients.add),
    _broadcast("Mean", 8, formulas.mean, variadic=True, gradient=gradients.mean),
    Operator(
        name="Where", shape=shapes.choose, flops=no_flops, storage="in place", axes="broadcast", broadcasts=9,
        formula=formulas.where, evaluate=_where, content=of_symbols(_chosen), gradient=gradients.where,
    ),
    _broadcast("Mod", 10, formulas.mod, content=_remainders, gradient=gradients.modulo),
    _broadcast("BitShift", 11, formulas.shift),
    _compare("LessOrEqual", 12, "le", np.less_equal, "-0", "+"),
    _compare("GreaterOrEqual", 12, "ge", np.greater_equal, "+0", "-"),
    _broadcast("BitwiseAnd", 18, "and", commutative=True),
    _broadcast("BitwiseOr", 18, "or", commutative=True),
    _broadcast("BitwiseXor", 18, "xor", commutative=True),
    _broadcast("PRelu", None, formulas.prelu, shape=shapes.slope, gradient=gradients.prelu),
)  # fmt: skip
