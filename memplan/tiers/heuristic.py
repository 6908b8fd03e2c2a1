"""Placement without a solver: units compete for the fast tier at prices, then fill it one by one.

First, every unit takes its best course at the prices that bytes have in each tier at each step; where more is wanted
than there is, the price rises, and where less, it falls (subgradients of the Lagrangian relaxation, as negotiated
congestion in routing). Then everything goes back to where it fits, units take their best course in the room that there
is, those that gain most per priced byte first, and again, until nothing gets better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memplan.tiers.cost import copy_time
from memplan.tiers.course import WINDOW, Copy, Course, periods
from memplan.tiers.placement import Placement
from memplan.tiers.search import (
    ASYNC,
    CHANGES,
    GAP,
    READS,
    STATIC,
    SYNC,
    Courses,
    Floats,
    Ints,
    State,
    Table,
    apply,
    improve,
    shake,
    sweep,
    total,
)  # fmt: skip

MODES = {"static": STATIC, "sync": SYNC, "async": ASYNC}
ROUNDS = 40  # of prices
TRIED = range(19, ROUNDS, 5)  # the rounds from whose prices plans are made: they differ more than one would think
SWEEPS = 6  # at most, over all units of a plan
GROUP = 20  # units that are placed anew together, at most
CHUNKS, FEW_CHUNKS, TRIALS_PER_CHUNK = 60, 6, 1000
MANY_UNITS = 5_000
PATIENCE, ENOUGH = 5, 1e-4  # it ends when so many chunks have saved less than this fraction


def table_of(problem: Placement) -> Table:
    """Units and periods as arrays."""
    cuts = [periods(unit) for unit in problem.units]
    flat = [period for cut in cuts for period in cut]
    tiers = problem.machine.tiers
    access = np.zeros((len(flat), len(tiers)))
    kind = np.zeros(len(flat), np.int64)
    for number, period in enumerate(flat):
        if period.use is not None:
            access[number] = problem.access(period.use)
            kind[number] = CHANGES if period.use.changes else READS
        else:
            kind[number] = GAP
    rates = np.full((2, len(tiers), len(tiers)), np.inf)
    for source, one in enumerate(tiers):
        for target, other in enumerate(tiers):
            link = problem.machine.link(one.name, other.name)
            if link is not None:
                rates[0, source, target] = copy_time(link, 1, False)
                rates[1, source, target] = copy_time(link, 1, True)
    return Table(
        first=np.cumsum([0, *(len(cut) for cut in cuts)]).astype(np.int64),
        begin=np.array([period.begin for period in flat], np.int64),
        end=np.array([period.end for period in flat], np.int64),
        kind=kind,
        access=access,
        held=np.array([unit.held for unit in problem.units], np.int64),
        size=np.array([unit.size for unit in problem.units], np.float64),
        constant=np.array([unit.stays for unit in problem.units], np.bool_),
        compute=np.array(problem.compute, np.float64),
        wait=rates[0],
        beside=rates[1],
    )


@dataclass(slots=True)
class Search:
    """A plan in the making: courses and what the steps have with them."""

    table: Table
    capacity: Ints  # bytes, by tier and step
    state: State
    courses: Courses

    @classmethod
    def of(cls, problem: Placement, capacity: Sequence[Sequence[int]]) -> Search:
        """Nothing is placed."""
        table = table_of(problem)
        return cls(table, np.array(capacity, np.int64), _empty(table, capacity), _courses(len(table.kind)))

    def place(self, courses: Courses) -> None:
        """Start again, with these courses."""
        self.state = _empty(self.table, self.capacity)
        for ours, theirs in zip(self.courses, courses, strict=True):
            ours[:] = theirs
        for unit in range(len(self.table.held)):
            apply(self.table, self.state, self.courses, unit, 1)

    def copy(self) -> Courses:
        """The courses as they are."""
        now = self.courses
        return Courses(now.mask.copy(), now.source.copy(), now.target.copy(), now.step.copy(), now.overlapped.copy())

    def price(self, each: Floats) -> None:
        """Set the prices of a byte, by tier and step."""
        self.state.price[:, 1:] = np.cumsum(each, axis=1)

    def sweep(self, order: Ints, mode: int, hard: bool, sweeps: int = SWEEPS) -> None:
        """Better courses for one unit after the other, until nothing changes."""
        saved = _courses(len(self.table.kind))
        for _ in range(sweeps):
            if not sweep(self.table, self.state, self.courses, order, mode, hard, saved):
                return

    def shake(self, mode: int, chunks: int) -> None:
        """Small groups of units that live together are placed anew, as long as that helps."""
        held, saved = self.table.held, _courses(len(self.table.kind))
        by_size = np.argsort(-held, kind="stable")
        # The smallest units, a thousandth of all bytes together, are not worth a trial.
        count = int(np.searchsorted(np.cumsum(held[by_size]), 0.999 * held.sum())) + 1
        candidates = by_size[:count].astype(np.int64)
        times = [self.time()]
        for number in range(chunks):
            shake(self.table, self.state, self.courses, candidates, GROUP, TRIALS_PER_CHUNK, mode, number, saved)
            times.append(self.time())
            if number >= PATIENCE and times[-1 - PATIENCE] - times[-1] < ENOUGH * times[-1]:
                return

    def time(self) -> float:
        """Nanoseconds of the whole plan."""
        return float(total(self.table, self.state))


def static_courses(table: Table, tiers: Sequence[int]) -> Courses:
    """Courses that stay in one tier."""
    courses = _courses(len(table.kind))
    for unit, tier in enumerate(tiers):
        courses.mask[table.first[unit] : table.first[unit + 1]] = 1 << tier
    return courses


def plan(
    problem: Placement, capacity: Sequence[Sequence[int]], mode: str, start: Sequence[int], *, chunks: int = CHUNKS
) -> list[Course]:
    """The course of every unit. `capacity`: bytes by tier and step; `start`: a static placement that fits.

    `chunks`: how much time exchanges of groups may take, in thousands of trials.
    """
    if not problem.units:
        return []
    search = Search.of(problem, capacity)
    slow = static_courses(search.table, start)
    prices = _prices(search, MODES[mode], slow)
    best: tuple[float, Courses] | None = None
    for each in prices if chunks > FEW_CHUNKS else prices[-1:]:
        search.place(slow)
        search.sweep(_order(search, each, MODES[mode]), MODES[mode], hard=True)
        if best is None or search.time() < best[0]:
            best = (search.time(), search.copy())
    assert best is not None, "there is at least one set of prices"
    search.place(best[1])
    search.shake(MODES[mode], chunks)
    return courses_of(problem, search.table, search.courses)


def chunks_beside(problem: Placement) -> int:
    """How long exchanges may take beside an integer program, which needs the time more where there are many units."""
    return CHUNKS if len(problem.units) <= MANY_UNITS else FEW_CHUNKS


def repaired(
    problem: Placement, capacity: Sequence[Sequence[int]], mode: str, found: Sequence[Course], *, chunks: int
) -> list[Course] | None:
    """Courses that keep the capacity (bytes by tier and step), made from such as perhaps do not; None: not found.

    Where a tier holds too much, the unit that loses least by leaving goes; then all may use the room that is left.
    """
    if not problem.units:
        return []
    search = Search.of(problem, capacity)
    search.place(arrays_of(search.table, found))
    if not _squeeze(search, MODES[mode]):
        return None
    search.sweep(np.arange(len(problem.units), dtype=np.int64), MODES[mode], hard=True)
    search.shake(MODES[mode], chunks)
    return courses_of(problem, search.table, search.courses)


def _squeeze(search: Search, mode: int) -> bool:
    table, state, courses = search.table, search.state, search.courses
    owner = np.repeat(np.arange(len(table.held)), np.diff(table.first))
    stuck: set[int] = set()
    tiers = len(state.room)
    slower = [table.access[:, min(tier + 1, tiers - 1)] - table.access[:, tier] for tier in range(tiers)]
    losses = [np.add.reduceat(each, table.first[:-1]) for each in slower]
    while state.room.size and state.room.min() < 0:
        tier, step = (int(one) for one in np.unravel_index(np.argmin(state.room), state.room.shape))
        here = (table.begin <= step) & (step < table.end) & (courses.mask >> tier & 1 == 1)
        # A copy beside an operator takes room outside of its period: then any unit with copies may be the one.
        here |= courses.overlapped & (courses.source >= 0) & (np.abs(courses.step - step) <= WINDOW)
        units = [unit for unit in np.unique(owner[here]).tolist() if unit not in stuck and table.held[unit]]
        if not units:
            return False
        missing = -int(state.room[tier, step])
        unit = min(units, key=lambda one: (losses[tier][one] / min(table.held[one] / missing, 1.0), one))
        apply(table, state, courses, unit, -1)
        improve(table, state, courses, unit, mode, True)  # without a better course, the old one stays
        apply(table, state, courses, unit, 1)
        stuck.add(unit)
    return True


def _prices(search: Search, mode: int, slow: Courses) -> list[Floats]:
    """Prices by tier and step of the rounds that are tried; the last tier's room costs nothing unless it overflows."""
    table = search.table
    search.place(slow)
    everything = np.arange(len(table.held))
    each = np.zeros(search.capacity.shape)
    # A byte's price when all that can be gained is spread evenly over all bytes and steps there are.
    slowest = search.time()
    fast = np.ones_like(slow.mask)
    search.place(slow._replace(mask=fast))
    gain = max(slowest - search.time(), 0.0)
    base = gain / max(float(search.capacity[0].sum()), 1.0)
    search.place(slow)
    kept = []
    for number in range(ROUNDS):
        search.price(each)
        search.sweep(everything, mode, hard=False, sweeps=1)
        over = -search.state.room / np.maximum(search.capacity, 1)
        each = np.maximum(each + base * over * 2.0 / (1.0 + number / 4), 0.0)
        if number in TRIED:
            kept.append(each.copy())
    return kept


