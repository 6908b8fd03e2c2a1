"""The order of operators for least live peak: rules of thumb first, then exact search part by part.

An operator that comes before or behind every other one, whatever the order, cuts the graph: the operators before it are
ordered by themselves, and those behind it. The peak is the largest of the parts' peaks, so that only the part with the
largest is worked on, until it is proved that it cannot be smaller. What resists is improved by random moves under a
target that falls as long as it is met, and where the peak is: the steps around it are ordered again by exact search.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import plainly
from memplan.graph import Graph
from memplan.ordering.anneal import LARGEST, Annealing, round_of
from memplan.ordering.arrays import Arrays, Ints, arrays_of
from memplan.ordering.greedy import greedy_orders
from memplan.ordering.part import Part, floor_of, part_of
from memplan.ordering.profile import peak, profile
from memplan.ordering.runs import needs, tables
from memplan.ordering.search import EXHAUSTED, FOUND, FULL, PAUSED, Search
from memplan.work import Limit, Work, allowed

MOST_OPERATORS = 1_536  # of a part that is searched as a whole: beyond, its sets take too long to compare
ROOMS = (2_000, 60_000)  # states of a first search
LARGE_ROOM = 2_000_000
MOST_BYTES = 400_000_000  # of a search's states
FEW = 1000  # operators, ordered by rules of thumb faster than numba is imported
USUAL_WORK = 60_000_000_000  # steps
STEPS_PER_LOOK = 7  # of an exact search
SLICE = 2_000_000  # looks between two at the budget
STEPS_PER_OPERATOR = 50_000  # of a part, before it is searched
STEPS_PER_RUN = 50  # of an order whose needs are counted
FIRST_STEP, LAST_STEP = 0.02, 0.001  # of the peak: how much less the target is
COOL_SHARE = 0.5  # of what is left
DIVES = 6  # targets between bound and peak that are tried
DIVE_STATES = 30_000
WINDOWS = (16, 32, 64, 128)  # operators around the peak that are ordered again
WINDOW_STATES = 20_000


@dataclass(frozen=True, slots=True)
class Ordered:
    """An order of all operators and its peak, as memplan.verify.sequence counts it."""

    order: tuple[str, ...]
    peak: int  # bytes
    lower_bound: int  # bytes: no order needs less
    proved_optimal: bool
    solver: str
    limited: Limit | None = None  # what ended the search before it had nothing more to try

    @property
    def gap(self) -> float:
        """How far the peak is above the bound, as a fraction of the bound."""
        return (self.peak - self.lower_bound) / self.lower_bound if self.lower_bound else 0.0


def order(graph: Graph, *, work: int | None = None, time_limit: float | None = None) -> Ordered:
    """An order with the least peak that was found; never one above the given order's.

    `work` in steps, a minute's where nothing is said; `time_limit` in seconds, if the user wants one.
    """
    arrays = arrays_of(graph)
    with allowed(work, time_limit, USUAL_WORK) as budget:
        best = best_order(arrays, budget)
    names = tuple(arrays.names[one] for one in best.order)
    proved = best.peak == best.lower_bound
    return Ordered(names, best.peak, best.lower_bound, proved, best.solver, None if proved else budget.limited)


@dataclass(slots=True)
class _Share:
    """A part with the best order known."""

    first: int  # step
    order: Ints
    peak: int
    bound: int
    solver: str
    spent: int = 0  # 1: searched quickly, 2: nothing more is known to be tried


@dataclass(frozen=True, slots=True)
class Best:
    """The same as Ordered, in positions."""

    order: Ints
    peak: int
    lower_bound: int
    solver: str


def best_order(arrays: Arrays, work: Work) -> Best:
    """As `order`, on arrays."""
    if not arrays.count:
        return Best(np.zeros(0, np.int64), arrays.inputs_size(), arrays.inputs_size(), "given")
    with _plain(arrays):
        shares = _parts(arrays)
        lives = profile(arrays, np.concatenate([share.order for share in shares]))[1]
    for thorough in (False, True):
        while not work.over():
            bound = max(share.bound for share in shares)
            worst = max(shares, key=lambda share: share.peak)
            if worst.peak <= bound or worst.spent > thorough:
                break
            ran = np.zeros(arrays.count, np.bool_)
            for share in shares:
                if share.first < worst.first:
                    ran[share.order] = True
            _improve(arrays, worst, ran, int(lives[worst.first]), bound, work, thorough)
        if not thorough:
            _cool(arrays, shares, work)
    found = np.concatenate([share.order for share in shares])
    worst = max(shares, key=lambda share: share.peak)
    with _plain(arrays):
        solver, top = worst.solver, peak(arrays, found)
        given = np.arange(arrays.count, dtype=np.int64)
        if top > peak(arrays, given):  # inputs that nobody reads stand beside the first operator: no search knows that
            found, solver, top = given, "given", peak(arrays, given)
    return Best(found, top, min(top, max(share.bound for share in shares)), solver)


def _plain(arrays: Arrays) -> contextlib.AbstractContextManager[None]:
    """Inside, functions run as they are written where operators are few and numba has not been loaded."""
    return plainly() if arrays.count <= FEW else contextlib.nullcontext()


def _parts(arrays: Arrays) -> list[_Share]:
    """The parts between operators that cut the graph, each in the best of the orders that rules of thumb give."""
    candidates = greedy_orders(arrays)
    cuts = _cuts(arrays)
    needs = [profile(arrays, candidate)[0] for candidate in candidates]
    lives = profile(arrays, candidates[0])[1]
    ran = np.zeros(arrays.count, np.bool_)
    shares = []
    for first, last in zip(cuts, [*cuts[1:], arrays.count], strict=True):
        tops = [int(need[first:last].max()) for need in needs]
        at = min(range(len(tops)), key=lambda one: tops[one])
        floor = floor_of(arrays, candidates[0][first:last], ran, int(lives[first]))
        name = ("given", "depth first", "least growth", "least growth from the end")[at]
        shares.append(_Share(first, candidates[at][first:last].copy(), tops[at], floor, name))
        ran[first:last] = True
    return shares


def _cuts(arrays: Arrays) -> list[int]:
    """Steps at which a part begins: 0, and those behind an operator that is comparable with every other.

    In the given order, everything before a step leads to it if everything before it has a successor no later than it;
    likewise everything behind it.
    """
    count = arrays.count
    reach = np.array([min(map(int, arrays.behind[one]), default=count) for one in range(count)], np.int64)
    reach_back = np.array([max(map(int, arrays.before[one]), default=-1) for one in range(count)], np.int64)
    farthest = np.concatenate([[-1], np.maximum.accumulate(reach)[:-1]])
    nearest = np.concatenate([np.minimum.accumulate(reach_back[::-1])[::-1][1:], [count]])
    return [0, *(one + 1 for one in range(count - 1) if farthest[one] <= one and nearest[one] >= one)]


def _improve(
    arrays: Arrays, share: _Share, ran: NDArray[np.bool_], live: int, enough: int, work: Work, thorough: bool
) -> None:
    """Work on one part until its peak is `enough`, or proved, or everything has been tried."""
    share.spent = 2 if thorough else 1
    part = _part(arrays, share.order, ran, live, work) if len(share.order) <= MOST_OPERATORS else None
    if not thorough:
        if part is not None:
            _search(share, part, ROOMS, work)
        return
    while share.peak > max(share.bound, enough) and not work.over():
        if not _reorder_around_peak(arrays, share, ran, live, work):
            break
    if part is not None and share.peak > max(share.bound, enough):
        _dive(share, part, enough, work)
        if share.peak > max(share.bound, enough):
            _search(share, part, (LARGE_ROOM,), work)


def _cool(arrays: Arrays, shares: list[_Share], work: Work) -> None:
    """Random moves under a falling target; no run leaves its part, since what cuts the graph stays where it is."""
    bound = max(share.bound for share in shares)
    worst = max(share.peak for share in shares)
    if worst <= bound or arrays.count > LARGEST:
        return
    graph = tables(arrays)
    cooling = work.part(COOL_SHARE)
    runs = np.concatenate([share.order for share in shares])
    step, seed, round_ = FIRST_STEP, 0, round_of(arrays, cooling)
    while worst > bound and step >= LAST_STEP and cooling.affords(round_):
        cooling.spend(round_)
        target = max(bound, min(worst - 1, int(worst * (1 - step))))
        seed += 1
        moved = Annealing(arrays, runs, target, adding=False, seed=seed).run(round_, 0.0)
        top = int(needs(graph, moved).max())
        if top < worst:
            runs, worst = moved, top
        if top > target:
            step /= 2
    needed = needs(graph, runs)
    for share in shares:
        part = slice(share.first, share.first + len(share.order))
        if int(needed[part].max()) < share.peak:
            share.order, share.peak, share.solver = runs[part].copy(), int(needed[part].max()), "annealing"


def _capacity(part: Part, most: int) -> int:
    return min(most, MOST_BYTES // (8 * int(part.before.shape[1]) + 80)) + part.count + 2


def _part(arrays: Arrays, operators: Ints, ran: NDArray[np.bool_], live: int, work: Work) -> Part:
    work.spend(STEPS_PER_OPERATOR * len(operators))
    return part_of(arrays, operators, ran, live)


def _go(search: Search, work: Work) -> int:
    outcome = PAUSED
    while outcome == PAUSED and not work.over():
        before = search.looks
        outcome = search.run(min(SLICE, work.left // STEPS_PER_LOOK + 1))
        work.spend((search.looks - before) * STEPS_PER_LOOK)
    return outcome


def _search(share: _Share, part: Part, rooms: Sequence[int], work: Work) -> None:
    """The exact search, level by level; with more room each time that it does not suffice."""
    for states in rooms:
        search = Search(part, share.bound, share.peak, states=_capacity(part, states))
        outcome = _go(search, work)
        if outcome == FOUND:
            share.order, share.peak, share.bound, share.solver = search.order(), search.level, search.level, "search"
        elif outcome == EXHAUSTED:
            share.bound = share.peak
        else:
            share.bound = max(share.bound, search.level)
        if outcome != FULL:
            break


def _dive(share: _Share, part: Part, enough: int, work: Work) -> None:
    """Depth first under a fixed level between bound and peak: half of the distance, as often as that helps."""
    low = max(share.bound, enough)
    for _ in range(DIVES):
        target = (low + share.peak) // 2
        if target >= share.peak or work.over():
            break
        search = Search(part, target, share.peak, states=_capacity(part, DIVE_STATES), rising=False)
        outcome = _go(search, work)
        if outcome == FOUND:
            share.order, share.solver = search.order(), "search"
            share.peak = target
        else:
            low = target + 1
            if outcome == EXHAUSTED:
                share.bound = max(share.bound, low)


def _reorder_around_peak(arrays: Arrays, share: _Share, ran: NDArray[np.bool_], live: int, work: Work) -> bool:
    """Order the steps around the peak again; whether that made the part's peak smaller or rarer."""
    work.spend(STEPS_PER_RUN * arrays.count)
    needed, lives = _part_profile(arrays, share.order, ran, live)
    share.peak = int(needed.max())
    top = int(np.argmax(needed))
    for width in WINDOWS:
        for back in (width // 2, width // 4, 3 * width // 4):
            if work.over():
                return False
            first = max(0, min(top - back, len(share.order) - width))
            window = share.order[first : first + width]
            before = ran.copy()
            before[share.order[:first]] = True
            part = _part(arrays, window, before, int(lives[first]), work)
            if part.floor >= share.peak:
                continue
            search = Search(part, part.floor, share.peak, states=WINDOW_STATES)
            if _go(search, work) == FOUND:
                share.order = np.concatenate([share.order[:first], search.order(), share.order[first + width :]])
                share.solver = "windows"
                share.peak = int(_part_profile(arrays, share.order, ran, live)[0].max())
                return True
    return False


def _part_profile(arrays: Arrays, part: Ints, ran: NDArray[np.bool_], live: int) -> tuple[Ints, Ints]:
    rest = np.ones(arrays.count, np.bool_)
    rest[part] = False
    before, behind = np.flatnonzero(ran), np.flatnonzero(rest & ~ran)
    needed, lives = profile(arrays, np.concatenate([before, part, behind]))
    at = slice(len(before), len(before) + len(part))
    return needed[at], lives[at]
