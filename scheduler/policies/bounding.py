"""What no order of the same blocks can do without: bounds of a program on its device, by name."""

from __future__ import annotations

import numpy as np

from scheduler.bounds import excess
from scheduler.device import Device
from scheduler.policies.problem import Floats, Problem
from scheduler.program import Pinned, Program, Ticketed
from scheduler.roofline import least_work_ns
from scheduler.simulate import Simulation
from scheduler.tasks import TaskGraph, chosen, needed_blocks


def bounds_of(problem: Problem, graph: TaskGraph, program: Program, simulation: Simulation) -> dict[str, float]:
    """Bounds by name: of any schedule of the same block times on as many workers, and of any kernels at all.

    "critical path" counts, where a region has several blocks, that the next one hears of them by a signal or follows
    all of them on one worker. "any kernels" is the longest path with the shortest blocks, and of a CPU the least work
    if that is more.
    """
    device = problem.device
    if not len(simulation.region):
        return {"critical path": 0.0, "work": 0.0, "Fernandez-Bussell": 0.0, "any kernels": device.launch_ns}
    takes = simulation.end - simulation.start
    workers = max(_workers(program, graph, device), 1)
    # Between launches nothing is signalled, and the next launch is paid for instead.
    hop = device.signal_ns if len(program.launches) == 1 else min(device.signal_ns, device.launch_ns)
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


def _followed(head: Floats, takes: Floats, signal: float) -> float:
    """When a block that needs all of these can begin at the earliest: behind them on one worker, or a signal later.

    If it does not follow all of them on its worker, one of them ran elsewhere, and its end was heard of by a signal.
    """
    ends = head + takes
    on_one = max(float(ends.max()), float(head.min() + takes.sum()))
    return min(on_one, max(float(ends.max()), float((ends).min()) + signal))
