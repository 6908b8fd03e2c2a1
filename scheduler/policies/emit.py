"""Placements as a program: workers with runs and waits, or tickets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scheduler.policies.placing import Placed
from scheduler.policies.problem import Choice, Problem, most_of
from scheduler.policies.waits import pinned_waits, ticket_waits
from scheduler.program import Instruction, Item, Launch, Pinned, Plain, Program, Run, Ticketed, Wait

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
    if form == "ticketed":
        items = tuple(
            Item(runs[block], waits)
            for block, waits in zip(placed.order.tolist(), ticket_waits(problem, placed), strict=True)
        )
        return Ticketed(items, workers, most.threads, most.registers, most.shared_memory, most.opt_in)
    begin, who, until = (array.tolist() for array in pinned_waits(problem, placed))
    lists: list[list[Instruction]] = [[] for _ in range(workers)]
    for block in placed.order.tolist():
        mine = lists[placed.worker[block]]
        mine.extend(Wait(who[at], until[at]) for at in range(begin[block], begin[block + 1]))
        mine.append(runs[block])
    return Pinned(tuple(map(tuple, lists)), most.threads, most.registers, most.shared_memory, most.opt_in)


def _runs(problem: Problem, placed: Placed) -> Sequence[Run]:
    first = placed.first.tolist()
    return [
        Run(problem.graph.regions[region].name, block)
        for number, region in enumerate(placed.regions)
        for block in range(first[number + 1] - first[number])
    ]
