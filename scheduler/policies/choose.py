"""Schedule a task graph on a device: every policy in turn, the fastest program of all, verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler.device import Device
from scheduler.errors import InvalidProgram
from scheduler.policies.batching import batched
from scheduler.policies.blocks import blocks
from scheduler.policies.bounding import bounds_of
from scheduler.policies.cutting import cutting
from scheduler.policies.emit import Form, Plan, form_of, planned_ns, program_of
from scheduler.policies.exact import exact
from scheduler.policies.launches import launches
from scheduler.policies.problem import Problem, problem_of
from scheduler.policies.wavefront import wavefront
from scheduler.policies.waves import waves
from scheduler.program import Program, count_waits
from scheduler.simulate import Simulation, simulate
from scheduler.tasks import TaskGraph
from scheduler.verify.program import verify

BASELINES = ("launches", "waves")
USUAL_WORK = 15_000_000  # blocks placed: about ten seconds of searching
# The share of the work that a policy that searches may take, and how it is made; others take what they take.
SEARCHES: Mapping[str, tuple[float, Callable[[Problem, int], Plan | None]]] = {
    "blocks": (0.3, blocks),
    "cutting": (0.6, cutting),
    "batching": (0.1, blocks),
}
DIRECT: Mapping[str, Callable[[Problem], Plan | None]] = {
    "launches": launches,
    "waves": waves,
    "wavefront": wavefront,
    "exact": exact,
}
POLICIES = ("best", *BASELINES, "wavefront", *SEARCHES, "exact")


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A verified program with what it comes to. Times in nanoseconds, simulated."""

    graph: TaskGraph  # as scheduled: with regions batched where that policy was the fastest
    merged: Mapping[str, str]  # region of the given graph -> region of `graph`
    program: Program
    makespan: float
    policy: str
    figures: Mapping[str, float]  # makespan by policy; those that have no program for this graph are not there
    bounds: Mapping[str, float]  # by name
    waits: int  # instructions or tickets' waits
    simulation: Simulation


def schedule(
    graph: TaskGraph, device: Device, *, policy: str = "best", work: int = USUAL_WORK, form: Form | None = None
) -> Scheduled:
    """The program of one policy, or the fastest of all: never slower than a launch for each region, or wave by wave.

    `work` is what the searches may do, in blocks placed, so that the same input gives the same program on any machine;
    1.5 million take about a second. `form` is pinned for a GPU and ticketed for a CPU where nothing is said. Where the
    policy asked for has no program (nothing to batch, no common room, not small), the fastest baseline is given and
    named.

    Raises InvalidTaskGraph for a graph that means nothing or a region that does not fit, InvalidProgram for a policy
    that is not known or work below 0.
    """
    if policy not in POLICIES:
        raise InvalidProgram(f"there is no policy '{policy}'; there are {', '.join(POLICIES)}.")
    if work < 0:
        raise InvalidProgram(f"{work} blocks of work are none: give 0 or more.")
    problem = problem_of(graph, device)
    same: Mapping[str, str] = {region.name: region.name for region in graph.regions}
    names = POLICIES[1:] if policy == "best" else (policy,)
    plans: dict[str, tuple[Problem, Mapping[str, str], Plan]] = {}
    made: dict[str, tuple[Program, Simulation]] = {}
    figures: dict[str, float] = {}
    for name in names if policy in (*BASELINES, "best") else (*names, *BASELINES):
        if policy != "best" and name in BASELINES and policy in plans:
            continue
        at, merged = problem, same
        if name == "batching":
            found = batched(problem)
            if found is None:
                continue
            at, merged = problem_of(found[0], device), found[1]
        plan = _plan(at, name, work)
        if plan is None:
            continue
        plans[name] = at, merged, Plan(name, plan.choice, plan.launches)
        known = planned_ns(at, plan) if form_of(at, form) == "pinned" else None
        if known is None:
            made[name] = _simulated(at, plans[name][2], form)
            known = made[name][1].makespan
        figures[name] = known
    # A worker may begin a block before its place in the plan, and so change what others take: what counts is simulated.
    while (best := min(figures, key=lambda name: figures[name])) not in made:
        made[best] = _simulated(plans[best][0], plans[best][2], form)
        figures[best] = made[best][1].makespan
    at, merged, _ = plans[best]
    program, simulation = made[best]
    verify(at.graph, program, device)
    return Scheduled(
        at.graph, merged, program, simulation.makespan, best, figures,
        bounds_of(problem, at.graph, program, simulation), sum(map(count_waits, program.launches)), simulation,
    )  # fmt: skip


def _simulated(problem: Problem, plan: Plan, form: Form | None) -> tuple[Program, Simulation]:
    program = program_of(problem, plan, form_of(problem, form))
    return program, simulate(problem.graph, program, problem.device)


def _plan(problem: Problem, name: str, work: int) -> Plan | None:
    if not problem.count and name not in BASELINES:
        return None  # without a region there is nothing to choose: the baselines' empty program
    if name in SEARCHES:
        share, make = SEARCHES[name]
        return make(problem, int(share * work))
    return DIRECT[name](problem)
