"""Sequences of runs, in which operators may stand more than once: what their steps need.

A sequence is the whole plan: a value is there from a run that makes it to the last run that reads it before it is made
again (outputs: to the end), so that what is kept and what is dropped follows from where the runs stand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memplan.compiling import compiled
from memplan.ordering.arrays import Arrays, Ints

Tables = tuple[NDArray[Any], ...]


def tables(arrays: Arrays) -> Tables:
    """What the loops need of a graph, in the order in which they take it apart."""
    waited_for = np.zeros(arrays.count, np.bool_)  # by an operator that reads nothing of it
    for one in range(arrays.count):
        made = {int(arrays.maker[value]) for value in arrays.reads[one]}
        for first in arrays.before[one]:
            if int(first) not in made:
                waited_for[first] = True
    return (
        arrays.reads.start, arrays.reads.items, arrays.makes.start, arrays.makes.items, arrays.maker, arrays.size,
        arrays.kept, arrays.workspace, arrays.time, arrays.again, waited_for, arrays.reused, np.array([arrays.unread]),
    )  # fmt: skip


def needs(graph: Tables, runs: Ints) -> Ints:
    """The bytes that each step needs."""
    return needs_of(runs, graph)


@compiled
def needs_of(runs: Ints, graph: Tables) -> Ints:
    """The same for other loops."""
    read_start, reads, make_start, makes, maker, size, kept, workspace = graph[:8]
    reused, unread_bytes = graph[11:]
    length, values = len(runs), len(size)
    needed = np.zeros(length + 1, np.int64)  # differences first
    ended = np.zeros(length, np.int64)  # bytes of operands that a step is the last to read
    last = np.full(values, -1, np.int64)  # looking back from the end: the last step that wants the value
    for value in range(values):
        if kept[value]:
            last[value] = length - 1
    for step in range(length - 1, -1, -1):
        one = runs[step]
        for at in range(make_start[one], make_start[one + 1]):
            value = makes[at]
            needed[step] += size[value]
            needed[max(last[value], step) + 1] -= size[value]
            last[value] = -1
        for at in range(read_start[one], read_start[one + 1]):
            value = reads[at]
            if last[value] < 0:
                last[value] = step
                ended[step] += size[value]
    live = 0
    for value in range(values):
        if maker[value] < 0 and last[value] >= 0:
            live += size[value]
            needed[last[value] + 1] -= size[value]
    for step in range(length):
        live += needed[step]
        needed[step] = live + workspace[runs[step]] - min(reused[runs[step]], ended[step])
    if length:
        needed[0] += unread_bytes[0]  # inputs that nobody reads are dropped behind the first step
    return needed[:length]
