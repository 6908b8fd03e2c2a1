"""Ways to tile around the worst step of a model, by estimate.

Stretches of the order around the worst step are tried, from where little lives to where little lives, along every axis,
in more and more tiles. What has been estimated once is not estimated again when less is aimed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

import onnx_ir as ir

from graphopt.memory.tensors import ModelMemory
from graphopt.memory.tiling.axes import axes_from
from graphopt.memory.tiling.estimate import Estimate, Stretch
from graphopt.memory.tiling.locality import SteadyFacts
from graphopt.memory.tiling.region import Join, Region, Run, Step, Tiling, members_of, region_of
from graphopt.memory.tiling.write import split_around
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.parts import Range
from graphopt.model.operators.table import formula_of, operator_of
from memplan.work import Work

COUNTS = (2, 3, 4, 6, 8, 12, 16)
PROGRAM_COUNTS = (2, 3, 4, 5, 6, 8, 12, 16)  # where tiles may have any size
REACH = 40  # operators before and behind the worst step
SEEDS = 6  # operators from the worst step on, whose results are tiled
ENDS = 7  # of a stretch, to each side
STEPS_PER_RUN = 40_000  # of a model that is estimated
# Results of a product below which libraries sum in another order, so that bits differ. MLAS sums in other blocks where
# a thread has at most 64 columns, but sums of 128 products or fewer always in one; 192 columns are more for each of two
# threads, 1,024 for each of six. It also has kernels of its own for single rows.
LEAST_COLUMNS, MANY_COLUMNS = 192, 1024
FEW_COLUMNS = 65  # for one thread; its kernels for blocks of channels sum alike for any number of columns
ONE_BLOCK = 128
LEAST_ROWS = 16
PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Attention")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """What tiles may be, and how they lie."""

    columns: int  # the fewest of a convolution's tile, 0: any size there is
    views: bool = False  # pieces are cut without a copy, as in a program
    vector: int = 1  # channels or columns that kernels compute at once, which tiles do not cut
    further: bool = False  # axes behind the first one that keeps the budget by estimate, and finer estimates


@dataclass(frozen=True, slots=True)
class Candidate:
    """A region in tiles, and what the stretch around it takes then."""

    region: Region
    count: int
    keep: bool  # what two tiles need, instead of computing it twice
    vector: int
    estimate: Estimate
    added: float  # nanoseconds

    def name(self) -> tuple[tuple[str, ...], int, int, bool]:
        """What tells it from others of the same model."""
        members = tuple(nodes.used_outputs(node)[0].name or "" for node in self.region.members)
        axis = self.region.axes[nodes.used_outputs(self.region.members[0])[0]]
        return members, axis, self.count, self.keep


class Remembered(Generic[T]):
    """An iterator that can be gone through again: what was drawn before comes first, and nothing is computed twice."""

    def __init__(self, source: Iterator[T]) -> None:
        self._drawn: list[T] = []
        self._source = source

    def __iter__(self) -> Iterator[T]:
        at = 0
        while True:
            if at == len(self._drawn):
                following = next(self._source, None)
                if following is None:
                    return
                self._drawn.append(following)
            yield self._drawn[at]
            at += 1


class Around:
    """The ways to tile around the worst step of a model, which needs `live` bytes at each operator of its `memory`.

    `first` is an operator to tile around instead.
    """

    def __init__(
        self, model: ir.Model, memory: ModelMemory, live: Sequence[int], kind: Kind, work: Work,
        first: str | None = None,
    ) -> None:  # fmt: skip
        self._facts, self._memory, self._live, self._kind, self._work = SteadyFacts(model), memory, live, kind, work
        self._worst = max(range(len(live)), key=live.__getitem__)
        if first is not None:
            self._worst = next(at for at, one in enumerate(memory.graph.operators) if one.name == first)
        self._by_axes = Remembered(self._stretches_by_axes())

    def candidates(self, budget: int) -> Iterator[list[Candidate]]:
        """From the most promising one, where `budget` bytes are aimed at.

        The first ones are along the first axes of which one keeps the budget by estimate; further ones, along one more
        axis each, are for where none of these is what its estimate says.
        """
        found: list[Candidate] = []
        for stretches in self._by_axes:
            for stretch in stretches:
                if found and self._work.over():
                    yield _best_first(found, budget)
                    return
                found += stretch.candidates(budget)
            if any(one.estimate.peak <= budget for one in found):
                yield _best_first(found, budget)
                if not self._kind.further:
                    return
                found = []
        if found:
            yield _best_first(found, budget)

    def _stretches_by_axes(self) -> Iterator[list[_InTiles]]:
        for axes in _axes(self._facts, self._memory, self._worst):
            tried = [self._in_tiles(axes, *ends) for ends in _stretches(self._memory, axes, self._worst)]
            yield [one for one in tried if one is not None]

    def _in_tiles(self, axes: Mapping[ir.Value, int], first: int, last: int) -> _InTiles | None:
        """The stretch between two operators; None where nothing of it has tiles, or its ends alone take as much."""
        facts, memory, least = self._facts, self._memory, max(self._live[first : last + 1])
        order = [memory.nodes[one.name] for one in memory.graph.operators[first : last + 1]]
        members = members_of(facts, order, axes)
        region = region_of(facts, members, axes) if members else None
        if region is None or (self._kind.views and all(map(_moves, region.members))):
            return None
        stretch = Stretch(memory, facts, first, last, views=self._kind.views, joined=self._kind.further)
        if stretch.least >= least:
            return None
        head, behind, tail = split_around(order, set(members))
        tiling = Tiling(facts, region, self._kind.vector)
        return _InTiles(tiling, facts, stretch, least, (head, [*behind, *tail]), self._kind, self._work)


def _best_first(found: Sequence[Candidate], budget: int) -> list[Candidate]:
    """The best of each region with either model first: where an estimate is wrong, it is of all numbers of tiles."""
    by_worth = sorted(found, key=lambda one: (max(one.estimate.peak, budget), one.added))
    best = {(one.region.members, one.keep): one for one in reversed(by_worth)}
    others = [one for one in by_worth if best[one.region.members, one.keep] is not one]
    return [*(one for one in by_worth if best[one.region.members, one.keep] is one), *others]


class _InTiles:
    """A stretch of the order whose nodes with an axis are computed in tiles."""

    def __init__(
        self, tiling: Tiling, facts: Facts, stretch: Stretch, least: int, around: tuple[list[ir.Node], list[ir.Node]],
        kind: Kind, work: Work,
    ) -> None:  # fmt: skip
        self._tiling, self._facts, self._stretch, self._least = tiling, facts, stretch, least
        by_node = dict(zip(stretch.nodes, stretch.operators, strict=True))
        self._before, self._after = ([by_node[node] for node in some] for some in around)
        self._kind, self._work = kind, work
        self._untiled = sum(one.time for one in stretch.operators)
        self._estimates = [Remembered(self._in_counts(keep)) for keep in ((False, True) if kind.views else (False,))]

    def candidates(self, budget: int) -> Iterator[Candidate]:
        """What needs less than the stretch does, in ever more tiles until the budget is kept."""
        for estimates in self._estimates:
            least = self._least
            for one in estimates:
                if one.estimate.peak >= least:
                    continue
                least = one.estimate.peak
                yield one
                if least <= budget:
                    break

    def _in_counts(self, keep: bool) -> Iterator[Candidate]:
        kind = self._kind
        for count in PROGRAM_COUNTS if kind.views else COUNTS:
            steps = self._tiling.steps(count, keep=keep)
            if steps is None or not all(_keeps_bits(self._facts, step, kind.columns) for step in steps):
                return
            if keep and not any(isinstance(step, Join) and step.whole.axis is not None for step in steps):
                return  # tiles have nothing in common
            self._work.spend(STEPS_PER_RUN * (len(self._before) + len(steps) + len(self._after)))
            estimate = self._stretch.tiled(self._before, steps, self._after)
            yield Candidate(self._tiling.region, count, keep, kind.vector, estimate, estimate.time - self._untiled)


def _axes(facts: Facts, memory: ModelMemory, worst: int) -> Iterator[Mapping[ir.Value, int]]:
    """For each axis of the worst step's result, the axes of values around it; then of the results that follow."""
    operators = memory.graph.operators
    near = [memory.nodes[one.name] for one in operators[max(0, worst - REACH) : worst + REACH + 1]]
    known: list[Mapping[ir.Value, int]] = []
    for one in operators[worst : worst + SEEDS]:
        seed = nodes.used_outputs(memory.nodes[one.name])
        for axis in range(facts.rank(seed[0]) or 0) if seed else ():
            if any(axes.get(seed[0]) == axis for axes in known):
                continue
            found = axes_from(facts, seed[0], axis, near)
            if len(found) > 1:
                known.append(found)
                yield found


