"""Dims of inputs that are known from others: a model runs only where dims that meet in an operator are equal.

MatMul(scores[1, 12, 1, a + 1], values[1, 12, b + 1, 64])   -->   b = a
GroupQueryAttention(queries[1, 1, 256], old keys[1, 2, past, d]), 4 heads   -->   d = 64
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import sympy

from graphopt.model import dims
from graphopt.model.facts import Facts
from graphopt.model.nodes import input_at, int_attribute
from graphopt.model.operators.contrib import DOMAIN
from graphopt.model.operators.table import BROADCASTING

_Shapes = Sequence[dims.Dims | None]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Dims that are equal, or of which one may be 1 where they `broadcast`."""

    one: dims.Dim
    other: dims.Dim
    broadcast: bool = False


class Ties:
    """The equations between dims of a model's inputs, as its operators make them."""

    def __init__(self, graph: Iterable[ir.Node], facts: Facts) -> None:
        pairs = {pair for node in graph for pair in _meeting(facts, node) if pair.one != pair.other}
        found = {(sympy.expand(pair.one - pair.other), pair.broadcast) for pair in pairs}
        self._differences = sorted(found, key=str)

    def following(self, known: Iterable[str] = (), *, certainly: bool = False) -> dict[str, dims.Dim]:
        """Names of dims as formulas of those `known`, each of names before it; or as numbers, whatever is known.

        `certainly`: without dims that broadcast, of which one could also be 1.
        """
        found, names, grows = dict[str, dims.Dim](), set(known), True
        while grows:
            grows = False
            for difference, broadcast in self._differences:
                if broadcast and certainly:
                    continue
                solved = _solved(difference, names, broadcast=broadcast)
                if solved is not None:
                    name, formula = solved
                    found[name] = formula
                    names.add(name)
                    grows = True
        return found

    def leading(self, names: Sequence[str], known: Iterable[str] = ()) -> list[str]:
        """Those of the names that tell all of them with those `known`: a sum is told by what it adds up."""
        chosen: list[str] = []
        for name in sorted(names, key=self._is_sum):
            if name not in self.following([*known, *chosen], certainly=True):
                chosen.append(name)
        return [name for name in names if name in chosen]

    def _is_sum(self, name: str) -> bool:
        """Whether an equation has the name alone on one side, and several terms on the other."""
        for difference, _ in self._differences:
            terms = {str(one): factor for one, factor in difference.as_coefficients_dict().items()}
            sign = terms.pop(name, 0)
            if sign and len(terms) > 1 and all(factor * sign < 0 for factor in terms.values()):
                return True
        return False


def _meeting(facts: Facts, node: ir.Node) -> Iterator[_Pair]:
    """Dims of operands of a node that have to be equal."""
    shapes = [None if value is None else facts.shape(value) for value in node.inputs]
    if node.op_type in BROADCASTING:
        yield from _broadcast([one for one in shapes if one is not None])
    rule = _RULES.get((node.domain, node.op_type))
    if rule is not None:
        yield from rule(node, [*shapes, *(None,) * (_MOST_OPERANDS - len(shapes))], facts)


def _matrices(_: ir.Node, shapes: _Shapes, __: Facts) -> Iterator[_Pair]:
    left, right = shapes[:2]
    if left and right:
        yield _Pair(left[-1], right[-2 if len(right) > 1 else -1])
        yield from _broadcast([left[:-2], right[:-2]])


def _columns_of_bits(node: ir.Node, shapes: _Shapes, _: Facts) -> Iterator[_Pair]:
    if shapes[0]:
        yield _Pair(shapes[0][-1], int_attribute(node, "K", 0))


def _channels(node: ir.Node, shapes: _Shapes, _: Facts) -> Iterator[_Pair]:
    image, weights = shapes[:2]
    if image and weights:
        yield _Pair(image[1], weights[1] * int_attribute(node, "group", 1))


def _features(_: ir.Node, shapes: _Shapes, __: Facts) -> Iterator[_Pair]:
    rows, weights = shapes[:2]
    if rows and weights:
        yield _Pair(rows[-1], weights[-1])


def _joined(node: ir.Node, shapes: _Shapes, _: Facts) -> Iterator[_Pair]:
    first, *others = [one for one in shapes if one] or [()]
    for other in others:
        axis = int_attribute(node, "axis", 0) % len(first)
        yield from (_Pair(*pair) for at, pair in enumerate(zip(first, other, strict=False)) if at != axis)


