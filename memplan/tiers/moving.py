"""Placement with moves as an integer program: for each period of a unit's life, which tiers hold it.

The network flow of AutoTM (ASPLOS 2020) over each value's uses, without its enumeration of operators' configurations.
For a unit, a period p and a tier t, the binary `holds[p][t]` says that a valid copy lies there. From one period to the
next a tier holds what it held, or what is copied to it from a tier that held it:

    holds[p+1][t]  <=  valid[p][t] + sum of copies to t         copies from s  <=  valid[p][s]

`valid` is `holds`, except after a step that writes: then only the tier written to is valid. A copy in a slower tier
stays valid until something is written, so that weights and features that come back can be dropped again for nothing.

Copies to a slower tier are made right after a use and those to a faster one right before a use: elsewhere they take as
long and hold the fast tier for longer. Beside operators, they may run within 15 operators after and before. An
operator's bytes count in the fastest tier that holds them. Constants end where they began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pulp

from memplan.tiers.cost import copy_time
from memplan.tiers.course import Copy, Course, Period, fastest, periods, windows
from memplan.tiers.placement import Placement, Unit
from memplan.tiers.program import Entry, Program, Solved, Terms
from memplan.work import Work


@dataclass(slots=True)
class _Unit:
    """The variables of one unit."""

    unit: Unit
    cut: tuple[Period, ...]
    holds: list[list[pulp.LpVariable]]
    copies: list[list[tuple[Copy, pulp.LpVariable]]] = field(default_factory=list)


def place(
    problem: Placement,
    capacity: Sequence[Sequence[int]],
    overlapped: bool,
    work: Work,
    gap: float,
    start: Sequence[Course] | None = None,
) -> tuple[list[Course], Solved]:
    """The course of every unit, and what the solver says; its bound (nanoseconds) is one of plans of this form.

    `capacity`: bytes by tier and step. `work`: what the solver may do. `overlapped`: copies may run beside
    operators too.
    """
    builder = _Builder(problem, overlapped)
    units = [builder.unit(unit) for unit in problem.units]
    builder.times()
    builder.room(units, capacity)
    known = None
    if start is not None:
        known = {name: value for one, course in zip(units, start, strict=True) for name, value in _known(one, course)}
    solved = builder.program.solve(work, gap, known, builder.constant / builder.scale)
    courses = [_course(one, solved) for one in units]
    return courses, Solved(solved.objective * builder.scale, solved.bound * builder.scale, solved.solver, solved.values)


class _Builder:
    """Writes the rows."""

    def __init__(self, problem: Placement, overlapped: bool) -> None:
        self.problem = problem
        self.machine = problem.machine
        self.overlapped = overlapped
        self.program = Program()
        self.tiers = range(len(self.machine.tiers))
        self.links = [
            [self.machine.link(source.name, target.name) for target in self.machine.tiers]
            for source in self.machine.tiers
        ]
        steps = len(problem.compute)
        self.slow = [0.0] * steps  # memory time of a step if all its units lie in the last tier
        for unit in problem.units:
            for use in unit.uses:
                self.slow[use.step] += problem.access(use)[-1]
        slowest = [max(pair) for pair in zip(self.slow, problem.compute, strict=True)]
        self.slowest = slowest
        self.scale = max(sum(slowest), 1.0) / 1e4  # nanoseconds in the program's unit of time
        self.saves: list[Terms] = [[] for _ in range(steps)]
        self.beside: list[Terms] = [[] for _ in range(steps)]
        self.constant = 0.0

    def unit(self, unit: Unit) -> _Unit:
        """The variables and rows of one unit."""
        program, cut = self.program, periods(unit)
        one = _Unit(unit, cut, [[program.binary() for _ in self.tiers] for _ in cut])
        for holds in one.holds:
            program.at_least([(held, 1.0) for held in holds], 1.0)
        program.equal([(held, 1.0) for held in one.holds[0]], 1.0)
        one.copies.append([])
        valid = self._use(one, 0)
        for number in range(1, len(cut)):
            copies = self._copies(one, number)
            one.copies.append(copies)
            for tier in self.tiers:
                there: Terms = [(one.holds[number][tier], 1.0), *((v, -f) for v, f in valid[tier][0])]
                there += [(variable, -1.0) for copy, variable in copies if copy.target == tier]
                program.at_most(there, valid[tier][1])
                leaving: Terms = [(variable, 1.0) for copy, variable in copies if copy.source == tier]
                if leaving:
                    program.at_most([*leaving, *((v, -f) for v, f in valid[tier][0])], valid[tier][1])
                rising: Terms = [(v, 1.0) for copy, v in copies if copy.source == tier and copy.target < tier]
                if rising:  # the source counts until the copy has been made
                    program.at_most([*rising, (one.holds[number][tier], -1.0)], 0.0)
            valid = self._use(one, number)
        if unit.stays and len(cut) > 1:
            for tier in self.tiers:
                program.at_most([(one.holds[0][tier], 1.0), (one.holds[-1][tier], -1.0)], 0.0)
        return one

    def _use(self, one: _Unit, number: int) -> list[tuple[Terms, float]]:
        """Count the bytes of a use; returns by tier what is valid afterwards, as terms and a constant."""
        period, holds = one.cut[number], one.holds[number]
        plain: list[tuple[Terms, float]] = [([(held, 1.0)], 0.0) for held in holds]
        if period.use is None:
            return plain
        times = self.problem.access(period.use)
        access = self._access(holds, period.use.changes)
        for (terms, constant), time in zip(access, times, strict=True):
            saved = (times[-1] - time) / self.scale
            if saved:
                self.saves[period.begin] += [(variable, factor * saved) for variable, factor in terms]
                self.slow[period.begin] -= constant * saved * self.scale
        return access if period.use.changes else plain

    def _access(self, holds: Sequence[pulp.LpVariable], changes: bool) -> list[tuple[Terms, float]]:
        """By tier, whether it is the one accessed: as terms and a constant."""
        if len(holds) == 1:
            return [([], 1.0)]
        if len(holds) == 2:
            return [([(holds[0], 1.0)], 0.0), ([(holds[0], -1.0)], 1.0)]
        chosen = [self.program.continuous(0.0, 1.0) for _ in holds]
        self.program.equal([(one, 1.0) for one in chosen], 1.0)
        for tier, one in enumerate(chosen):
            self.program.at_most([(one, 1.0), (holds[tier], -1.0)], 0.0)
            if changes:  # writing to a slow tier beside a fast copy would make that one stale: never useful, so refused
                for faster in holds[:tier]:
                    self.program.at_most([(one, 1.0), (faster, 1.0)], 1.0)
        return [([(one, 1.0)], 0.0) for one in chosen]

    def _copies(self, one: _Unit, number: int) -> list[tuple[Copy, pulp.LpVariable]]:
        """The copies that may lead into a period."""
        before, period = one.cut[number - 1], one.cut[number]
        found: list[tuple[Copy, pulp.LpVariable]] = []
        for source in self.tiers:
            for target in self.tiers:
                link = self.links[source][target]
                falls = source < target
                if link is None or source == target:
                    continue
                if falls and before.use is None and period.use is not None:
                    continue  # after the use before the gap, not at its end
                if not falls and period.use is None:
                    continue  # before the use behind the gap
                wait = copy_time(link, one.unit.size, False)
                variable = self._copy_variable()
                self.program.cost(variable, wait / self.scale)
                found.append((Copy(source, target, period.begin, False), variable))
                gap = period if falls else before
                if not self.overlapped or link.async_bandwidth is None or gap.use is not None:
                    continue
                beside = copy_time(link, one.unit.size, True)
                for step in windows(gap)[0 if falls else 1]:
                    if beside - self.slowest[step] < wait:  # otherwise waiting for the copy takes no longer
                        variable = self.program.binary()
                        self.beside[step].append((variable, beside / self.scale))
                        found.append((Copy(source, target, step, True), variable))
        return found

    def _copy_variable(self) -> pulp.LpVariable:
        """Where holders are whole, so are copies; beside overlapped ones, halves of both kinds would make a whole."""
        return self.program.binary() if self.overlapped else self.program.continuous(0.0, 1.0)

    def times(self) -> None:
        """The time of every step."""
        for step, compute in enumerate(self.problem.compute):
            if not self.beside[step] and (self.slow[step] <= compute or not self.saves[step]):
                self.constant += max(compute, self.slow[step])
                continue
            time = self.program.continuous(compute / self.scale)
            self.program.cost(time, 1.0)
            if self.slow[step] > compute:
                self.program.at_least([(time, 1.0), *self.saves[step]], self.slow[step] / self.scale)
            if self.beside[step]:
                self.program.at_least([(time, 1.0), *((one, -each) for one, each in self.beside[step])], 0.0)

    def room(self, units: Sequence[_Unit], capacity: Sequence[Sequence[int]]) -> None:
        """No tier holds more than its capacity at any step."""
        for tier in self.tiers:
            entries = []
            for one in units:
                for period, holds in zip(one.cut, one.holds, strict=True):
                    entries.append(Entry(holds[tier], one.unit.held, period.begin, period.end))
                for number, copies in enumerate(one.copies):
                    for copy, variable in copies:
                        if not copy.overlapped:
                            continue
                        if copy.source == tier and copy.target > tier:  # held until the copy has been made
                            entries.append(Entry(variable, one.unit.held, one.cut[number].begin, copy.step + 1))
                        elif copy.target == tier and copy.source > tier:  # held from the copy's begin
                            entries.append(Entry(variable, one.unit.held, copy.step, one.cut[number].begin))
            self.program.occupy(entries, capacity[tier])


def _known(one: _Unit, course: Course) -> list[tuple[str, float]]:
    """A course as values of the unit's variables."""
    found = []
    for held, holds in zip(course.held, one.holds, strict=True):
        found += [(variable.name, float(held >> tier & 1)) for tier, variable in enumerate(holds)]
    for number, copies in enumerate(one.copies):
        made = course.copies.get(number, ())
        found += [(variable.name, float(copy in made)) for copy, variable in copies]
    return found


def _course(one: _Unit, solved: Solved) -> Course:
    """The course that the variables describe; copies of what is there already are left out."""
    held = tuple(
        sum(1 << tier for tier, variable in enumerate(holds) if solved.values.get(variable.name, 0.0) > 0.5)
        for holds in one.holds
    )
    copies: dict[int, tuple[Copy, ...]] = {}
    for number in range(1, len(held)):
        before, use = held[number - 1], one.cut[number - 1].use
        valid = 1 << fastest(before) if use is not None and use.changes else before
        made = []
        for tier in range(held[number].bit_length()):
            if held[number] & ~valid & 1 << tier:
                ways = [pair for pair in one.copies[number] if pair[0].target == tier]
                made.append(max(ways, key=lambda pair: solved.values.get(pair[1].name, 0.0))[0])
        if made:
            copies[number] = tuple(made)
    return Course(held, copies)
