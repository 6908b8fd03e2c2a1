"""One model under budgets: what its program takes and how long, beside ONNX Runtime and the mapped bundle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.ram.disk import Disk, Way
from bench.ram.group import group
from bench.ram.host import Host, Taken, of_bundle, of_runtime
from bench.ram.networks import PLACE, given
from bench.ram.pipeline import Optimum, Panel, cut, optimum
from bench.ram.programs import MIB, Bundle, Refused, beside, needed, steps, with_budget, without_budget
from kernels.emit.description import Description
from models.families.network import Array

SLACK = 8 * MIB  # bytes that a process may take above its budget, and a group above it
PIECE = MIB  # bytes of a panel of the optimum
LIMIT = 120.0  # seconds of one host
TURNS = 3  # of the program with a budget and the disk: the row is that of the median ratio


@dataclass(frozen=True, slots=True)
class Row:
    """A model, its workers and one budget. Sizes in bytes, times in nanoseconds; None where there is nothing to say."""

    model: str
    workers: int
    share: float
    before: Taken  # the bundle without a budget, which maps its weights, outside of any group
    budget: int
    refused: str  # what `compile` said, where it gave no program
    alone: Taken | None  # our program with a budget
    inside: Taken | None  # the same in a group
    equal: bool | None  # the outputs of both to those of the program without a budget
    runtime: Taken | None  # ONNX Runtime in the group, the better of two sets of options
    mapped: Taken | None  # the bundle without a budget in the group
    optimum: Optimum | None = None
    bandwidth: float = 0.0  # bytes a nanosecond

    @property
    def over(self) -> int | None:
        """Bytes that the process took above its budget, the most of both runs."""
        peaks = [one.peak for one in (self.alone, self.inside) if one is not None and not one.fault]
        return max(peaks) - self.budget if peaks else None

    @property
    def ratio(self) -> float | None:
        """Of a later run to what none can be below."""
        if self.alone is None or self.alone.fault or self.optimum is None:
            return None
        return self.alone.later / self.optimum.bound

    @property
    def faster(self) -> bool | None:
        """Whether our program was faster in the group than both others, by the medians of later runs."""
        if self.inside is None or self.runtime is None or self.mapped is None:
            return None
        others = [one.later for one in (self.runtime, self.mapped) if not one.fault]
        return not self.inside.fault and self.inside.later < min(others, default=float("inf"))


@dataclass(frozen=True, slots=True)
class _Side:
    """A host with the files of its inputs."""

    host: Host
    inputs: Sequence[Path]


class Model:
    """A model with its hosts; `runs` calls of each, of which all but the first count."""

    def __init__(self, name: str, disk: Disk, *, runs: int, grouped: bool) -> None:
        self.name, self._disk, self._runs, self._grouped = name, disk, runs, grouped
        known = given(name)
        self.bundle = without_budget(name)
        self._files = _written(name, known.feed)
        self._mapped = self._side(self.bundle, "mapped")
        program = self.bundle.manifest.program
        self._runtime = _Side(of_runtime(known.file, program, f"{name}-runtime"), self._inputs(program))

    def rows(self, shares: Sequence[float], workers: Sequence[int], rounds: int) -> Iterator[Row]:
        """A row for each number of workers and each share of what the program without a budget needs."""
        weights = self._mapped.host.model
        for count in workers:
            before = self._taken(self._mapped, count, "whole")
            if before.fault:
                raise RuntimeError(f"{self.name} does not run without a budget: {before.fault}")
            used = steps(self.name, self.bundle, count, rounds)
            os.sync()
            _, way = self._disk.bandwidth(weights)
            for share in shares:
                os.sync()  # what is still being written takes the disk's time
                row = self._row(share, count, before)
                yield self._by_turns(row, used, way)

    def _by_turns(self, row: Row, used: Sequence[Panel], way: Way) -> Row:
        """The row with the optimum; of several runs, each between two readings of the disk, that of the median ratio.

        The disk's bandwidth changes from second to second: that of a run is the mean of those before and after it.
        """
        weights, others = self._mapped.host.model, beside(self.bundle, row.workers)
        before = self._disk.bandwidth(weights, [way])[0]
        if row.alone is None or row.alone.fault:
            return _with_optimum(row, used, before, others)
        ours = self._side(with_budget(row.model, row.budget, row.workers)[0], "budget")
        found: list[Row] = []
        for _ in range(TURNS):
            taken = self._taken(ours, row.workers, "budget")
            after = self._disk.bandwidth(weights, [way])[0]
            if not taken.fault:
                one = replace(row, alone=replace(taken, peak=max(taken.peak, row.alone.peak)))
                found.append(_with_optimum(one, used, (before + after) / 2, others))
            before = after
        if len(found) < TURNS:
            return _with_optimum(row, used, before, others)
        return sorted(found, key=lambda one: one.ratio or 0.0)[TURNS // 2]

    def prepare(self, shares: Sequence[float], workers: Sequence[int]) -> None:
        """Make the bundles of all rows; what is refused is seen again when it is measured."""
        for count in workers:
            for share in shares:
                with suppress(Refused):
                    with_budget(self.name, self._budget(share, count), count)

    def _budget(self, share: float, workers: int) -> int:
        return int(share * needed(self.bundle, workers)) // MIB * MIB

    def _row(self, share: float, workers: int, before: Taken) -> Row:
        budget, refused = self._budget(share, workers), ""
        alone = inside = None
        equal: bool | None = None
        try:
            bundle, budget = with_budget(self.name, budget, workers)
        except Refused as error:
            refused = str(error)
        else:
            ours = self._side(bundle, "budget")
            alone, equal = self._compared(ours, workers, None, before)
            if self._grouped:
                inside, too = self._compared(ours, workers, budget + SLACK, before)
                equal = equal and too
        runtime = mapped = None
        if self._grouped:
            mapped = self._taken(self._mapped, workers, "others", budget + SLACK)
            ways = [
                self._taken(self._runtime, workers, "others", budget + SLACK, thrifty=thrifty)
                for thrifty in (False, True)
            ]
            runtime = min(ways, key=lambda one: (bool(one.fault), one.later if not one.fault else 0.0))
        return Row(self.name, workers, share, before, budget, refused, alone, inside, equal, runtime, mapped)

    def _compared(self, side: _Side, workers: int, limit: int | None, before: Taken) -> tuple[Taken, bool]:
        """What a run took, and whether its outputs have the bits of another's."""
        found = self._taken(side, workers, "budget", limit)
        pairs = zip(found.outputs, before.outputs, strict=False)
        return found, not found.fault and all(one.read_bytes() == other.read_bytes() for one, other in pairs)

    def _taken(
        self, side: _Side, workers: int, results: str, limit: int | None = None, *, thrifty: bool = False
    ) -> Taken:
        """One process, in a group of `limit` bytes where one is given, its files read from the disk."""
        if left := self._disk.forget(*side.host.files):
            raise RuntimeError(
                f"{left:,} bytes of {self.name} stay in memory: something maps them, or a disk does not hold them."
            )
        with group(limit) if limit is not None else nullcontext() as inside:
            return side.host.run(
                side.inputs, threads=workers, runs=self._runs, results=PLACE / "results" / self.name / results,
                inside=inside, thrifty=thrifty, limit=LIMIT,
            )  # fmt: skip

    def _side(self, bundle: Bundle, word: str) -> _Side:
        return _Side(of_bundle(bundle.folder, f"{self.name}-{word}"), self._inputs(bundle.manifest.program))

    def _inputs(self, program: Description) -> list[Path]:
        return [self._files[one.name] for one in program.inputs]


def _with_optimum(row: Row, used: Sequence[Panel], bandwidth: float, others: int) -> Row:
    """The row with the best that could be done with what the budget leaves for weights."""
    lead, panels = cut(used, PIECE)
    found = optimum(panels, bandwidth, row.budget - others)
    if found is not None:
        found = replace(found, time=found.time + lead, bound=found.bound + lead)
    return replace(row, optimum=found, bandwidth=bandwidth)


def _written(name: str, feed: Mapping[str, Array]) -> dict[str, Path]:
    """A file for each input."""
    folder = PLACE / "inputs" / name
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for number, (key, array) in enumerate(feed.items()):
        found[key] = folder / str(number)
        array.tofile(found[key])
    return found