def _order(search: Search, each: Floats, mode: int) -> Ints:
    """Units by what they gain for what they would pay, the best first; prices are zero afterwards."""
    table, state = search.table, search.state
    search.price(each)
    keep = search.copy()
    gains = np.zeros(len(table.held))
    for unit in range(len(table.held)):
        before = _cost(search, unit)
        apply(table, state, search.courses, unit, -1)
        after = improve(table, state, search.courses, unit, mode, False)
        gains[unit] = (before - after) / max(table.held[unit], 1.0)
        for ours, theirs in zip(search.courses, keep, strict=True):
            part = slice(table.first[unit], table.first[unit + 1])
            ours[part] = theirs[part]
        apply(table, state, search.courses, unit, 1)
    search.price(np.zeros_like(each))
    return np.argsort(-gains, kind="stable").astype(np.int64)


def _cost(search: Search, unit: int) -> float:
    """What the unit's memory time adds to its steps as it is placed."""
    table, state = search.table, search.state
    cost = 0.0
    for period in range(table.first[unit], table.first[unit + 1]):
        if table.kind[period] != GAP:
            step = table.begin[period]
            mask = int(search.courses.mask[period])
            less = state.memory[step] - table.access[period, (mask & -mask).bit_length() - 1]
            floor = max(table.compute[step], state.copies[step])
            cost += max(floor, state.memory[step]) - max(floor, less)
    return cost