def _attention(_: ir.Node, shapes: _Shapes, __: Facts) -> Iterator[_Pair]:
    keys, values = shapes[4:6]
    if keys and values:
        yield _Pair(keys[-2], values[-2])


def _heads(node: ir.Node, shapes: _Shapes, _: Facts) -> Iterator[_Pair]:
    """MultiHeadAttention: the scores' bias has a column for each old and each new row of keys."""
    query, keys, bias, past = shapes[0], shapes[1], shapes[5], shapes[6]
    heads = int_attribute(node, "num_heads", 0)
    if not query or len(query) != 3 or not heads:
        return
    yield from _caches(shapes[6:8], query[0], heads, dims.quotient(query[2], heads))
    if bias and past and keys and len(keys) == 3:
        yield _Pair(bias[-1], past[2] + keys[1])
        yield _Pair(bias[-2], query[1])


def _grouped(node: ir.Node, shapes: _Shapes, facts: Facts) -> Iterator[_Pair]:
    """GroupQueryAttention: a cache that grows holds as many rows as the mask behind the count of keys has columns."""
    query, past, total = shapes[0], shapes[3], input_at(node, 6)
    heads, groups = (int_attribute(node, one, 0) for one in ("num_heads", "kv_num_heads"))
    if not query or len(query) != 3 or not heads or not groups:
        return
    width = heads if input_at(node, 1) is not None else heads + 2 * groups
    yield from _caches(shapes[3:5], query[0], groups, dims.quotient(query[2], width))
    held = None if total is None else facts.content(total)
    present = node.outputs[1].shape if len(node.outputs) > 1 else None
    grows = present is not None and len(present) == CACHE_RANK and str(present[2]) != str(past[2] if past else None)
    grows = grows and not int_attribute(node, "sliding_window_cache", 0)
    if past and held is not None and held.size == 1 and grows:
        yield _Pair(dims.normal(held.reshape(-1)[0]), past[2] + query[1])


def _caches(caches: _Shapes, batch: dims.Dim, heads: int, size: dims.Dim | None) -> Iterator[_Pair]:
    """Old keys and values are [batch, heads, rows, size]."""
    for one in caches:
        if one and len(one) == CACHE_RANK:
            yield _Pair(one[0], batch)
            yield _Pair(one[1], heads)
            if size is not None:
                yield _Pair(one[3], size)
    keys, values = caches
    if keys and values and len(keys) == len(values) == CACHE_RANK:
        yield _Pair(keys[2], values[2])


CACHE_RANK = 4
_MOST_OPERANDS = 8
_RULES: dict[tuple[str, str], Callable[[ir.Node, _Shapes, Facts], Iterator[_Pair]]] = {
    ("", "Attention"): _attention,
    ("", "Concat"): _joined,
    ("", "Conv"): _channels,
    ("", "GRU"): _features,
    ("", "LSTM"): _features,
    ("", "MatMul"): _matrices,
    ("", "RNN"): _features,
    (DOMAIN, "GroupQueryAttention"): _grouped,
    (DOMAIN, "MatMulNBits"): _columns_of_bits,
    (DOMAIN, "MultiHeadAttention"): _heads,
}


def _broadcast(shapes: Sequence[Sequence[dims.Dim]]) -> Iterator[_Pair]:
    for number, one in enumerate(shapes):
        for other in shapes[number + 1 :]:
            pairs = zip(reversed(one), reversed(other), strict=False)
            yield from (_Pair(a, b, broadcast=True) for a, b in pairs if a != 1 and b != 1)


def _solved(difference: sympy.Expr, known: set[str], *, broadcast: bool) -> tuple[str, dims.Dim] | None:
    """The one unknown name of an equation that has it as a term of its own, and what it is then; None without one.

    Where dims `broadcast` one may be 1, so that they are taken as equal where both are free alone: a + c = b.
    """
    names = {symbol.name: symbol for symbol in difference.free_symbols}
    unknown = [name for name in names if name not in known]
    terms = difference.as_coefficients_dict()
    if len(unknown) != 1 or abs(terms.get(names[unknown[0]], 0)) != 1:
        return None
    (name,) = unknown
    formula = dims.normal(names[name] - difference / terms[names[name]])
    if not isinstance(formula, int) and names[name] in formula.free_symbols:
        return None
    if broadcast and (isinstance(formula, int) or not _is_step(formula)):
        return None
    return None if isinstance(formula, int) and formula < 0 else (name, formula)


def _is_step(formula: sympy.Expr) -> bool:
    """Whether it is another dim, or one longer by a number."""
    _, behind = formula.as_coeff_Add()
    return bool(behind.is_Symbol)
