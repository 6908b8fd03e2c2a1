"""Where a task graph is narrow: all that follows waits for all before."""

from __future__ import annotations

from scheduler.policies.problem import Problem
from scheduler.policies.waves import levels


def parts(problem: Problem) -> list[list[int]]:
    """The regions cut at every level at which those that come next need all that nothing before reads."""
    made: list[list[int]] = []
    current: list[int] = []
    open_ends: set[int] = set()  # read by nothing so far
    by_level = levels(problem)
    above = 0  # of the last region that reads something from before the level
    reach = [
        max((problem.level[other] for other in problem.behind[region]), default=-1) for region in range(problem.count)
    ]
    for number, level in enumerate(by_level):
        if current and above <= number and _all_need_all(problem, level, open_ends):
            made.append(current)
            current, open_ends = [], set()
        current.extend(level)
        for region in level:
            open_ends.difference_update(problem.before[region])
            above = max(above, reach[region])
        open_ends.update(level)
    return [*made, current] if current else made


def _all_need_all(problem: Problem, level: list[int], ends: set[int]) -> bool:
    return all(ends <= set(problem.before[region]) for region in level)
