"""Lower bounds of an arena: no packing can be smaller."""

from __future__ import annotations

from collections.abc import Mapping

from memplan.problem import MemoryProblem


def alias_classes(problem: MemoryProblem) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """By the name of each buffer that takes bytes: the half-open ranges of steps in which it or an alias is needed."""
    by_name = {buffer.name: buffer for buffer in problem.buffers}
    ranges: dict[str, list[tuple[int, int]]] = {}
    for buffer in problem.buffers:
        root = buffer
        while root.alias is not None:
            root = by_name[root.alias.of]
        ranges.setdefault(root.name, []).extend(buffer.ranges())
    return {root: _union(found) for root, found in ranges.items()}


def _union(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return tuple(joined)


def live_bytes(problem: MemoryProblem) -> list[tuple[int, int]]:
    """The live bytes from each step at which they change, in order: (step, bytes until the next)."""
    unit = problem.granularity
    size = {buffer.name: -(-buffer.size // unit) * unit for buffer in problem.buffers}
    changes: dict[int, int] = {}
    for root, ranges in alias_classes(problem).items():
        for begin, end in ranges:
            changes[begin] = changes.get(begin, 0) + size[root]
            changes[end] = changes.get(end, 0) - size[root]
    live, found = 0, []
    for step in sorted(changes):
        live += changes[step]
        found.append((step, live))
    return found


def live_peak(problem: MemoryProblem) -> int:
    """The largest sum of sizes, rounded up to what every offset is a multiple of, that are live at a step, in bytes."""
    return max((live for _, live in live_bytes(problem)), default=0)