def courses_of(problem: Placement, table: Table, courses: Courses) -> list[Course]:
    """Arrays as records."""
    found = []
    for unit in range(len(problem.units)):
        first, last = int(table.first[unit]), int(table.first[unit + 1])
        copies = {
            period - first: (
                Copy(
                    int(courses.source[period]), int(courses.target[period]), int(courses.step[period]),
                    bool(courses.overlapped[period]),
                ),
            )
            for period in range(first, last)
            if courses.source[period] >= 0
        }  # fmt: skip
        found.append(Course(tuple(int(mask) for mask in courses.mask[first:last]), copies))
    return found


def arrays_of(table: Table, found: Sequence[Course]) -> Courses:
    """Records as arrays; a period with more than one copy cannot be written so and keeps its first."""
    courses = _courses(len(table.kind))
    for unit, course in enumerate(found):
        first = int(table.first[unit])
        for number, mask in enumerate(course.held):
            courses.mask[first + number] = mask
            for copy in course.copies.get(number, ())[:1]:
                courses.source[first + number], courses.target[first + number] = copy.source, copy.target
                courses.step[first + number] = copy.step
                courses.overlapped[first + number] = copy.overlapped
    return courses


def _courses(periods_: int) -> Courses:
    zeros = [np.zeros(periods_, np.int64) for _ in range(3)]
    return Courses(zeros[0], np.full(periods_, -1, np.int64), zeros[1], zeros[2], np.zeros(periods_, np.bool_))


def _empty(table: Table, capacity: Sequence[Sequence[int]] | Ints) -> State:
    room = np.array(capacity, np.int64)
    steps = len(table.compute)
    return State(room, np.zeros(steps), np.zeros(steps), np.zeros(steps), np.zeros((len(room), steps + 1)))
