"""Rammer's wavefront: each wave goes into the program being made, or begins a new one, whichever ends sooner.

Ma et al., "Rammer: enabling holistic deep learning compiler optimizations with rTasks", OSDI 2020, algorithm 1. As
printed there, the last program is never given out; here it is.
"""

from __future__ import annotations

import numpy as np

from scheduler.policies.emit import Plan
from scheduler.policies.placing import Placed, place
from scheduler.policies.problem import Choice, Floats, Problem
from scheduler.policies.selection import room
from scheduler.policies.waves import best_wave, levels


def wavefront(problem: Problem) -> Plan:
    """Waves in order; kernels are chosen when their wave comes, from the fastest and the most efficient ones."""
    choice = [numbers[0] for numbers in problem.fitting]
    ranks = -np.array(problem.level, np.float64)  # wave after wave
    launches: list[Placed | int] = []
    regions: list[int] = []
    current: Placed | None = None
    for wave in levels(problem):
        made, kernels = best_wave(problem, wave)
        for region in wave:
            choice[region] = kernels[region]
        alone = made[0]
        if isinstance(alone, int):
            launches.extend([current] if current is not None else [])
            launches.extend(made)
            regions, current = [], None
            continue
        if current is not None:
            merged = _merged(problem, tuple(choice), [*regions, *wave], ranks, current, alone)
            if merged is not None and merged.makespan <= current.makespan + problem.device.launch_ns + alone.makespan:
                regions, current = [*regions, *wave], merged
                continue
            launches.append(current)
        regions, current = list(wave), alone
    launches.extend([current] if current is not None else [])
    return Plan("wavefront", tuple(choice), tuple(launches))


def _merged(
    problem: Problem, choice: Choice, regions: list[int], ranks: Floats, current: Placed, alone: Placed
) -> Placed | None:
    """Both in one program, with as many workers as either had, where they are resident."""
    found: Placed | None = None
    most = room(problem, choice, regions)
    for per_multiprocessor in sorted({current.per_multiprocessor, alone.per_multiprocessor, most}):
        if 1 <= per_multiprocessor <= min(most, max(current.per_multiprocessor, alone.per_multiprocessor)):
            placed = place(problem, choice, regions, per_multiprocessor, ranks)
            if found is None or placed.makespan < found.makespan:
                found = placed
    return found
