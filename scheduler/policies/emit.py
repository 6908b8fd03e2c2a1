"""Placements as a program: workers with runs and waits, or tickets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler.policies.placing import Placed
from scheduler.policies.problem import Choice, Problem, most_of
from scheduler.policies.waits import waits_of
from scheduler.program import Counter, Instruction, Item, Launch, Pinned, Plain, Program, Run, Ticketed, Wait

Form = Literal["pinned", "ticketed"]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a policy decides: each region's kernel, and the launches, a placement each or a region by its number."""

    policy: str
    choice: Choice
    launches: tuple[Placed | int, ...]


def planned_ns(problem: Problem, plan: Plan) -> float | None:
    """The makespan of a plan whose launches are all placed, when they are pinned; None where the device decides."""
    spans = [one.makespan for one in plan.launches if not isinstance(one, int)]
    if len(spans) < len(plan.launches):
        return None
    return sum(spans) + problem.device.launch_ns * len(spans)


def program_of(problem: Problem, plan: Plan, form: Form) -> Program:
    """The plan as a program."""
    names = [region.name for region in problem.graph.regions]
    launches = tuple(
        Plain(names[one]) if isinstance(one, int) else _launch(problem, plan.choice, one, form)
        for one in plan.launches
    )  # fmt: skip
    return Program(
        problem.graph.name, problem.device.name, dict(zip(names, plan.choice, strict=True)), launches, plan.policy
    )


def form_of(problem: Problem, form: Form | None) -> Form:
    """Pinned for a GPU, whose residency is known; ticketed for a CPU, whose workers may be kept from running."""
    return form or ("pinned" if problem.device.is_gpu else "ticketed")


def _launch(problem: Problem, choice: Choice, placed: Placed, form: Form) -> Launch:
    runs = _runs(problem, placed)
    most = most_of([problem.kernel(region, choice[region]) for region in placed.regions])
    workers = int(placed.worker.max(initial=0)) + 1
    begin, waited = (array.tolist() for array in waits_of(problem, placed, form == "ticketed"))
    counters, number = _counted(problem, placed, waited)
    waits = [Wait(number[one], counters[number[one]].end - counters[number[one]].begin) for one in waited]
    if form == "ticketed":
        items = tuple(
            Item(runs[block], tuple(waits[begin[block] : begin[block + 1]])) for block in placed.order.tolist()
        )
        return Ticketed(items, workers, counters, most.threads, most.registers, most.shared_memory, most.opt_in)
    lists: list[list[Instruction]] = [[] for _ in range(workers)]
    for block in placed.order.tolist():
        mine = lists[placed.worker[block]]
        mine.extend(waits[begin[block] : begin[block + 1]])
        mine.append(runs[block])
    return Pinned(tuple(map(tuple, lists)), counters, most.threads, most.registers, most.shared_memory, most.opt_in)


def _counted(problem: Problem, placed: Placed, waited: Sequence[int]) -> tuple[tuple[Counter, ...], Mapping[int, int]]:
    """The counters that something waits for, and by their number in the placement that in the launch."""
    counters = placed.counters
    made: list[Counter] = []
    number: dict[int, int] = {}
    for one in sorted(set(waited)):
        region = int(np.searchsorted(counters.first, counters.begin[one], side="right")) - 1
        first = int(counters.first[region])
        number[one] = len(made)
        name = problem.graph.regions[placed.regions[region]].name
        made.append(Counter(name, int(counters.begin[one]) - first, int(counters.end[one]) - first))
    return tuple(made), number


def _runs(problem: Problem, placed: Placed) -> Sequence[Run]:
    first = placed.first.tolist()
    return [
        Run(problem.graph.regions[region].name, block)
        for number, region in enumerate(placed.regions)
        for block in range(first[number + 1] - first[number])
    ]
