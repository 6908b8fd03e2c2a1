"""Static placement as an integer program: every unit has one tier for its whole life.

One binary for each unit and tier but the last (which has what is in no other); a step's time is at least its compute
time and at least its memory time, which is linear in the placement, so that AutoTM's enumeration of every operator's
configurations is not needed: the same optimum hundreds of times faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulp

from memplan.tiers.course import Course, fastest, stays_in
from memplan.tiers.placement import Placement
from memplan.tiers.program import Entry, Program, Solved, Terms
from memplan.work import Work


def place(
    problem: Placement,
    capacity: Sequence[Sequence[int]],
    work: Work,
    gap: float,
    start: Sequence[Course] | None = None,
) -> tuple[list[Course], Solved]:
    """The course of every unit, and what the solver says; the bound is in nanoseconds.

    `capacity`: bytes by tier and step. `work`: what the solver may do. `start`: a placement to begin with.
    """
    tiers = len(problem.machine.tiers)
    program = Program()
    inside: list[list[pulp.LpVariable]] = [[program.binary() for _ in range(tiers - 1)] for _ in problem.units]
    for chosen in inside:
        if len(chosen) > 1:
            program.at_most([(one, 1.0) for one in chosen], 1.0)
    for tier in range(tiers - 1):
        entries = [
            Entry(chosen[tier], unit.held, unit.begin, unit.end)
            for unit, chosen in zip(problem.units, inside, strict=True)
        ]
        program.occupy(entries, capacity[tier])
    _last_tier(program, problem, inside, capacity[-1])
    constant, unit_time = _times(program, problem, inside)
    known = None
    if start is not None:
        known = {
            one.name: float(tier == fastest(course.held[0]))
            for chosen, course in zip(inside, start, strict=True)
            for tier, one in enumerate(chosen)
        }
    solved = program.solve(work, gap, known, constant / unit_time)
    found = [
        next((tier for tier, one in enumerate(chosen) if solved.values.get(one.name, 0.0) > 0.5), tiers - 1)
        for chosen in inside
    ]
    courses = [stays_in(unit, tier) for unit, tier in zip(problem.units, found, strict=True)]
    return courses, Solved(solved.objective * unit_time, solved.bound * unit_time, solved.solver, solved.values)


def _last_tier(
    program: Program, problem: Placement, inside: Sequence[Sequence[pulp.LpVariable]], capacity: Sequence[int]
) -> None:
    """What is in no other tier fits the last: there, absence is a variable of its own."""
    if all(live <= most for live, most in zip(problem.live(), capacity, strict=True)):
        return
    entries = []
    for unit, chosen in zip(problem.units, inside, strict=True):
        absent = program.continuous(0.0, 1.0)
        program.equal([(absent, 1.0), *((one, 1.0) for one in chosen)], 1.0)
        entries.append(Entry(absent, unit.held, unit.begin, unit.end))
    program.occupy(entries, capacity)


def _times(program: Program, problem: Placement, inside: Sequence[Sequence[pulp.LpVariable]]) -> tuple[float, float]:
    """Rows of steps' times. Returns the nanoseconds that no placement changes, and those of the objective's unit."""
    slow = [0.0] * len(problem.compute)  # memory time with everything in the last tier
    saves: list[Terms] = [[] for _ in problem.compute]
    for unit, chosen in zip(problem.units, inside, strict=True):
        for use in unit.uses:
            times = problem.access(use)
            slow[use.step] += times[-1]
            saves[use.step] += [(one, times[-1] - time) for one, time in zip(chosen, times, strict=False)]
    unit_time = max(sum(max(pair) for pair in zip(slow, problem.compute, strict=True)), 1.0) / 1e4
    constant = 0.0
    for step, compute in enumerate(problem.compute):
        if slow[step] <= compute or not saves[step]:
            constant += max(compute, slow[step])
            continue
        time = program.continuous(compute / unit_time)
        program.cost(time, 1.0)
        terms: Terms = [(time, 1.0), *((one, saved / unit_time) for one, saved in saves[step] if saved)]
        program.at_least(terms, slow[step] / unit_time)
    return constant, unit_time
