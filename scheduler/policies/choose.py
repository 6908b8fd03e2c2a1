"""Schedule a task graph on a device: every policy in turn, the fastest program of all, verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from scheduler.bounds import excess
from scheduler.device import Device
from scheduler.errors import InvalidProgram
from scheduler.policies.batching import batched
from scheduler.policies.blocks import blocks
from scheduler.policies.cutting import cutting
from scheduler.policies.emit import Form, Plan, form_of, program_of
from scheduler.policies.exact import exact
from scheduler.policies.launches import launches
from scheduler.policies.problem import Problem, problem_of
from scheduler.policies.search import BLOCKS_A_SECOND
from scheduler.policies.wavefront import wavefront
from scheduler.policies.waves import waves
from scheduler.program import Pinned, Program, Ticketed, Wait
from scheduler.roofline import least_work_ns
from scheduler.simulate import Simulation, simulate
from scheduler.tasks import TaskGraph, chosen, needed_blocks
from scheduler.verify.program import verify

BASELINES = ("launches", "waves")
# The share of the time that a policy that searches may take, and how it is made; others take as long as they take.
SEARCHES: Mapping[str, tuple[float, Callable[[Problem, int], Plan | None]]] = {
    "blocks": (0.3, blocks),
    "cutting": (0.6, cutting),
    "batching": (0.1, blocks),
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
    graph: TaskGraph, device: Device, *, policy: str = "best", time_limit: float = 10.0, form: Form | None = None
) -> Scheduled:
    """The program of one policy, or the fastest of all: never slower than a launch for each region, or wave by wave.

    `time_limit` in seconds is for the searches, and counted in blocks placed, so that the same input gives the same
    program on any machine. `form` is pinned for a GPU and ticketed for a CPU where nothing is said. Where the policy
    asked for has no program (nothing to batch, no common room, not small), the fastest baseline is given and named.

    Raises InvalidTaskGraph for a graph that means nothing or a region that does not fit, InvalidProgram for a policy
    that is not known or a time limit below 0.
    """
    if policy not in POLICIES:
        raise InvalidProgram(f"there is no policy '{policy}'; there are {', '.join(POLICIES)}.")
    if not 0 <= time_limit < inf:
        raise InvalidProgram(f"a time limit of {time_limit:g} s is none: give 0 or more seconds.")
    problem = problem_of(graph, device)
    same = {region.name: region.name for region in graph.regions}
    names = POLICIES[1:] if policy == "best" else (policy,)
    made: dict[str, tuple[TaskGraph, Mapping[str, str], Program, Simulation]] = {}
    for name in names if policy in (*BASELINES, "best") else (*names, *BASELINES):
        if policy != "best" and name in BASELINES and policy in made:
            continue
        at, merged = problem, same
        if name == "batching":
            found = batched(problem)
            if found is None:
                continue
            at, merged = problem_of(found[0], device), dict(found[1])
        plan = _plan(at, name, time_limit)
        if plan is not None:
            program = program_of(at, Plan(name, plan.choice, plan.launches), form_of(at, form))
            made[name] = (at.graph, merged, program, simulate(at.graph, program, device))
    figures = {name: one[3].makespan for name, one in made.items()}
    best = min(figures, key=lambda name: figures[name])
    scheduled, merged, program, simulation = made[best]
    verify(scheduled, program, device)
    return Scheduled(
        scheduled, merged, program, simulation.makespan, best, figures,
        _bounds(problem, scheduled, program, simulation), _waits(program), simulation,
    )  # fmt: skip


def _plan(problem: Problem, name: str, time_limit: float) -> Plan | None:
    if name in SEARCHES:
        share, make = SEARCHES[name]
        return make(problem, int(share * time_limit * BLOCKS_A_SECOND))
    return {"launches": launches, "waves": waves, "wavefront": wavefront, "exact": exact}[name](problem)


def _waits(program: Program) -> int:
    count = 0
    for launch in program.launches:
        if isinstance(launch, Pinned):
            count += sum(isinstance(one, Wait) for worker in launch.workers for one in worker)
        elif isinstance(launch, Ticketed):
            count += sum(len(item.waits) for item in launch.items)
    return count


def _bounds(problem: Problem, graph: TaskGraph, program: Program, simulation: Simulation) -> dict[str, float]:
    """Bounds by name: of any schedule of the same block times on as many workers, and of any kernels at all.

    "critical path" counts, where a region has several blocks, that the next one hears of them by a signal or follows
    all of them on one worker. "any kernels" is the longest path with the shortest blocks, or the least work if more.
    """
    device = problem.device
    if not len(simulation.region):
        return {"critical path": 0.0, "work": 0.0, "Fernandez-Bussell": 0.0, "any kernels": device.launch_ns}
    takes = simulation.end - simulation.start
    workers = max(_workers(program, graph, device), 1)
    head, tail, by_run = _heads_and_tails(graph, program, simulation, takes, device.signal_ns)
    path = float((head + tail).max(initial=0.0))
    work = float(takes.sum()) / workers
    over = excess(head, tail, by_run, workers, path)
    shortest = {
        region.name: min(kernel.time(1) for kernel in region.kernels) + device.block_fixed_ns
        for region in problem.graph.regions
    }
    longest = [0.0] * problem.count
    for region in problem.order:
        before = max((longest[other] for other in problem.before[region]), default=0.0)
        longest[region] = before + shortest[problem.graph.regions[region].name]
    least = sum(
        min(least_work_ns(device, problem.kernel(region, one)) for one in problem.fitting[region])
        for region in range(problem.count)
    )
    return {
        "critical path": device.launch_ns + path,
        "work": device.launch_ns + work,
        "Fernandez-Bussell": device.launch_ns + path + over,
        "any kernels": device.launch_ns + max(max(longest, default=0.0), least / device.multiprocessors),
    }


def _workers(program: Program, graph: TaskGraph, device: Device) -> int:
    """The most blocks that any launch runs at once."""
    kernels = chosen(graph, program.choice)
    most = 0
    for launch in program.launches:
        if isinstance(launch, Pinned):
            most = max(most, len(launch.workers))
        elif isinstance(launch, Ticketed):
            most = max(most, min(launch.workers, device.resident(launch.resources)))
        else:
            most = max(most, device.resident(kernels[launch.region].resources))
    return most


def _heads_and_tails(
    graph: TaskGraph, program: Program, simulation: Simulation, takes: np.ndarray, signal: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By region and block the longest paths to its start and from it, and its time; as flat arrays."""
    kernels = chosen(graph, program.choice)
    first: dict[str, int] = {}
    total = 0
    for region in graph.regions:
        first[region.name] = total
        total += kernels[region.name].blocks
    by_block = np.zeros(total)
    offset = np.array([first[name] for name in simulation.regions], np.int64)
    by_block[offset[simulation.region] + simulation.block] = takes
    into: dict[str, list[int]] = {region.name: [] for region in graph.regions}
    out: dict[str, list[int]] = {region.name: [] for region in graph.regions}
    for number, need in enumerate(graph.needs):
        into[need.target].append(number)
        out[need.source].append(number)
    head, tail = np.zeros(total), np.zeros(total)

    def span(name: str) -> slice:
        return slice(first[name], first[name] + kernels[name].blocks)

    order = graph.order()
    for name in order:
        for number in into[name]:
            need = graph.needs[number]
            ends = head[span(need.source)] + by_block[span(need.source)]
            alone = _followed(head[span(need.source)], by_block[span(need.source)], signal)
            if need.pattern == "all":
                head[span(name)] = np.maximum(head[span(name)], alone)
                continue
            for block in range(kernels[name].blocks):
                some = needed_blocks(need, kernels[need.source].blocks, kernels[name].blocks, block)
                at = first[name] + block
                head[at] = max(head[at], ends[some.start : some.stop].max())
    for name in reversed(order):
        mine = tail[span(name)]
        for number in out[name]:
            need = graph.needs[number]
            behind = tail[span(need.target)]
            if need.pattern == "all":
                np.maximum(mine, behind.max(), out=mine)
                continue
            for block in range(kernels[need.target].blocks):
                some = needed_blocks(need, kernels[name].blocks, kernels[need.target].blocks, block)
                mine[some.start : some.stop] = np.maximum(mine[some.start : some.stop], behind[block])
        tail[span(name)] = mine + by_block[span(name)]
    return head, tail, by_block


def _followed(head: np.ndarray, takes: np.ndarray, signal: float) -> float:
    """When a block that needs all of these can begin at the earliest: behind them on one worker, or a signal later.

    If it does not follow all of them on its worker, one of them ran elsewhere, and its end was heard of by a signal.
    """
    ends = head + takes
    on_one = max(float(ends.max()), float(head.min() + takes.sum()))
    return min(on_one, max(float(ends.max()), float((ends).min()) + signal))
