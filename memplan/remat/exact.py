"""The least extra time for small graphs, proved: every way to run operators and drop values, cheapest first.

A state is what has run at least once and which values are there. Running an operator for the first time is free,
running it again costs its time, dropping a value is free and only tried where something does not fit. States are
looked at by cost, and among those of equal cost the one that has come farthest.
"""

from __future__ import annotations

import heapq

import numpy as np

from memplan.ordering.arrays import Arrays, Ints

MOST_VALUES = 30
MOST_STATES = 60_000

State = tuple[int, int]  # bits of operators that have run, bits of values that are there


def least_extra(arrays: Arrays, budget: int) -> Ints | None:
    """The runs of least time within the budget; None where there are none or where the graph is too large for this."""
    if len(arrays.size) > MOST_VALUES:
        return None
    problem = _Problem(arrays, budget)
    start: State = (0, problem.given)
    extra: dict[State, float] = {start: 0.0}
    back: dict[State, tuple[State, int]] = {}
    heap: list[tuple[float, int, int, State]] = [(0.0, 0, 0, start)]
    number = 0
    while heap and len(extra) < MOST_STATES:
        cost, _, _, state = heapq.heappop(heap)
        if cost > extra[state]:
            continue
        if problem.is_done(state):
            return _runs(state, back)
        for one, further, more in problem.steps(state):
            if cost + more < extra.get(further, np.inf):
                extra[further] = cost + more
                back[further] = (state, one)
                number += 1
                heapq.heappush(heap, (cost + more, -further[0].bit_count(), -number, further))
    return None


def _runs(state: State, back: dict[State, tuple[State, int]]) -> Ints:
    runs = []
    while state in back:
        state, one = back[state]
        if one >= 0:
            runs.append(one)
    return np.array(runs[::-1], np.int64)


class _Problem:
    def __init__(self, arrays: Arrays, budget: int) -> None:
        self._arrays, self._budget = arrays, budget
        self._reads = [sum(1 << int(value) for value in arrays.reads[one]) for one in range(arrays.count)]
        self._makes = [sum(1 << int(value) for value in arrays.makes[one]) for one in range(arrays.count)]
        self._before = [sum(1 << int(other) for other in arrays.before[one]) for one in range(arrays.count)]
        self._kept = sum(1 << int(value) for value in np.flatnonzero(arrays.kept))
        self._size = [int(size) for size in arrays.size]
        self._reused = [int(size) for size in arrays.reused]
        self._workspace = [int(size) for size in arrays.workspace]
        self._time = [float(time) for time in arrays.time]
        self.given = sum(1 << int(value) for value in np.flatnonzero(arrays.maker < 0))
        self._unread = arrays.unread
        self._all = (1 << arrays.count) - 1

    def is_done(self, state: State) -> bool:
        return state[0] == self._all and state[1] & self._kept == self._kept

    def steps(self, state: State) -> list[tuple[int, State, float]]:
        """What can be done: (operator or -1 for a drop, the state then, extra time)."""
        ran, there = state
        held = self._bytes(there)
        found: list[tuple[int, State, float]] = []
        is_blocked = False
        for one in range(self._arrays.count):
            if there & self._reads[one] != self._reads[one] or self._before[one] & ~ran:
                continue
            again = ran >> one & 1
            if again and (not self._arrays.again[one] or self._makes[one] & ~there == 0):
                continue
            need = held + self._bytes(self._makes[one] & ~there) + self._workspace[one] + (0 if ran else self._unread)
            cost = self._time[one] if again else 0.0
            if need <= self._budget:
                found.append((one, (ran | 1 << one, there | self._makes[one]), cost))
                continue
            is_blocked = True
            for ended in self._endings(one):
                if need - min(self._reused[one], self._bytes(ended)) <= self._budget:
                    found.append((one, (ran | 1 << one, (there | self._makes[one]) & ~ended), cost))
        if is_blocked:
            for value in range(len(self._size)):
                if there >> value & 1:
                    found.append((-1, (ran, there & ~(1 << value)), 0.0))
        return found

    def _endings(self, one: int) -> list[int]:
        """Sets of operands that may end with an operator and give their place to its results."""
        sets = [0] if self._reused[one] else []
        for value in range(len(self._size)):
            if self._reused[one] and self._reads[one] >> value & 1:
                sets += [other | 1 << value for other in sets]
        return sets[1:]

    def _bytes(self, values: int) -> int:
        total = 0
        while values:
            lowest = values & -values
            total += self._size[lowest.bit_length() - 1]
            values ^= lowest
        return total
