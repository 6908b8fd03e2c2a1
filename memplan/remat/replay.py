"""From decisions about what to drop to a sequence of runs.

The operators run in a base order. A value has a gap before each of its uses: from where it was made or used last. In a
gap that is marked, the value is dropped; its use then runs its operator again, and, where that operator's operands are
not there, theirs. What is made again for another value's sake stays if it has a use of its own to come.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled
from memplan.ordering.arrays import Arrays, Ints
from memplan.ordering.runs import Tables

LONGEST = 8  # times as many runs as operators: more is no plan


def uses_in(arrays: Arrays, order: Ints) -> tuple[Ints, Ints]:
    """By value, the steps of an order that use it, in order: (start, steps). Gap i of all is that before steps[i]."""
    position = np.empty(arrays.count, np.int64)
    position[order] = np.arange(arrays.count)
    steps = position[arrays.users.items]
    value = np.repeat(np.arange(len(arrays.size)), np.diff(arrays.users.start))
    return arrays.users.start, steps[np.lexsort((steps, value))]


def replay(
    graph: Tables,
    order: Ints,
    uses: tuple[Ints, Ints],
    dropped: NDArray[np.bool_],
    segment: Ints | None = None,
    held: NDArray[np.bool_] | None = None,
    holding: NDArray[np.bool_] | None = None,
) -> Ints:
    """The runs of `order` with those that the dropped gaps ask for; empty where it would be far too many.

    `segment` numbers values: with one that is asked for all of its segment that have uses to come are made again, in
    the base order, so that what they are made of is made once. A value by itself has -1, as all have without. Values
    that are `held` stay behind their last use, for what is made again of them; so do those that are `holding` once
    they have been made again. What is made again of a segment that was not asked for goes otherwise.
    """
    numbers = np.full(len(graph[5]), -1, np.int64) if segment is None else segment
    members = np.argsort(numbers, kind="stable")
    start = np.searchsorted(numbers[members], np.arange(numbers.max(initial=-1) + 2))
    kept = graph[6] if held is None else graph[6] | held
    stays = np.zeros(len(graph[5]), np.bool_) if holding is None else holding
    return _replay(order, uses[0], dropped, numbers, start, members, kept, stays, graph)


@compiled
def _replay(
    order: Ints, use_start: Ints, dropped: NDArray[np.bool_], segment: Ints, member_start: Ints, members: Ints,
    kept: NDArray[np.bool_], stays: NDArray[np.bool_], graph: Tables,
) -> Ints:  # fmt: skip
    read_start, reads, make_start, makes, maker, size, _, _, _, again = graph[:10]
    count, values = len(order), len(size)
    most = LONGEST * count + 16
    runs = np.empty(most, np.int64)
    length = 0
    position = np.empty(count, np.int64)
    for step in range(count):
        position[order[step]] = step
    there = np.zeros(values, np.bool_)
    always = np.zeros(values, np.bool_)  # cannot be made again
    for value in range(values):
        always[value] = maker[value] < 0 or not again[maker[value]]
        there[value] = maker[value] < 0
    used = use_start[:-1].copy()  # by value, the next gap
    wanted, mark = np.empty(count + 1, np.int64), np.full(count, -1, np.int64)
    touched, asked_at = np.empty(values, np.int64), np.full(len(member_start), -1, np.int64)
    for step in range(count):
        one, many, asked = order[step], 0, 0
        mark[one] = step
        for at in range(read_start[one], read_start[one + 1]):
            value = reads[at]
            if there[value]:
                continue
            if mark[maker[value]] != step:
                mark[maker[value]] = step
                wanted[asked] = maker[value]
                asked += 1
            number = segment[value]
            if number < 0 or stays[value]:  # what a cut holds is made again for the segment behind it
                continue
            asked_at[number] = step
            for place in range(member_start[number], member_start[number + 1]):
                other = members[place]
                behind = position[maker[other]] >= step if maker[other] >= 0 else True
                if there[other] or behind or used[other] == use_start[other + 1] or mark[maker[other]] == step:
                    continue
                mark[maker[other]] = step
                wanted[asked] = maker[other]
                asked += 1
        place = 0
        while place < asked:  # and what these are made of
            for at in range(read_start[wanted[place]], read_start[wanted[place] + 1]):
                other = maker[reads[at]]
                if not there[reads[at]] and mark[other] != step:
                    mark[other] = step
                    wanted[asked] = other
                    asked += 1
            place += 1
        if length + asked + 1 > most:
            return runs[:0]
        for at in np.sort(position[wanted[:asked]]):
            other = order[at]
            runs[length] = other
            length += 1
            for place in range(make_start[other], make_start[other + 1]):
                if not there[makes[place]]:
                    there[makes[place]] = True
                    touched[many] = makes[place]
                    many += 1
        for place in range(many):  # what was made on the way stays where it has a use to come and was asked for
            value = touched[place]
            number, is_last = segment[value], used[value] == use_start[value + 1]
            is_wanted = not is_last and (number < 0 or asked_at[number] == step)
            if not is_wanted and not kept[value] and not stays[value] and not always[value]:
                there[value] = False
        runs[length] = one
        length += 1
        for at in range(make_start[one], make_start[one + 1]):
            value = makes[at]
            if not there[value]:
                there[value] = used[value] < use_start[value + 1] or kept[value] or always[value]
        for at in range(make_start[one], make_start[one + 1]):
            value = makes[at]
            if used[value] < use_start[value + 1] and dropped[used[value]] and not always[value]:
                there[value] = False
        for at in range(read_start[one], read_start[one + 1]):
            value = reads[at]
            used[value] += 1
            if always[value]:
                continue
            if used[value] == use_start[value + 1]:
                there[value] = kept[value]
            elif dropped[used[value]]:
                there[value] = False
    return runs[:length]
