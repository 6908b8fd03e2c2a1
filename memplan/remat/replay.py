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


def replay(graph: Tables, order: Ints, uses: tuple[Ints, Ints], dropped: NDArray[np.bool_]) -> Ints:
    """The runs of `order` with those that the dropped gaps ask for; empty where it would be far too many."""
    return _replay(order, uses[0], dropped, graph)


@compiled
def _replay(order: Ints, use_start: Ints, dropped: NDArray[np.bool_], graph: Tables) -> Ints:
    read_start, reads, make_start, makes, maker, size, kept, _, _, again = graph[:10]
    count, values = len(order), len(size)
    most = LONGEST * count + 16
    runs = np.empty(most, np.int64)
    length = 0
    there = np.zeros(values, np.bool_)
    always = np.zeros(values, np.bool_)  # cannot be made again
    for value in range(values):
        always[value] = maker[value] < 0 or not again[maker[value]]
        there[value] = maker[value] < 0
    used = use_start[:-1].copy()  # by value, the next gap
    stack, touched = np.empty(count + 1, np.int64), np.empty(values, np.int64)
    for step in range(count):
        height, many = 1, 0
        stack[0] = order[step]
        while height:
            one = stack[height - 1]
            missing = -1
            for at in range(read_start[one], read_start[one + 1]):
                if not there[reads[at]]:
                    missing = maker[reads[at]]
                    break
            if missing >= 0:
                stack[height] = missing
                height += 1
                continue
            height -= 1
            if length == most:
                return runs[:0]
            runs[length] = one
            length += 1
            for at in range(make_start[one], make_start[one + 1]):
                if not there[makes[at]]:
                    there[makes[at]] = True
                    touched[many] = makes[at]
                    many += 1
        one = order[step]
        for place in range(many):  # what was made on the way stays where it has a use to come
            value = touched[place]
            if used[value] == use_start[value + 1] and not kept[value] and not always[value]:
                there[value] = False
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
