"""Walks over expressions: which loads and variables they have, and rebuilding them with parts replaced.

Expressions are graphs: an operand that is used twice may be one object. Every walk visits it once, at any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kernels.tensor.expression import (
    Binary,
    Cast,
    Compare,
    Expression,
    Index,
    Load,
    Position,
    Reduce,
    Select,
    Unary,
    Variable,
)


def nodes(value: Expression) -> Iterator[Expression]:
    """Every node once, parents before the operands that only they use."""
    pending, seen = [value], {id(value)}
    while pending:
        node = pending.pop()
        yield node
        for operand in reversed(node.operands):
            if id(operand) not in seen:
                seen.add(id(operand))
                pending.append(operand)


def postorder(value: Expression) -> Iterator[Expression]:
    """Every node once, operands first."""
    pending, done = [value], set[int]()
    while pending:
        node = pending[-1]
        missing = [operand for operand in node.operands if id(operand) not in done]
        if missing:
            pending += reversed(missing)
            continue
        pending.pop()
        if id(node) not in done:
            done.add(id(node))
            yield node


def loads(value: Expression) -> Iterator[Load]:
    """Every load, from left to right."""
    return (node for node in nodes(value) if isinstance(node, Load))


def variables(value: Expression) -> frozenset[Variable]:
    """The variables that indices and positions use; the axes of a reduction are among them where they are used."""
    found: set[Variable] = set()
    for node in nodes(value):
        if isinstance(node, Load):
            found.update(v for one in node.indices for v, _ in one.terms)
        elif isinstance(node, Position):
            found.update(v for v, _ in node.index.terms)
    return frozenset(found)


def rebuild(value: Expression, leaf: Callable[[Expression], Expression]) -> Expression:
    """The expression with `leaf` applied to every Number, Position and Load; unchanged parts are the same objects."""
    made: dict[int, Expression] = {}
    for node in postorder(value):
        if node.operands:
            made[id(node)] = with_operands(node, tuple(made[id(operand)] for operand in node.operands))
        else:
            made[id(node)] = leaf(node)
    return made[id(value)]


def with_operands(value: Expression, operands: tuple[Expression, ...]) -> Expression:
    """The same operation on other operands; itself where they are the same objects."""
    if all(new is old for new, old in zip(operands, value.operands, strict=True)):
        return value
    match value:
        case Unary(op, _):
            return Unary(op, operands[0])
        case Binary(op, _, _):
            return Binary(op, *operands)
        case Compare(op, _, _):
            return Compare(op, *operands)
        case Select():
            return Select(*operands)
        case Cast(kind, _):
            return Cast(kind, operands[0])
        case Reduce(op, axes, _):
            return Reduce(op, axes, operands[0])
    raise AssertionError(f"no rule for {type(value).__name__}")


def substitute_index(one: Index, by: Mapping[Variable, Index]) -> Index:
    """The index with variables replaced by indices."""
    if not any(variable in by for variable, _ in one.terms):
        return one
    total = Index((), one.offset)
    for variable, factor in one.terms:
        total = total + (by[variable] * factor if variable in by else Index(((variable, factor),)))
    return total


def substitute(value: Expression, by: Mapping[Variable, Index]) -> Expression:
    """The expression with variables replaced by indices in every load and position."""

    def leaf(node: Expression) -> Expression:
        if isinstance(node, Load):
            indices = tuple(substitute_index(one, by) for one in node.indices)
            return node if indices == node.indices else Load(node.buffer, indices)
        if isinstance(node, Position):
            return Position(substitute_index(node.index, by))
        return node

    return rebuild(value, leaf)
