"""Checks of one expression before it is used: operand types of every operation, and loads inside their buffers."""

from __future__ import annotations

from kernels.dtype import DType
from kernels.tensor.expression import (
    Binary,
    Compare,
    Expression,
    Index,
    InvalidExpression,
    Load,
    Reduce,
    Select,
    Unary,
    Variable,
)
from kernels.tensor.ranges import Facts, bounds, facts_of, holds
from kernels.tensor.traverse import nodes

_FLOAT_ONLY = frozenset((
    "sqrt", "rsqrt", "reciprocal", "exp", "log", "erf", "tanh", "sigmoid", "sin", "cos", "asin", "acos",
    "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "floor", "ceil", "round", "trunc", "is_nan", "is_inf",
))  # fmt: skip
_ARITHMETIC = frozenset(("add", "sub", "mul", "div", "min", "max", "pow", "mod", "fmod"))


def check_types(value: Expression) -> None:
    """Raises InvalidExpression for an operation that its operands' type does not have (exp of integers, ...)."""
    for node in nodes(value):
        match node:
            case Unary(op, operand):
                dtype = operand.dtype
                _refuse_short(op, dtype)
                if op in _FLOAT_ONLY and not dtype.is_float:
                    raise InvalidExpression(f"{op} of {dtype.value}: cast to a float type first")
                if op in ("neg", "abs", "sign") and dtype is DType.BOOL:
                    raise InvalidExpression(f"{op} of bool: cast to a number first")
                if op == "not" and dtype is not DType.BOOL:
                    raise InvalidExpression(f"not of {dtype.value}: compare with zero instead")
            case Compare(op, left, _):
                _refuse_short(op, left.dtype)
            case Binary(op, left, _):
                dtype = left.dtype
                _refuse_short(op, dtype)
                if op in _ARITHMETIC and dtype is DType.BOOL:
                    raise InvalidExpression(f"{op} of bool: use and, or, xor, or cast to a number first")
                if op in ("and", "or", "xor") and dtype.is_float:
                    raise InvalidExpression(f"{op} of {dtype.value}: it is for bool and integers")
                if op in ("shl", "shr") and not dtype.is_integer:
                    raise InvalidExpression(f"{op} of {dtype.value}: it is for integers")
            case Reduce(_, axes, operand):
                if operand.dtype is DType.BOOL:
                    raise InvalidExpression("a reduction of bool: cast to a number first")
                if len(set(axes)) != len(axes):
                    raise InvalidExpression("a reduction names an axis twice")
                if node is not value:
                    raise InvalidExpression("a reduction inside an expression: give it a stage of its own")


def _refuse_short(op: str, dtype: DType) -> None:
    if dtype.is_short:
        raise InvalidExpression(f"{op} of {dtype.value}: cast to {dtype.held.value} first")


def check_loads(value: Expression) -> None:
    """Raises InvalidExpression for a load that may lie outside its buffer where no Select keeps it inside."""
    pending: list[tuple[Expression, Facts]] = [(value, ())]
    seen: set[tuple[int, Facts]] = set()
    while pending:
        node, facts = pending.pop()
        if (id(node), facts) in seen:
            continue
        seen.add((id(node), facts))
        match node:
            case Load():
                _check_load(node, facts)
            case Select(condition, yes, no):
                pending += [(condition, facts), (yes, facts + facts_of(condition))]
                pending.append((no, facts + facts_of(condition, False)))
            case _:
                pending += [(operand, facts) for operand in node.operands]


def _check_load(load: Load, facts: Facts) -> None:
    buffer = load.buffer
    for dim, (one, size) in enumerate(zip(load.indices, buffer.shape, strict=True)):
        if not holds(one, facts) or not holds(one * -1 + (size - 1), facts):
            low, high = bounds(one)
            raise InvalidExpression(
                f"'{buffer.name}' has {size} elements in dim {dim} and is read from {low} to {high}: "
                f"guard the load with a Select on the index"
            )


def check_variables(value: Expression, known: frozenset[Variable]) -> None:
    """Raises InvalidExpression for a variable that no loop around the expression has."""
    for node in nodes(value):
        indices: tuple[Index, ...] = ()
        if isinstance(node, Load):
            indices = node.indices
        elif not node.operands and hasattr(node, "index"):
            indices = (node.index,)
        for one in indices:
            for variable, _ in one.terms:
                if variable not in known:
                    raise InvalidExpression(f"variable '{variable.name}' is no axis of the stage that uses it")
