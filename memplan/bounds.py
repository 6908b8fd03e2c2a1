"""Lower bounds of an arena: no plan can be smaller."""

from __future__ import annotations

from memplan.problem import MemoryProblem


def live_peak(problem: MemoryProblem) -> int:
    """The largest sum of aligned sizes that are live at any step, in bytes."""
    changes: dict[int, int] = {}
    for buffer in problem.buffers:
        size = problem.aligned(buffer.size)
        changes[buffer.begin] = changes.get(buffer.begin, 0) + size
        changes[buffer.end] = changes.get(buffer.end, 0) - size
    live = peak = 0
    for step in sorted(changes):
        live += changes[step]
        peak = max(peak, live)
    return peak
