"""The least arena, or one under a capacity: greedy first, then outward from the peak, then the exact search.

Problems too large for the exact search are packed outward in two ways; the one that gets lower at first goes on.

Every step starts from the best packing so far, so that there is an answer at any moment. The exact search goes through
its preorders in turn with node limits that double: no preorder is good everywhere, and a search that does not find a
packing soon had better be begun anew in another order than gone on with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice

import numpy as np

from memplan.compiling import plainly
from memplan.packing.beam import Beam
from memplan.packing.greedy import PLAIN, Placed, greedy, packing, perturbed
from memplan.packing.outward import Outward
from memplan.packing.placing import place
from memplan.packing.reduced import CannotFit, Reduced, empty_pins, reduce, rows_of
from memplan.packing.search import NOISE, NOISY_PREORDERS, PREORDERS, Outcome, Search
from memplan.packing.sections import Sections, sections
from memplan.plan import Packing
from memplan.problem import MemoryProblem
from memplan.work import Work, allowed

MOST_SEARCHED = 3000  # rows: the exact search keeps every pair that clashes, and gets nowhere with more
SOLVER = "exact search"
_RUNS = 24  # outward, without a limit
_FEW, _MANY = 8, 32  # packings side by side
_BEST_STACKS = 3  # from which many are packed
_BACK = (None, 100, 200, 400, 800, 1600)  # arrivals before the first that lies too high; None: all
_HALVINGS = 6  # between two mixes that favor different sides
_BARREN = 200  # rounds of the beam that find nothing lower, before something else is tried
_BUDGET = 10  # times that all rows are placed, under one limit
_TRIES = 3  # under one limit, before less is asked for
_SHARES = 6  # times that half as much is asked for
_FINEST = 10  # a search between two heights ends where they differ by this power of two of the height
_FIRST_ORDERS = 3  # of greedy, before a large problem is packed outward; the others come last
USUAL_WORK, LARGE_WORK = 10_000_000_000, 20_000_000_000  # steps; for problems too large for the exact search
STEPS_PER_ROW = 1_500  # of greedy packing, for each doubling of the rows
STEPS_PER_NODE = 50  # of the exact search, for each row
_NODES_PER_LOOK = 5000  # at what is left
_PERTURBED = 4  # orders between two climbs, of problems that are too large for the exact search
_LONGEST = 6  # times that a budget is doubled
MOST_TURNS = 1000
PLAIN_ROWS = 400  # so few are packed by all orders before numba has been loaded


@dataclass(slots=True)
class _State:
    """The best packing so far, what is known to be impossible, and the work that is left."""

    reduced: Reduced
    best: Placed
    impossible: int  # no packing of the rows is this high or lower
    enough: int  # a packing of this height ends it all
    limited: bool  # by a capacity: a lower packing that is still too high is worth nothing
    work: Work

    @property
    def proved(self) -> bool:
        return self.best.height <= self.impossible + 1

    def done(self) -> bool:
        return self.best.height <= self.enough or self.proved or self.late()

    def late(self) -> bool:
        return self.work.over()

    def offer(self, found: Placed) -> None:
        if found.height < self.best.height:
            self.best = found


def solve(
    problem: MemoryProblem, *, work: int | None = None, time_limit: float | None = None, start: Packing | None = None
) -> Packing:
    """Offsets of all buffers.

    `work` in steps, by default about ten seconds', of large problems twenty; `time_limit` in seconds.

    With a capacity any arena within it will do; without one the least arena is looked for, and is the given start at
    worst. Raises CannotFit where the capacity is below the lower bound, where a search shows that nothing fits, and
    where the work was not enough.
    """
    reduced = reduce(problem)
    usual = USUAL_WORK if reduced.rows <= MOST_SEARCHED else LARGE_WORK
    with allowed(work, time_limit, usual) as steps:
        return _solve(problem, reduced, steps, start)


def _solve(problem: MemoryProblem, reduced: Reduced, work: Work, start: Packing | None) -> Packing:
    bound = max(reduced.bound * reduced.unit, empty_pins(problem))
    if problem.capacity is not None and problem.capacity < bound:
        raise CannotFit(
            f"the capacity of {problem.capacity} bytes is {bound - problem.capacity} bytes below the lower bound of "
            f"{bound} bytes: no packing fits."
        )
    enough = reduced.bound if problem.capacity is None else problem.capacity // reduced.unit
    with plainly() if reduced.rows <= PLAIN_ROWS else nullcontext():
        best = _first(reduced, start)
        state = _State(reduced, best, reduced.bound - 1, enough, problem.capacity is not None, work)
        small = reduced.rows <= MOST_SEARCHED
        orders = _counted(greedy(reduced), state)
        if small:
            _offered(state, orders)
        if state.best.height > enough:
            for placed in _counted(greedy(reduced, PLAIN), state):  # whatever the work
                state.offer(placed)
                if state.best.height <= enough:
                    break
    outward = None if state.best.height <= enough or (reduced.pinned >= 0).any() else Outward(reduced)
    if outward is not None:
        _offered(state, outward.runs(_RUNS // 3, work))
        if not small:
            _beam(state, Beam(reduced))
        _offered(state, islice(orders, _FIRST_ORDERS))
        _offered(state, outward.runs(_RUNS, work))
        _climb(state, outward, _BUDGET, patient=not small)
    _offered(state, orders)
    if not state.done():
        _exact(state) if small else _again(state, outward)
    if problem.capacity is not None and state.best.height > enough:
        _refuse(problem, state, problem.capacity)
    return packing(problem, reduced, state.best, proved=state.proved, limited=work.limited)


def _first(reduced: Reduced, start: Packing | None) -> Placed:
    """The start, pushed down: placed by rising offset in the lowest hole, no row comes to lie higher than it did."""
    offsets = None if start is None else rows_of(reduced, start.offsets)
    if start is None or offsets is None:
        return next(greedy(reduced))
    found = place(reduced, np.argsort(offsets, kind="stable").astype(np.int64), best_fit=False)
    return Placed(found, reduced.height(found), start.solver)


def _counted(packings: Iterator[Placed], state: _State) -> Iterator[Placed]:
    for placed in packings:
        state.work.spend(_steps_of_greedy(state.reduced))
        yield placed


def _steps_of_greedy(reduced: Reduced) -> int:
    return STEPS_PER_ROW * reduced.rows * reduced.rows.bit_length()


def _again(state: _State, outward: Outward | None) -> None:
    """What is left of the work goes into perturbed orders, and into limits that are tried for longer each time."""
    for turn in range(MOST_TURNS):
        if outward is not None:
            _offered(state, outward.runs(_RUNS, state.work))
            _climb(state, outward, _BUDGET << min(turn, _LONGEST), patient=True)
        packings = (perturbed(state.reduced, _PERTURBED * turn + number) for number in range(_PERTURBED))
        _offered(state, _counted(packings, state))
        if state.done():
            return


def _offered(state: _State, placed: Iterator[Placed]) -> None:
    while not state.done():
        found = next(placed, None)
        if found is None:
            return
        state.offer(found)


def _climb(state: _State, outward: Outward, budget: int, *, patient: bool) -> None:
    """Under limits between the bound and the best: halfway at first, then nearer to the best."""
    share = failed = 0
    while not state.done() and (patient or failed == 0):
        distance = state.best.height - state.reduced.bound
        part = max(1, distance >> (1 + share))
        below = outward.under(state.best.height - part, budget, state.work)
        if below is not None:
            state.offer(below)
            failed = 0
            continue
        failed += 1
        if failed == _TRIES:
            failed = 0
            share += 1
            if part == 1 or share == _SHARES:
                return


def _beam(state: _State, beam: Beam) -> None:
    """Few packings side by side from every stack; if that is lower than all before, more from the best stacks.

    The stacks that favor either side are mixed until both sides come out alike.
    """
    before, barren = state.best.height, 0
    for stack in beam.stacks():
        _below(state, beam, None, stack, 1)
    for _ in range(_HALVINGS):
        mixed = None if state.done() else beam.mixed()
        if mixed is None:
            break
        _below(state, beam, None, mixed, 1)
    for stack in beam.stacks():
        _below(state, beam, state.best.height, stack, _FEW)
    while state.best.height < before and barren < _BARREN and not state.done():
        lowest = state.best.height
        for stack in beam.stacks()[:_BEST_STACKS]:
            _below(state, beam, state.best.height, stack, _MANY, _BACK[barren % len(_BACK)])
        barren = 0 if state.best.height < lowest else barren + 1


def _below(state: _State, beam: Beam, height: int | None, stack: int, width: int, back: int | None = None) -> None:
    found = None if state.done() else beam.below(height, stack, width, state.work, back)
    if found is not None:
        state.offer(found)


def _exact(state: _State) -> None:
    """Search at what is enough, then by halves between that and the best; again and again with twice as many nodes."""
    rows = sections(state.reduced)
    turn = -1
    while not state.done():
        turn += 1
        limit = state.reduced.rows << (turn + 1)
        aim = low = max(state.enough, state.impossible + 1)
        while aim < state.best.height and not state.late():
            search, outcome = _in_turn(rows, aim, turn, limit, state.work)
            if outcome == "found":
                order = np.argsort(search.solution, kind="stable").astype(np.int64)
                offsets = place(state.reduced, order, best_fit=False)
                state.offer(Placed(offsets, state.reduced.height(offsets), SOLVER))
            else:
                low = aim
                if outcome == "exhausted":
                    state.impossible = max(state.impossible, aim)
            if state.limited or state.done() or state.best.height - low <= 1 + (state.best.height >> _FINEST):
                break
            aim = (low + state.best.height) // 2


def _in_turn(rows: Sections, capacity: int, turn: int, limit: int, work: Work) -> tuple[Search, Outcome]:
    """One search after the other, each with a preorder of its own and so many nodes; with noise from turn 1 on."""
    orders = [(preorder, 0.0) for preorder in PREORDERS]
    if turn:
        orders += [(preorder, NOISE) for preorder in NOISY_PREORDERS]
    for number, (preorder, noise) in enumerate(orders):
        search, left = Search(rows, capacity, preorder, noise, turn * len(orders) + number), limit
        outcome: Outcome = "open"
        while left > 0 and outcome == "open" and not work.over():
            nodes = min(left, _NODES_PER_LOOK)
            outcome = search.advance(nodes)
            work.spend(STEPS_PER_NODE * nodes * len(rows.size))
            left -= nodes
        if outcome != "open" or work.over():
            break
    return search, outcome


def _refuse(problem: MemoryProblem, state: _State, capacity: int) -> None:
    best = state.best.height * state.reduced.unit
    if state.impossible >= capacity // state.reduced.unit and state.reduced.exact:
        raise CannotFit(
            f"no packing fits the capacity of {capacity} bytes: every one was ruled out by a search; the best found "
            f"takes {best} bytes."
        )
    raise CannotFit(
        f"no packing within the capacity of {capacity} bytes was found with the work allowed; the best takes {best} "
        "bytes: allow more work or more bytes."
    )
