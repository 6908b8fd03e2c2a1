"""Sums and maxima of many terms: in lanes side by side, which LLVM makes vectors of, and whose error grows slowly."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from graphopt.program.regions.routines.stage import Stage
from kernels.dtype import DType
from kernels.routine.writer import integer, maximum, number, quotient
from kernels.tensor.expression import Expression, ExpressionLike, Number
from kernels.tensor.expression import expression as as_expression

LANES = 32
WIDE = 128  # of joins that cost one instruction, so that a lane's last one has ended when its next one begins
FEW = 8  # terms that are summed one after the other

Term = Callable[[Expression], Expression]
Join = Callable[[Expression, Expression], Expression]


class Lanes:
    """Partial sums in scratch, or what else `join` makes of terms: begun once, added to in any number of loops."""

    def __init__(
        self, w: Stage, kind: DType, first: float = 0, join: Join = Expression.__add__, lanes: int = LANES
    ) -> None:
        self._w, self._kind, self._join, self._lanes = w, kind, join, lanes
        self._held = w.scratch(kind, (lanes,))
        with w.loop(lanes) as lane:
            self._held[lane] = number(first, kind)

    def add(self, count: ExpressionLike, term: Term, *beside: Lanes) -> None:
        """The terms of 0 to `count`, exclusive; to others `beside`, of as many lanes, too."""
        w, lanes, all_of = self._w, self._lanes, (self, *beside)
        rounds = w.local(DType.I64, quotient(integer(count), lanes))
        with w.loop(rounds) as turn:
            for one in all_of:
                with w.loop(lanes) as lane:
                    one._held[lane] = one._join(one._held[lane], term(turn * lanes + lane))
        with w.loop(count, rounds * lanes) as place:
            for one in all_of:
                one._held[0] = one._join(one._held[0], term(place))

    def total(self) -> Expression:
        """All of them, joined in pairs."""
        half = self._lanes // 2
        while half:
            with self._w.loop(half) as lane:
                self._held[lane] = self._join(self._held[lane], self._held[lane + half])
            half //= 2
        return self._w.local(self._kind, self._held[0])


def largest_of(w: Stage, kind: DType, count: ExpressionLike, term: Term) -> Expression:
    """The largest `term` of 0 to `count`, exclusive; -inf of none, NaN where one is."""
    lanes = Lanes(w, kind, -inf, maximum)
    lanes.add(count, term)
    return lanes.total()


def summed(w: Stage, kind: DType, count: ExpressionLike, term: Term) -> Expression:
    """The sum of `term` of 0 to `count`, exclusive; few terms are summed in their order."""
    known = as_expression(count, DType.I64)
    if isinstance(known, Number) and known.value < FEW:
        total = w.local(kind, number(0, kind))
        with w.loop(known) as place:
            w.set(total, total + term(place))
        return total
    lanes = Lanes(w, kind)
    lanes.add(known, term)
    return lanes.total()
