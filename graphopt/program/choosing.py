"""The kernel for a range of sizes: of one candidate, or of two where no one serves few and many alike.

A candidate is judged at some sizes of the range by its estimate over that of the best candidate for this size alone.
The one taken is that whose greatest loss is least, or a steady one nearly so. Where two candidates, one up to a size
and one beyond it, lose clearly less than one, the kernel holds both (kernels/templates/either.py).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, reduce
from typing import Any

from graphopt.program.polynomials import record_like
from kernels.errors import OfOneSize
from kernels.kernel import Kernel
from kernels.size import Dim, Size, at, free
from kernels.target import Target
from kernels.templates.either import either, is_one, up_to
from kernels.templates.template import WORKERS, Template

NEARLY = 1.03  # times the loss of another candidate
APART = 1.03  # times the loss of two: one alone is not good enough
SEVERAL = 2  # dims of a problem, beyond which it is judged at three sizes of each
MOST_TURNS = 12  # sizes at most that may part two candidates
CHOSEN_AT = (1, 2, 4, 7, 16, 33, 128)  # sizes of a dim that a candidate is judged at, besides its least and greatest


@dataclass(frozen=True, slots=True)
class Here:
    """A problem at some size, and how long its best candidate takes by estimate."""

    sizes: Mapping[str, int]
    problem: Any
    best: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A number of a run, and up to which one the first of two candidates serves."""

    name: str
    number: Size | int
    size: int

    def __str__(self) -> str:
        return f"{self.name}={self.size}"


