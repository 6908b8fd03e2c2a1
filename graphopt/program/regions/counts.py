"""Dims that data decides: the most that each can be, for which there is room, and the count that a run finds.

The results of NonZero, Compress, Unique and NonMaxSuppression lie in memory for the most, with the strides of the most;
zeros follow what was found. What reads them may have dims that follow from the count: a sum of two, or a product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod

import onnx_ir as ir
import sympy

from graphopt.errors import NotLowered
from graphopt.model.dims import Dim
from graphopt.model.facts import Facts
from graphopt.model.nodes import describe
from graphopt.model.operators.table import operator_of
from graphopt.program.regions.view import View
from kernels.routine.writer import integer, maximum, minimum
from kernels.tensor.expression import Expression


class Counts:
    """The counts of a graph: symbols of facts that data decides."""

    def __init__(self, facts: Facts, graph: ir.Graph) -> None:
        self._most: dict[sympy.Expr, int] = {}
        self.places: dict[sympy.Expr, View] = {}  # where runs store them
        self.makers: dict[sympy.Expr, ir.Node] = {}  # who stores them
        for node in graph:
            operator = operator_of(node)
            for counting in () if operator is None or operator.counted is None else operator.counted(node, facts):
                most = self.most(counting.most)
                for output, axis in zip(node.outputs, counting.axes, strict=False):
                    shape = facts.shape(output)
                    dim = None if axis is None or shape is None else shape[axis]
                    if most is None or isinstance(dim, int):
                        continue
                    if isinstance(dim, sympy.Symbol) and dim not in self.makers:
                        self._most[dim], self.makers[dim] = most, node

    def __bool__(self) -> bool:
        return bool(self._most)

    def most(self, dim: Dim) -> int | None:
        """The largest that a dim can be; None where that does not follow from its counts."""
        if isinstance(dim, (int, sympy.Integer)):
            return int(dim) if dim >= 0 else None  # of n - 1 the largest would follow, but not whether it is a dim
        if dim in self._most:
            return self._most[dim]
        parts = [self.most(part) for part in dim.args]
        known = [part for part in parts if part is not None]
        if not parts or len(known) != len(parts):
            return None
        return next((fold(known) for kind, fold, _ in _folds() if isinstance(dim, kind)), None)

    def expression(self, dim: Dim, count: Callable[[View], Expression]) -> Expression:
        """A dim that has a largest, for a routine; `count` reads one that a run has stored.

        Raises NotLowered where the node that finds it is one that stores none.
        """
        if isinstance(dim, (int, sympy.Integer)):
            return integer(int(dim))
        if dim in self._most:
            if dim not in self.places:
                raise NotLowered(f"{describe(self.makers[dim])} stores no count for what reads its result's dims.")
            return count(self.places[dim])
        step = next(step for kind, _, step in _folds() if isinstance(dim, kind))
        return reduce(step, (self.expression(part, count) for part in dim.args))


def _folds() -> tuple[tuple[type, Callable[[list[int]], int], Callable[[Expression, Expression], Expression]], ...]:
    """What grows with each of its parts."""
    return (
        (sympy.Add, sum, lambda a, b: a + b),
        (sympy.Mul, prod, lambda a, b: a * b),
        (sympy.Max, max, maximum),
        (sympy.Min, min, minimum),
    )
