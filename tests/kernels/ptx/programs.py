"""Persistent programs on the PTX machine: regions of tasks, lists or tickets, and what the kernels' tables say."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.ptx.machine.buffers import Placed
from kernels.ptx.machine.launching import Adversary, Launch, Machine
from kernels.ptx.machine.reports import Outcome
from kernels.ptx.persistent import THREADS

EPOCHS = 2
RUN, WAIT = 0, 1


@dataclass(frozen=True)
class Ran:
    """The outcome of the last epoch that was run, early reads and waits given up, and the counters."""

    outcome: Outcome
    early: int
    hung: int
    counters: list[int]


class Tables:
    """What tasks need and raise; region r has a counter, and needs those in `before[r]`."""

    def __init__(self, text: str, regions: Sequence[int], before: Mapping[int, Sequence[int]]) -> None:
        self.machine, self.regions = Machine(text), tuple(regions)
        first = [sum(regions[:one]) for one in range(len(regions) + 1)]
        starts, needs, rows, raised = [0], [], [0], []
        for region, many in enumerate(regions):
            for _ in range(many):
                for source in before.get(region, ()):
                    needs += range(first[source], first[source + 1])
                starts.append(len(needs))
                raised.append(region)
                rows.append(len(raised))
        self._placed = {
            "starts": self._words("starts", starts), "needs": self._words("needs", needs),
            "errors": self._words("errors", [0, 0], False),
            "counters": self._words("counters", [0] * len(regions), False),
            "totals": self._words("totals", regions), "rows": self._words("rows", rows),
            "raised": self._words("raised", raised),
            "marks": self.machine.memory.reserve("marks", 4 * THREADS * first[-1]),
        }  # fmt: skip

    def _words(self, name: str, values: Sequence[int], constant: bool = True) -> Placed:
        return self.machine.memory.place(name, np.asarray(list(values) or [0], np.int32), constant=constant)

    def pinned(
        self, lists: Sequence[Sequence[tuple[int, int, int]]], adversary: Adversary, resident: int | None = None,
        epochs: int = EPOCHS,
    ) -> Ran:  # fmt: skip
        """Each block runs its list of (0, task, 0) and (1, counter, value)."""
        code = self._words("code", [word for one in lists for instruction in one for word in instruction])
        ends = self._words("lists", [sum(map(len, lists[:one])) for one in range(len(lists) + 1)])
        names = ("counters", "totals", "rows", "raised", "marks", "starts", "needs", "errors")
        shared = [self._placed[name] for name in names]
        launches = [Launch("pinned", (len(lists), 1, 1), (THREADS, 1, 1), (code, ends, *shared, epoch),
                           resident or len(lists), patience=1 << 18) for epoch in range(1, epochs + 1)]  # fmt: skip
        return self._ran(launches, adversary)

    def ticketed(
        self, items: Sequence[tuple[int, Sequence[tuple[int, int]]]], workers: int, adversary: Adversary,
        resident: int | None = None, epochs: int = EPOCHS,
    ) -> Ran:  # fmt: skip
        """Blocks claim tasks with the waits of each, (counter, value)."""
        flat: list[int] = []
        waits: list[int] = []
        for task, mine in items:
            flat += [task, len(waits) // 2, len(waits) // 2 + len(mine)]
            waits += [word for wait in mine for word in wait]
        first = [self._words("items", flat), len(items), self._words("waits", waits)]
        claimed = self._words("claimed", [0], False)
        launches = []
        for epoch in range(1, epochs + 1):
            middle = [self._placed[name] for name in ("counters", "totals", "rows", "raised")]
            last = [self._placed[name] for name in ("marks", "starts", "needs", "errors")]
            base = (epoch - 1) * (len(items) + workers)
            arguments = (*first, *middle, claimed, base, *last, epoch)
            places = resident or workers
            launches.append(Launch("ticketed", (workers, 1, 1), (THREADS, 1, 1), arguments, places, patience=1 << 18))
        return self._ran(launches, adversary)

    def _ran(self, launches: list[Launch], adversary: Adversary) -> Ran:
        for launch in launches:
            outcome = self.machine.run(launch, adversary)
            if outcome.faults:
                break
        memory = self.machine.memory
        early, hung = memory.read(self._placed["errors"], np.int32).tolist()
        return Ran(outcome, early, hung, memory.read(self._placed["counters"], np.int32).tolist())


def drawn(draw: random.Random) -> tuple[tuple[int, ...], dict[int, tuple[int, ...]]]:
    """Regions of one to three tasks, and which earlier ones each needs."""
    regions = tuple(draw.randint(1, 3) for _ in range(draw.randint(2, 6)))
    before = {one: tuple(sorted(draw.sample(range(one), min(one, draw.randint(0, 2))))) for one in range(len(regions))}
    return regions, before


def tasks(regions: Sequence[int]) -> list[tuple[int, int]]:
    """Tasks in the order of their regions, each with its region."""
    return [(sum(regions[:one]) + block, one) for one, many in enumerate(regions) for block in range(many)]


def waits(regions: Sequence[int], before: Mapping[int, Sequence[int]], region: int) -> list[tuple[int, int]]:
    """What a task of a region waits for."""
    return [(source, regions[source]) for source in before[region]]
