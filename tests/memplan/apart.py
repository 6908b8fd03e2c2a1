"""The simplest packing: every buffer that takes bytes behind the one before. Right for any problem without pins."""

from __future__ import annotations

from memplan.plan import Packing
from memplan.problem import MemoryProblem


def apart(problem: MemoryProblem) -> Packing:
    """No two families share a byte, so whatever clashes, clashes inside a family."""
    by_name = {buffer.name: buffer for buffer in problem.buffers}
    offsets: dict[str, int] = {}
    top = 0
    for buffer in problem.buffers:
        if buffer.alias is None:
            alignment = problem.alignment_of(buffer)
            offsets[buffer.name] = top = -(-top // alignment) * alignment
            top += buffer.size
    for buffer in problem.buffers:
        at, root = 0, buffer
        while root.alias is not None:
            at, root = at + root.alias.at, by_name[root.alias.of]
        offsets[buffer.name] = offsets[root.name] + at
    return Packing(offsets, top, top, "apart")
