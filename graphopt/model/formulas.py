"""Names of dims that are formulas of others: "past + 1" follows "past"."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from functools import reduce
from math import lcm

import sympy

from graphopt.model import dims
from kernels.errors import KernelsError
from kernels.size import Atom, Dim, Size, greatest, least

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def formula_at(text: str, sizes: Mapping[str, Size | int]) -> Size | int | None:
    """What a formula of dims gives; None for what is no such formula."""
    try:
        return _value(ast.parse(text, mode="eval").body, sizes)
    except (SyntaxError, ValueError, RecursionError, KeyError, ZeroDivisionError, KernelsError):
        return None


def with_numbers(text: str, numbers: Mapping[str, int]) -> str:
    """A formula with numbers in the place of these names."""

    class _Numbered(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Constant(numbers[node.id]) if node.id in numbers else node

    return ast.unparse(_Numbered().visit(ast.parse(text, mode="eval")))


def dim_at(dim: object, sizes: Mapping[str, Size | int]) -> Size | int | None:
    """What a dim gives, of whose symbols each is a name or a formula of names; None for what is none of these sizes."""
    try:
        return _of_expression(sympy.sympify(dim), sizes)
    except (KeyError, ValueError, TypeError, ZeroDivisionError, KernelsError):
        return None


def expression_of(size: Size | int) -> dims.Dim:
    """A size as a dim of the model: what `dim_at` gives the size of."""
    if isinstance(size, int):
        return size
    terms = (sympy.Mul(factor, *map(_atom, product)) for product, factor in size.terms)
    return dims.normal(sympy.Add(*terms))


def _atom(atom: Atom) -> sympy.Expr:
    if isinstance(atom, Dim):
        return dims.symbol(atom.name)
    left, right = expression_of(atom.left), expression_of(atom.right)
    if atom.kind == "quotient":
        return sympy.sympify(dims.floor(sympy.sympify(left) / right))
    return (sympy.Min if atom.kind == "least" else sympy.Max)(left, right)


def _of_expression(dim: sympy.Expr, sizes: Mapping[str, Size | int]) -> Size | int:
    """Raises KeyError for anything but symbols, whole numbers, sums, products, powers, Max, Min and floor."""
    if dim.is_Integer:
        return int(dim)
    if dim.is_Symbol:
        found = sizes[dim.name] if dim.name in sizes else formula_at(dim.name, sizes)
        if found is None:
            raise KeyError(dim.name)
        return found
    if isinstance(dim, sympy.Pow) and dim.exp.is_Integer and dim.exp > 0:
        return reduce(operator.mul, [_of_expression(dim.base, sizes)] * int(dim.exp))
    if isinstance(dim, sympy.floor):
        parts = sympy.expand(dim.args[0]).as_coefficients_dict()
        below = lcm(*(int(factor.q) for factor in parts.values()))
        above = [_of_expression(term, sizes) * int(factor * below) for term, factor in parts.items()]
        return reduce(operator.add, above) // below
    joined = {sympy.Add: operator.add, sympy.Mul: operator.mul, sympy.Max: greatest, sympy.Min: least}
    if type(dim) not in joined:
        raise KeyError(str(dim))
    return reduce(joined[type(dim)], (_of_expression(part, sizes) for part in dim.args))


def _value(tree: ast.expr, sizes: Mapping[str, Size | int]) -> Size | int:
    """Raises KeyError for anything but names of dims, whole numbers, +, -, *, //, Max, Min and floor of a fraction."""
    match tree:
        case ast.Name(name):
            return sizes[name]
        case ast.Constant(int(number)):
            return number
        case ast.BinOp(left, operation, right):
            found: Size | int = _OPERATORS[type(operation)](_value(left, sizes), _value(right, sizes))
            return found
        case ast.Call(ast.Name("Max" | "Min" as word), [first, *others]):
            choose = greatest if word == "Max" else least
            return reduce(choose, (_value(one, sizes) for one in others), _value(first, sizes))
        case ast.Call(ast.Name("floor"), [inner]):
            above, below = _fraction(inner, sizes)
            return above // below
    raise KeyError(ast.unparse(tree))


def _fraction(tree: ast.expr, sizes: Mapping[str, Size | int]) -> tuple[Size | int, int]:
    """What is above the line, and the number below it."""
    match tree:
        case ast.BinOp(left, ast.Div(), ast.Constant(int(number))):
            above, below = _fraction(left, sizes)
            return above, below * number
        case ast.BinOp(left, (ast.Add() | ast.Sub()) as operation, right):
            (above, below), (other, line) = _fraction(left, sizes), _fraction(right, sizes)
            whole = lcm(below, line)
            total: Size | int = _OPERATORS[type(operation)](above * (whole // below), other * (whole // line))
            return total, whole
    return _value(tree, sizes), 1
