"""The verifier: whether a program is safe for a task graph on a device. It shares no code with what makes programs.

A program is accepted if and only if it is well formed, its blocks and workers fit the device, its barriers are reached
by all threads, it is free of deadlock (T2: pinned, all workers resident, every wait satisfiable, and nothing is left
when each worker goes as far as it can; T4: ticketed, waits only for blocks of earlier tickets), and every need of the
task graph is covered, block by block, by what happens before: the order in a worker, waits, and launches one after the
other.

Counters are not cleared between executions. Each execution adds to a counter the blocks that it counts, and a wait for
k of them waits for that many beyond those of earlier executions; so a wait for at least 0 and at most all of them is
right in every execution if it is in the first, and no other is accepted.
"""

from __future__ import annotations

import numpy as np

from scheduler.device import Device
from scheduler.errors import UnsafeProgram
from scheduler.program import Pinned, Program, Ticketed
from scheduler.tasks import TaskGraph
from scheduler.verify.form import Blocks, placed
from scheduler.verify.needs import Needs, flat_needs
from scheduler.verify.pinned import check_pinned
from scheduler.verify.resources import check_resources
from scheduler.verify.ticketed import check_ticketed


def verify(graph: TaskGraph, program: Program, device: Device) -> None:
    """Return if `program` is safe; otherwise raise.

    InvalidTaskGraph for a graph that means nothing; InvalidProgram for a program that is not well formed or was made
    for another graph or device; UnsafeProgram naming the resource, the wait, the circle or the edge that fails.
    """
    graph.check()
    blocks, flat = placed(graph, program, device)
    for number, launch in enumerate(program.launches):
        runs = np.unique(blocks.region[blocks.launch == number])
        kernels = [(blocks.regions[region], blocks.kernels[region]) for region in runs]
        check_resources(number, launch, kernels, device)
    needs = flat_needs(graph, blocks)
    for number, (launch, arrays) in enumerate(zip(program.launches, flat, strict=True)):
        if arrays is not None and isinstance(launch, Pinned):
            check_pinned(number, arrays, blocks, needs)
        elif arrays is not None and isinstance(launch, Ticketed):
            check_ticketed(number, arrays, launch.workers, blocks, needs)
    _check_launches(blocks, needs)


def _check_launches(blocks: Blocks, needs: Needs) -> None:
    """Raises UnsafeProgram if a block needs one of a later launch."""
    for target in range(len(blocks.regions)):
        launches = blocks.launch[blocks.first[target] : blocks.first[target + 1]]
        for need in range(int(needs.of[target]), int(needs.of[target + 1])):
            low, high = (ends[needs.bounds[need] : needs.bounds[need + 1]] for ends in (needs.low, needs.high))
            source = needs.source[need]
            begin, end = blocks.first[source], blocks.first[source + 1]
            if blocks.launch[begin:end].max() <= launches.min():
                continue
            for block, (first, behind, launch) in enumerate(zip(low, high, launches, strict=True)):
                late = np.flatnonzero(blocks.launch[first:behind] > launch)
                if len(late):
                    one, other = blocks.named(int(first + late[0])), blocks.named(int(blocks.first[target]) + block)
                    raise UnsafeProgram(
                        f"{other} of launch {launch} needs {one}, which a later launch runs: the edge {one} -> {other} "
                        "is missing."
                    )