def _stretches(memory: ModelMemory, axes: Mapping[ir.Value, int], worst: int) -> list[tuple[int, int]]:
    """First and last operator: where least lives before, and behind."""
    operators = memory.graph.operators
    across = _across(memory)
    tiled = [_tiled_result(memory.nodes[one.name], axes) for one in operators]

    def begins_alone(step: int) -> bool:
        node = memory.nodes[operators[step].name]
        made = [value for value in node.inputs if value is not None and value.producer() is not None]
        return not any(value in axes and _joins(value) is node for value in made)

    def ends_alone(step: int) -> bool:
        value = tiled[step]
        user = None if value is None else _joins(value)
        return user is None or user.outputs[0] not in axes

    begins = [step for step in range(worst, max(-1, worst - REACH - 1), -1) if tiled[step] and begins_alone(step)]
    ends = [step for step in range(worst, min(len(operators), worst + REACH + 1)) if tiled[step] and ends_alone(step)]
    firsts = _front(begins, [across[step] for step in begins])
    lasts = _front(ends, [across[step + 1] for step in ends])
    return [(first, last) for first in firsts for last in lasts]


def _across(memory: ModelMemory) -> list[int]:
    """Bytes that live between each step and the one before; where views by other strides are known, bytes once."""
    operators = memory.graph.operators
    sizes = {value.name: value.size for value in memory.graph.values if value.kind == "temporary"}
    last_use = {name: step for step, one in enumerate(operators) for name in one.inputs}
    lives = {
        name: range(step + 1, last_use.get(name, step) + 1)
        for step, one in enumerate(operators)
        for name in one.outputs
    }
    around: dict[str, list[range]] = {}  # of a value, when those live in which it lies
    for share in memory.graph.shares if memory.strides else ():
        if not share.overwrites and share.of in lives:
            around.setdefault(share.value, []).append(lives[share.of])
    across = [0] * (len(operators) + 1)
    for name, steps in lives.items():
        for step in steps:
            across[step] += 0 if any(step in one for one in around.get(name, ())) else sizes.get(name, 0)
    return across


