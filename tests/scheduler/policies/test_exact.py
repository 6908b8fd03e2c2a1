"""The exact policy against all orders and all workers of tiny graphs."""

from __future__ import annotations

from itertools import permutations, product

from hypothesis import given, settings

from scheduler.device import Device
from scheduler.policies.choose import schedule
from scheduler.policies.exact import exact
from scheduler.policies.problem import problem_of
from scheduler.tasks import Kernel, Region, TaskGraph, chosen, needed_blocks
from tests.scheduler.policies.graphs import small_gpu, task_graphs


def shortest(graph: TaskGraph, device: Device) -> float:
    """The least makespan of all kernels, orders and workers; one worker on each multiprocessor.

    With two blocks at most, who needs one of a region waits for both.
    """
    best = float("inf")
    for numbers in product(*(range(len(region.kernels)) for region in graph.regions)):
        kernels = chosen(graph, numbers)
        blocks = [(name, block) for name, kernel in kernels.items() for block in range(kernel.blocks)]
        needs: dict[tuple[str, int], set[tuple[str, int]]] = {one: set() for one in blocks}
        for need in graph.needs:
            source, target = kernels[need.source].blocks, kernels[need.target].blocks
            for block in range(target):
                assert needed_blocks(need, source, target, block)
                needs[need.target, block] |= {(need.source, other) for other in range(source)}
        for order in permutations(blocks):
            if any(needs[one] - set(order[:at]) for at, one in enumerate(order)):
                continue
            for workers in product(range(device.multiprocessors), repeat=len(order)):
                best = min(best, length(device, kernels, needs, order, workers))
    return best


def length(device, kernels, needs, order, workers) -> float:  # type: ignore[no-untyped-def]
    """Each block as early as its worker and its waits allow: one for each region that its worker does not know."""
    free = [0.0] * device.multiprocessors
    end: dict[tuple[str, int], float] = {}
    where = dict(zip(order, workers, strict=True))
    before: dict[str, set[str]] = {name: set() for name in kernels}  # by region all that it comes after
    for name, _ in order:
        for other, _ in needs[name, 0]:
            before[name] |= {other} | before[other]
    knows: list[set[str]] = [set() for _ in free]
    for one in order:
        worker = where[one]
        seen: list[float] = []
        for name in sorted({other[0] for other in needs[one]}, key=lambda name: -len(before[name])):
            some = [(name, block) for block in range(kernels[name].blocks)]
            if name not in knows[worker] and any(where[other] != worker for other in some):
                seen.append(max(end[other] + (where[other] != worker) * device.signal_ns for other in some))
                knows[worker] |= before[name]
            knows[worker].add(name)
        past = free[worker]
        for time in sorted(seen):
            past = max(past, time) + device.wait_ns
        free[worker] = past + kernels[one[0]].time(1) + device.block_fixed_ns
        end[one] = free[worker]
    return max(free)


@settings(max_examples=25, deadline=None)
@given(task_graphs(3, 2))
def test_exact_is_the_best_of_all(graph: TaskGraph) -> None:
    if sum(max(kernel.blocks for kernel in region.kernels) for region in graph.regions) > 5:
        return
    device = small_gpu(2, signal_ns=700.0)  # and a wait 100
    found = exact(problem_of(graph, device))
    assert found is not None
    placed = found.launches[0]
    assert not isinstance(placed, int)
    assert placed.makespan == shortest(graph, device)
    made = schedule(graph, device, policy="exact")
    assert made.figures["exact"] == device.launch_ns + placed.makespan


def test_a_large_graph_has_no_exact_program() -> None:
    regions = tuple(Region(f"r{number}", (Kernel("k", 2, (1.0,)),)) for number in range(6))
    assert exact(problem_of(TaskGraph("large", regions), small_gpu())) is None
