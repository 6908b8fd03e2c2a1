"""What no order of the same blocks can do without: bounds of a program on its device, by name."""

from __future__ import annotations

import numpy as np

from scheduler.bounds import excess
from scheduler.device import Device
from scheduler.policies.problem import Floats, Ints, Problem
from scheduler.program import Pinned, Program, Ticketed
from scheduler.roofline import least_work_ns
from scheduler.simulate import Simulation
from scheduler.tasks import TaskGraph, chosen, needed_blocks

LOOKED_AT = 32  # blocks that end last of those that one needs: the others only could make a bound longer
NONE = np.zeros(0, np.int64)


def bounds_of(problem: Problem, graph: TaskGraph, program: Program, simulation: Simulation) -> dict[str, float]:
    """Bounds by name: of any schedule of the same block times on as many workers, and of any kernels at all.

    "critical path" counts that a block hears of what it needs by a signal and a wait, but of what ran on its own
    worker, one after the other. "any kernels" is the longest path with the shortest blocks, and of a CPU the least work
    if that is more.
    """
    device = problem.device
    if not len(simulation.region):
        return {"critical path": 0.0, "work": 0.0, "Fernandez-Bussell": 0.0, "any kernels": device.launch_ns}
    takes = simulation.end - simulation.start
    workers = max(_workers(program, graph, device), 1)
    # Between launches nothing is signalled, and the next launch is paid for instead.
    heard = device.signal_ns + device.wait_ns
    hop = heard if len(program.launches) == 1 else min(heard, device.launch_ns)
    head, tail, by_run = _heads_and_tails(graph, program, simulation, takes, hop)
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
    least = 0.0
    if not device.is_gpu:  # with blocks beside each other, what they take depends on who starts when
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
    graph: TaskGraph, program: Program, simulation: Simulation, takes: Floats, signal: float
) -> tuple[Floats, Floats, Floats]:
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
        all_of = [span(graph.needs[number].source) for number in into[name] if graph.needs[number].pattern == "all"]
        single = [graph.needs[number] for number in into[name] if graph.needs[number].pattern != "all"]
        whole = _latest(np.concatenate([np.arange(one.start, one.stop) for one in all_of] or [NONE]), head + by_block)
        if not single:
            head[span(name)] = _followed(head[whole], by_block[whole], signal)
            continue
        for block in range(kernels[name].blocks):
            some = [whole]
            for need in single:
                reach = needed_blocks(need, kernels[need.source].blocks, kernels[name].blocks, block)
                some.append(first[need.source] + np.arange(reach.start, reach.stop))
            latest = _latest(np.concatenate(some), head + by_block) if len(some) > 1 else whole
            head[first[name] + block] = _followed(head[latest], by_block[latest], signal)
    for name in reversed(order):
        mine = tail[span(name)]
        for number in out[name]:
            need = graph.needs[number]
            behind = tail[span(need.target)]
            if need.pattern == "all":
                # Seen from the end of time it is the same: of the blocks behind, some follow on the worker.
                latest = _latest(np.arange(len(behind)), behind)
                takes = by_block[span(need.target)][latest]
                np.maximum(mine, _followed(behind[latest] - takes, takes, signal), out=mine)
                continue
            for block in range(kernels[need.target].blocks):
                reach = needed_blocks(need, kernels[name].blocks, kernels[need.target].blocks, block)
                mine[reach.start : reach.stop] = np.maximum(mine[reach.start : reach.stop], behind[block])
        tail[span(name)] = mine + by_block[span(name)]
    return head, tail, by_block


def _latest(blocks: Ints, ends: Floats) -> Ints:
    """Those of the blocks that end last, latest first: as many as may follow each other within a signal."""
    if len(blocks) > LOOKED_AT:
        blocks = blocks[np.argpartition(ends[blocks], -LOOKED_AT)[-LOOKED_AT:]]
    return blocks[np.argsort(-ends[blocks], kind="stable")]


def _followed(head: Floats, takes: Floats, signal: float) -> float:
    """When a block that needs all of these can begin at the earliest; they come latest end first.

    Those that ran on its own worker ran one after the other there, and of all others it heard by a signal. Whichever
    number were its own, it is best if they are those that end last.
    """
    if not len(head):
        return 0.0
    ends = head + takes
    best = float(ends[0]) + signal
    began, ran = float("inf"), 0.0
    for own in range(len(ends)):
        began, ran = min(began, float(head[own])), ran + float(takes[own])
        heard = float(ends[own + 1]) + signal if own + 1 < len(ends) else 0.0
        best = min(best, max(float(ends[0]), began + ran, heard))
        if began + ran >= best:
            break
    return best
