"""Which kernel of each region: the fastest, the one that makes least work, or in between; and what is ranked first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from scheduler.device import Resources
from scheduler.policies.problem import Choice, Floats, Problem, most_of
from scheduler.roofline import alone_ns, least_work_ns
from scheduler.tasks import Kernel

MOST_PER_MULTIPROCESSOR = 8  # workers: beyond, blocks only take from each other


def fastest(problem: Problem, allowed: Sequence[Sequence[int]] | None = None) -> Choice:
    """Of each region the kernel that is fastest with the device to itself."""
    return weighted(problem, 0.0, 1, allowed or problem.fitting)


def weighted(
    problem: Problem,
    weight: float,
    per_multiprocessor: int,
    allowed: Sequence[Sequence[int]],
    regions: Iterable[int] | None = None,
) -> Choice:
    """Of each region the kernel of least time alone plus `weight` times the device's share of its work.

    With weight 0 that is the fastest, with a large one the most efficient (Rammer's two choices, Ma et al. 2020).
    Where only some `regions` are asked for, the others have the first kernel that is allowed.
    """
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    chosen = [numbers[0] for numbers in allowed]
    for region in range(problem.count) if regions is None else regions:
        key = (problem.kind[region], tuple(allowed[region]))
        if key not in known:
            costs = {
                one: _cost(problem, problem.kernel(region, one), weight, per_multiprocessor) for one in allowed[region]
            }
            known[key] = min(costs, key=lambda one: (costs[one], one))
        chosen[region] = known[key]
    return tuple(chosen)


def _cost(problem: Problem, kernel: Kernel, weight: float, per_multiprocessor: int) -> tuple[float, float]:
    device = problem.device
    work = least_work_ns(device, kernel, per_multiprocessor) / device.multiprocessors
    return alone_ns(device, kernel) + weight * work, work


def allowed_for(
    problem: Problem, per_multiprocessor: int, regions: Iterable[int] | None = None
) -> tuple[tuple[int, ...], ...] | None:
    """By region the kernels that leave room for so many workers on a multiprocessor, whatever is chosen among them.

    A worker takes the most of what its kernels take of threads, of registers, of shared memory. Of all limits that
    leave the room, the one with most kernels below it is taken. None if some region of `regions` has no kernel then;
    others keep theirs.
    """
    wanted = range(problem.count) if regions is None else tuple(regions)
    kinds = {problem.kind[region]: region for region in wanted}
    kernels = {
        (kind, number): problem.kernel(region, number)
        for kind, region in kinds.items()
        for number in problem.fitting[region]
    }
    sizes = sorted({(one.threads, one.registers, one.shared_memory, one.opt_in) for one in kernels.values()})
    best: dict[int, tuple[int, ...]] = {}
    for limit in _limits(sizes):
        if problem.device.occupancy(limit) < per_multiprocessor:
            continue
        found = {
            kind: tuple(number for number in problem.fitting[region] if _below(kernels[kind, number], limit))
            for kind, region in kinds.items()
        }
        if all(found.values()) and sum(map(len, found.values())) > sum(map(len, best.values())):
            best = found
    if not best and kinds:
        return None
    made = list(problem.fitting)
    for region in wanted:
        made[region] = best[problem.kind[region]]
    return tuple(made)


def _limits(sizes: Sequence[tuple[int, int, int, bool]]) -> list[Resources]:
    """Each kernel's needs, and the most of each pair and of all."""
    single = [Resources(*size) for size in sizes]
    pairs = {
        (max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2]), a[3] or b[3])
        for number, a in enumerate(sizes) for b in sizes[number + 1 :]
    } if len(sizes) <= 64 else set()  # fmt: skip
    every = tuple(max(size[at] for size in sizes) for at in range(3))
    opt_in = any(size[3] for size in sizes)
    return [*single, *(Resources(*pair) for pair in sorted(pairs)), Resources(every[0], every[1], every[2], opt_in)]


def _below(kernel: Kernel, limit: Resources) -> bool:
    return (
        kernel.threads <= limit.threads
        and kernel.registers <= limit.registers
        and kernel.shared_memory <= limit.shared_memory
        and (limit.opt_in or not kernel.opt_in)
    )


def room(problem: Problem, choice: Choice, regions: Iterable[int]) -> int:
    """How many workers that can run all these kernels a multiprocessor holds; 0: not one."""
    return problem.device.occupancy(most_of([problem.kernel(region, choice[region]) for region in regions]))


def upward_ranks(problem: Problem, choice: Choice, per_multiprocessor: int, alone: bool = True) -> Floats:
    """By region the longest path from its start to the end, signals and waits included.

    Regions count what they take alone, or (`alone` False) one block's time.
    """
    device = problem.device
    ranks = np.zeros(problem.count)
    known: dict[tuple[int, int], float] = {}
    for region in reversed(problem.order):
        kernel = problem.kernel(region, choice[region])
        key = (problem.kind[region], choice[region])
        if key not in known:
            most = min(per_multiprocessor, -(-kernel.blocks // device.multiprocessors))
            rounds = -(-kernel.blocks // (most * device.multiprocessors)) if alone else 1
            known[key] = rounds * (kernel.time(most if alone else 1) + device.block_fixed_ns)
        behind = max(
            (ranks[other] + device.signal_ns + device.wait_ns for other in problem.behind[region]), default=0.0
        )
        ranks[region] = known[key] + behind
    return ranks
