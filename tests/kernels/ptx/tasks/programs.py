"""Programs of independent tasks: cases that follow one another in persistent blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt.program.ticketed import ticketed
from kernels.listing import Argument, Listing, Place, Run
from kernels.ptx.emit import ptx
from kernels.ptx.emulated import EmulatedTasks
from kernels.ptx.program import program_module
from kernels.ptx.tables import TaskDescription
from kernels.target import Target
from scheduler.chains import Chain
from tests.kernels.ptx.tasks.running import SM_90, Array, Case, differing

WORKERS = 4  # of pinned programs
_APART = 256  # bytes between operands


class Following:
    """Cases, some of them several times, as runs of one program that need nothing of one another."""

    def __init__(self, cases: Sequence[Case], order: Sequence[int], target: Target = SM_90) -> None:
        self.cases, self.order, self._target = cases, order, target
        kernels = {case.kernel.name: case.kernel for case in cases}
        held: list[Array] = []
        at = 0
        places: dict[tuple[int, str], Place] = {}
        for number, case in enumerate(cases):
            for operand in case.kernel.operands:
                if operand.role != "output":
                    content = np.ascontiguousarray(case.stored(operand)).reshape(-1).view(np.uint8)
                    room = -(-max(content.size, 1) // _APART) * _APART
                    places[number, operand.name] = Place("weights", at)
                    held.append(np.concatenate([content, np.zeros(room - content.size, np.uint8)]))
                    at += room
        self.weights = np.concatenate(held)
        outputs, runs = list[Argument](), list[Run]()
        self._results: list[tuple[int, str, int]] = []  # of each output the run, its name, its place among outputs
        for run, number in enumerate(order):
            kernel, found = cases[number].kernel, list[Place]()
            for operand in kernel.operands:
                if operand.role == "output":
                    found.append(Place("output", 0, len(outputs)))
                    self._results.append((run, operand.name, len(outputs)))
                    outputs.append(Argument(f"{operand.name}_{run}", operand.dtype, (operand.elements,)))
                else:
                    found.append(places[number, operand.name])
            runs.append(Run(kernel.name, tuple(found)))
        steps = ticketed(runs, kernels, [Chain((run,)) for run in range(len(runs))], 0)
        self.listing = Listing(
            "following", (), tuple(outputs), tuple(kernels.values()), tuple(runs), 0, at, steps
        )  # fmt: skip
        self.text = ptx(program_module(self.listing.kernels, target), target.cpu)

    def emulated(self, text: str | None = None) -> EmulatedTasks:
        """The program in the memory of a machine; another text in place of its own."""
        description = TaskDescription.of(self.listing, self._target, WORKERS)
        return EmulatedTasks(self.text if text is None else text, description, self.weights)

    def wrong(self, outputs: Sequence[Array]) -> str:
        """The first run whose results are not as expected; none: ""."""
        by_run: dict[int, dict[str, Array]] = {}
        for run, name, place in self._results:
            by_run.setdefault(run, {})[name] = outputs[place]
        for run, found in by_run.items():
            said = differing(found, self.cases[self.order[run]])
            if said:
                return f"run {run}, {self.cases[self.order[run]].kernel.name}: {said}"
        return ""


def pairs(count: int) -> list[int]:
    """A way through so many things on which each follows each, itself too."""
    left, way = {(a, b) for a in range(count) for b in range(count)}, [0]
    while left:
        after = [b for b in range(count) if (way[-1], b) in left]
        if not after:
            after = [next(a for a, _ in sorted(left))]
        step = (way[-1], max(after, key=lambda one: sum(pair[0] == one for pair in left)))
        left.discard(step)
        way.append(step[1])
    return way