@dataclass(frozen=True)
class Chooser:
    """A template's choice for a problem of any size; `greatest` is the problem at the greatest sizes."""

    template: Template[Any, Any]
    problem: Any
    greatest: Any
    dims: Sequence[Dim]
    target: Target
    given: tuple[Any, ...] = ()  # candidates that it chooses among; none: all

    @cached_property
    def candidates(self) -> tuple[Any, ...]:
        """Those that it chooses among, the likely best one for the greatest sizes first."""
        serves, found = self.template.serves, self.given or self.template.candidates(self.greatest, self.target)
        some = found if serves is None else tuple(one for one in found if serves(self.problem, one))
        if not some:
            raise OfOneSize(f"every way to write {self.template.name} asks for a size")
        return some

    def kernel(self, name: str) -> Kernel:
        """The kernel `name`."""
        single = None if self.template.single is None else self.template.single(self.problem, self.target)
        if single is None:
            return self._of_all(name)
        few = single.template.kernel(single.problem, self.target, f"{name}_one")
        suiting = tuple(filter(single.suits, self.candidates))
        many = replace(self, given=suiting)._of_all(f"{name}_many")
        return _both(few, many, is_one(single.number), name, f"{few.choice}, then {many.choice}")

    def _of_all(self, name: str) -> Kernel:
        candidates = self.candidates
        if self.template.estimate is None:
            return replace(
                self.template.build(self.problem, candidates[0], self.target, name), choice=str(candidates[0])
            )
        alone, loss = self._least(self.points, candidates)
        found = [
            (self._least(few, some), self._least(many, some), turn)
            for turn in self._turns for few, many in [self._cut(turn)] for some in self._together
        ]  # fmt: skip
        best = min(found, key=lambda pair: max(pair[0][1], pair[1][1]), default=None)
        if best is None or loss <= APART * max(best[0][1], best[1][1]) or best[0][0] == best[1][0]:
            return self._built(alone, name, self.points)
        (few, _), (many, _), turn = best
        low, high = self._cut(turn)
        one, other = self._built(few, f"{name}_few", low), self._built(many, f"{name}_many", high)
        return _both(one, other, up_to(turn.number, turn.size), name, f"{few} up to {turn}, then {many}")

    def _built(self, candidate: Any, name: str, points: Sequence[Here]) -> Kernel:
        cut = self._shared(candidate, points)
        return self.template.kernel_of(self.problem, self.target, name, candidate, cut)

    def _shared(self, candidate: Any, points: Sequence[Here]) -> Any:
        """The candidate with blocks for several workers: of those for one point the one that loses least at any."""
        share, estimate, target = self.template.share, self.template.estimate, self.target
        if share is None or estimate is None:
            return candidate
        cuts = list(dict.fromkeys([candidate, *(share(here.problem, candidate, target) for here in points)]))
        if len(cuts) == 1:
            return candidate
        workers = (target.workers,) if target.workers > 1 else WORKERS
        worst = dict.fromkeys(cuts, 0.0)
        kernels = {cut: self.template.build(self.problem, cut, target, "tried") for cut in cuts}
        for here in points:
            times = {}
            for cut, kernel in kernels.items():
                blocks = max(1, at(kernel.blocks if kernel.run_blocks is None else kernel.run_blocks, here.sizes))
                alone = estimate(here.problem, cut, target)
                times[cut] = sum(alone * -(-blocks // one) * one / blocks for one in workers)
            best = min(times.values())
            for cut, time in times.items():
                worst[cut] = max(worst[cut], time / best)
        return min(worst, key=lambda cut: worst[cut])

    @cached_property
    def _own(self) -> list[Dim]:
        """The dims that the problem follows from."""
        names = {dim.name for dim in dims_in(self.problem)}
        return [dim for dim in self.dims if dim.name in names]

    @cached_property
    def points(self) -> list[Here]:
        """The problem at the sizes at which candidates are judged."""
        assert self.template.estimate is not None, "the caller knows that it has one"
        found: dict[Any, Here] = {}
        ladders = [_ladder(dim) for dim in self._own]
        if len(ladders) > SEVERAL:
            ladders = [sorted({one[0], one[len(one) // 2], one[-1]}) for one in ladders]
        for point in itertools.product(*ladders):
            sizes = {dim.name: size for dim, size in zip(self._own, point, strict=True)}
            here = problem_at(self.problem, sizes)
            if here not in found:
                best = self.template.candidates(here, self.target)[0]
                found[here] = Here(sizes, here, self.template.estimate(here, best, self.target))
        return list(found.values())

    @property
    def _turns(self) -> list[Turn]:
        """What may tell sizes that one candidate serves from those of another: a dim, or the product of several."""
        groups = [self._own, *([one] for one in self._own if len(self._own) > 1)]
        found = []
        for dims in groups:
            number: Size | int = reduce(operator.mul, map(free, dims), 1)
            sizes = sorted({at(number, one.sizes) for one in self.points})[:-1]
            name, step = "*".join(dim.name for dim in dims), -(-len(sizes) // MOST_TURNS)
            found += [Turn(name, number, size) for size in sizes[:: step or 1]]
        return found

    def _cut(self, turn: Turn) -> tuple[list[Here], list[Here]]:
        few = [one for one in self.points if at(turn.number, one.sizes) <= turn.size]
        return few, [one for one in self.points if at(turn.number, one.sizes) > turn.size]

    @cached_property
    def _losses(self) -> dict[Any, dict[int, float]]:
        """Of each candidate, what it loses at each point, by the point's identity."""
        estimate = self.template.estimate
        assert estimate is not None, "the caller knows that it has one"
        return {
            one: {
                id(here): estimate(here.problem, one, self.target) / here.best if here.best else 1.0  # nothing to do
                for here in self.points
            }
            for one in self.candidates
        }

    @cached_property
    def _together(self) -> list[tuple[Any, ...]]:
        """Candidates that one kernel may hold two of: of several dims those with one form of their constants.

        Many problems have several, and a file with a second form of all weights would be twice as large.
        """
        form = self.template.form
        if len(self._own) == 1:
            return [self.candidates]
        if form is None:
            return []
        found: dict[Hashable, list[Any]] = {}
        for one in self.candidates:
            found.setdefault(form(one), []).append(one)
        return [tuple(some) for some in found.values()]

    def _least(self, points: Sequence[Here], among: Sequence[Any]) -> tuple[Any, float]:
        """The candidate whose greatest loss at some points is least, or a steady one nearly so; its loss."""
        worst = {one: max((self._losses[one][id(here)] for here in points), default=1.0) for one in among}
        near = [one for one, loss in worst.items() if loss <= NEARLY * min(worst.values())]
        steady = self.template.steady
        chosen = near[0] if steady is None else max(near, key=steady)
        return chosen, worst[chosen]


def _both(few: Kernel, many: Kernel, is_few: Size | int, name: str, choice: str) -> Kernel:
    """Two kernels as one, with the blocks that several workers share of both."""
    shared = None
    if few.shared is not None or many.shared is not None:
        shared = either(few.shared or few, many.shared or many, is_few, f"{name}_shared")
    return replace(either(few, many, is_few, name), choice=choice, shared=shared)


def _ladder(dim: Dim) -> list[int]:
    least = min(max(1, dim.least), dim.most)  # with none there is nothing to do
    return list(dict.fromkeys([least, *(one for one in CHOSEN_AT if least < one < dim.most), dim.most]))


def problem_at(value: Any, sizes: Mapping[str, int]) -> Any:
    """A problem, or a part of one, with the numbers of one size."""
    if isinstance(value, Size):
        return value.at(sizes)
    if isinstance(value, tuple):
        return tuple(problem_at(one, sizes) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return record_like(value, {one.name: problem_at(getattr(value, one.name), sizes) for one in fields(value)})
    return value


def dims_in(value: Any) -> frozenset[Dim]:
    """The free dims that numbers of a problem, or of a part of one, follow from."""
    if isinstance(value, Size):
        return value.dims
    if isinstance(value, tuple):
        return frozenset().union(*map(dims_in, value))
    if is_dataclass(value) and not isinstance(value, type):
        return frozenset().union(*(dims_in(getattr(value, one.name)) for one in fields(value)))
    return frozenset()