def _tiled_result(node: ir.Node, axes: Mapping[ir.Value, int]) -> ir.Value | None:
    used = nodes.used_outputs(node)
    return used[0] if used and used[0] in axes else None


def _joins(value: ir.Value) -> ir.Node | None:
    """The elementwise node that alone reads a value: kernels compute both together, so tiles keep them together."""
    users = {use.node for use in value.uses()}
    if len(users) != 1 or value.is_graph_output():
        return None
    (user,) = users
    return None if formula_of(user) is None else user


def _front(steps: Sequence[int], costs: Sequence[int]) -> list[int]:
    """Of steps from near to far, those that cost less than all nearer ones: the nearest and the cheapest among them."""
    found: list[tuple[int, int]] = []
    for step, cost in zip(steps, costs, strict=True):
        if not found or cost < found[-1][1]:
            found.append((step, cost))
    if len(found) > ENDS:
        stride = (len(found) - 1) / (ENDS - 1)
        found = [found[round(number * stride)] for number in range(ENDS)]
    return [step for step, _ in found]


def _moves(node: ir.Node) -> bool:
    """Whether the node only moves elements, as a Slice does: a view in a program, of which tiles save nothing."""
    operator = operator_of(node)
    return operator is not None and operator.moves


def _keeps_bits(facts: Facts, step: Step, columns: int) -> bool:
    """Whether libraries compute the tile as they compute the whole, as far as its size tells."""
    if not columns or not isinstance(step, Run) or step.node.op_type not in PRODUCTS:
        return True
    piece, operand = step.outputs[0], step.node.inputs[0]
    assert piece.axis is not None and operand is not None, "products have an operand, a run makes pieces"
    if step.node.op_type == "ConvTranspose":  # a product of the weights and the operand, whose windows are added up
        shape = _shape(facts, operand, step.how.inputs[0])
    else:
        shape = _shape(facts, piece.value, Range(piece.axis, piece.low, piece.high))
    if step.node.op_type == "Conv" and piece.axis == 1:
        return nodes.int_attribute(step.node, "group", 1) > 1 or shape[1] >= LEAST_ROWS
    if step.node.op_type in ("Conv", "ConvTranspose"):
        weights = _shape(facts, step.node.inputs[1], None)
        depth = weights[0] if step.node.op_type == "ConvTranspose" else prod(weights[1:])
        return piece.axis == 0 or depth <= ONE_BLOCK or prod(shape[2:]) >= columns
    if piece.axis == len(shape) - 1:
        return False  # fewer columns may be another kernel
    return piece.axis < len(shape) - 2 or shape[-2] >= LEAST_ROWS


def _shape(facts: Facts, value: ir.Value | None, of: Range | None) -> list[int]:
    shape = [] if value is None else list(facts.static_shape(value) or ())
    if of is not None:
        shape[of.axis] = of.high - of.low
    return shape
