"""Greedy packing: one buffer after the other, each as low as those that are placed and live with it allow.

The order decides. By size (largest first) is what most runtimes do; by area (size times lifetime) and by lifetime do
better on some graphs, so that all are tried and the smallest arena is kept.

Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020 (greedy by size).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from memplan.bounds import live_peak
from memplan.plan import Packing
from memplan.problem import Buffer, MemoryProblem

ORDERS: dict[str, Callable[[Buffer], tuple[int, int, int]]] = {
    "size": lambda buffer: (-buffer.size, buffer.begin, -buffer.end),
    "area": lambda buffer: (-buffer.size * (buffer.end - buffer.begin), -buffer.size, buffer.begin),
    "lifetime": lambda buffer: (buffer.begin - buffer.end, -buffer.size, buffer.begin),
    "start": lambda buffer: (buffer.begin, -buffer.size, -buffer.end),
}


def pack(problem: MemoryProblem) -> Packing:
    """The smallest arena of those that the orders give; the first such order where several do."""
    bound = live_peak(problem)
    best: Packing | None = None
    for name, key in ORDERS.items():
        offsets = _placed(problem, sorted(problem.buffers, key=lambda buffer: (*key(buffer), buffer.name)))
        size = max((offsets[b.name] + problem.aligned(b.size) for b in problem.buffers), default=0)
        if best is None or size < best.arena_size:
            best = Packing(offsets, size, bound, f"greedy by {name}")
        if size == bound:
            break
    assert best is not None, "there is at least one order"
    return best


def _placed(problem: MemoryProblem, order: list[Buffer]) -> dict[str, int]:
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # offset, size, begin, end; sorted by offset
    for buffer in order:
        size, lowest = problem.aligned(buffer.size), 0
        if size == 0:
            offsets[buffer.name] = 0
            continue
        best: tuple[int, int] | None = None  # the gap's size and where it starts: the tightest gap is taken
        for offset, taken, begin, end in placed:
            if begin >= buffer.end or buffer.begin >= end:
                continue
            if offset - lowest >= size and (best is None or offset - lowest < best[0]):
                best = (offset - lowest, lowest)
            lowest = max(lowest, offset + taken)
        start = best[1] if best is not None else lowest
        offsets[buffer.name] = start
        insort(placed, (start, size, buffer.begin, buffer.end))
    return offsets
