"""Whether a plan keeps its promises. Shares nothing with any solver: every pair of buffers is looked at by itself."""

from __future__ import annotations

from memplan.errors import MemplanError
from memplan.plan import MemoryPlan
from memplan.problem import MemoryProblem


class WrongPlan(MemplanError):
    """A plan in which buffers clash, or that says a wrong number."""


def verify(problem: MemoryProblem, plan: MemoryPlan) -> None:
    """Raises WrongPlan naming the buffers that clash, the one that is not placed well, or the wrong number."""
    top = 0
    for buffer in problem.buffers:
        offset = plan.offsets.get(buffer.name)
        if offset is None:
            raise WrongPlan(f"buffer '{buffer.name}' has no offset.")
        if offset < 0 or offset % problem.alignment:
            raise WrongPlan(f"buffer '{buffer.name}' starts at {offset}, which is no multiple of {problem.alignment}.")
        top = max(top, offset + buffer.size)
        if offset + buffer.size > plan.arena_size:
            raise WrongPlan(f"buffer '{buffer.name}' ends at {offset + buffer.size}, behind the arena's end.")
    # By offset, so that only neighbours in memory are compared: those after the end of one cannot overlap it.
    order = sorted(problem.buffers, key=lambda buffer: plan.offsets[buffer.name])
    for position, one in enumerate(order):
        end = plan.offsets[one.name] + one.size
        for other in order[position + 1 :]:
            if plan.offsets[other.name] >= end:
                break
            if one.size and other.size and one.begin < other.end and other.begin < one.end:
                raise WrongPlan(
                    f"buffers '{one.name}' and '{other.name}' share bytes at step {max(one.begin, other.begin)}."
                )
    needed = max(
        (sum(b.size for b in problem.buffers if b.begin <= step < b.end) for step in _steps(problem)), default=0
    )
    if not needed <= plan.lower_bound <= plan.arena_size:
        raise WrongPlan(f"the bound {plan.lower_bound} lies not between the live bytes {needed} and the arena.")


def _steps(problem: MemoryProblem) -> list[int]:
    return sorted({buffer.begin for buffer in problem.buffers})
