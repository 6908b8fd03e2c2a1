"""Greedy packing: one buffer after the other, each in a hole that those placed before and needed with it leave.

The order decides, and no order is best everywhere. By size (largest first) is what most runtimes do; by the most bytes
live with a buffer, longest first among equals, does best on networks; by area, by lifetime and along the time on
others. Nor is it the same how equal ones are ordered: on a training graph of 18,692 buffers, most of them of few sizes,
by size is 3.3 % above the bound with the longest first among equals, and 0.8 % as they are given. All are tried, with
the tightest and with the lowest hole, and the smallest arena is kept; then orders perturbed by chance (iterated local
search).

Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020 (greedy by size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from memplan.packing.placing import place
from memplan.packing.reduced import Ints, Reduced, empty_pins, expand, reduce
from memplan.plan import Packing
from memplan.problem import MemoryProblem
from memplan.work import Limit


@dataclass(frozen=True, slots=True)
class Placed:
    """Offsets of rows, and how they were found."""

    offsets: Ints
    height: int
    solver: str


SHAKES = (0.0, 0.02, 0.1)  # by how much a row's first key may grow

Keys = Callable[[Reduced], tuple[Ints, ...]]
# What comes first: keys by falling importance, smallest first. Equal rows stay in the problem's order.
PLAIN: Mapping[str, Keys] = {  # what others do; no packing of ours is above the least of these
    "size as given": lambda rows: (-rows.size,),
    "size and start": lambda rows: (-rows.size, first_sections(rows)),
    "start as given": lambda rows: (first_sections(rows),),
    "lifetime as given": lambda rows: (-rows.length,),
}
ORDERS: Mapping[str, Keys] = {
    "size": lambda rows: (-rows.size, -rows.length),
    "load": lambda rows: (-loads(rows), -rows.length, -rows.size),
    "area": lambda rows: (-rows.size * rows.length, -rows.size),
    "lifetime": lambda rows: (-rows.length, -rows.size),
    "start": lambda rows: (first_sections(rows), -rows.size),
    "end": lambda rows: (-last_sections(rows), -rows.size),
    "lifetime class": lambda rows: (-np.frexp(rows.length)[1].astype(np.int64), -rows.size),
}


def pack(problem: MemoryProblem) -> Packing:
    """The smallest arena of those that the orders give; the first such order where several do."""
    reduced = reduce(problem)
    best: Placed | None = None
    for found in chain(greedy(reduced), greedy(reduced, PLAIN)):
        if best is None or found.height < best.height:
            best = found
        if best.height <= reduced.bound:
            break
    assert best is not None, "there is at least one order"
    return packing(problem, reduced, best, proved=False)


def packing(
    problem: MemoryProblem, reduced: Reduced, best: Placed, *, proved: bool, limited: Limit | None = None
) -> Packing:
    """Offsets of rows as offsets of buffers. `proved`: the rows cannot be packed lower; `limited`: what ended it."""
    bound = max(reduced.bound * reduced.unit, empty_pins(problem))
    arena = max(best.height * reduced.unit, empty_pins(problem))
    optimal = arena == bound or (proved and reduced.exact)
    offsets = expand(problem, reduced, best.offsets)
    return Packing(offsets, arena, bound, best.solver, optimal, None if optimal else limited)


def greedy(reduced: Reduced, orders: Mapping[str, Keys] = ORDERS) -> Iterator[Placed]:
    """A packing by each order and each choice of hole, one after the other."""
    for name, keys in orders.items():
        order = np.lexsort(tuple(reversed(keys(reduced)))).astype(np.int64)
        for best_fit in (True, False):
            offsets = place(reduced, order, best_fit=best_fit)
            fit = "tightest" if best_fit else "lowest"
            yield Placed(offsets, reduced.height(offsets), f"greedy by {name}, {fit} hole")


def perturbed(reduced: Reduced, turn: int) -> Placed:
    """A packing by one of all orders, in which equal rows stand by chance and, in some turns, nearly equal ones too."""
    named = [*PLAIN.items(), *ORDERS.items()]
    name, keys = named[turn % len(named)]
    draw = np.random.default_rng(turn)
    noise = SHAKES[(turn // len(named)) % len(SHAKES)]
    first = keys(reduced)[0] * (1.0 + noise * draw.random(reduced.rows))
    order = np.lexsort((draw.random(reduced.rows), first)).astype(np.int64)
    best_fit = bool(turn // len(named) // len(SHAKES) % 2 == 0)
    offsets = place(reduced, order, best_fit=best_fit)
    return Placed(offsets, reduced.height(offsets), f"greedy by {name}, perturbed")


def first_sections(reduced: Reduced) -> Ints:
    """By row, the first section it is needed in."""
    return reduced.range_begin[reduced.range_at[:-1]]


def last_sections(reduced: Reduced) -> Ints:
    """By row, the section behind the last it is needed in."""
    return reduced.range_end[reduced.range_at[1:] - 1]


def live(reduced: Reduced) -> Ints:
    """The sizes that are live in each section, summed; a row counts in its gaps too."""
    found = np.zeros(reduced.sections + 1, dtype=np.int64)
    np.add.at(found, first_sections(reduced), reduced.size)
    np.add.at(found, last_sections(reduced), -reduced.size)
    return np.cumsum(found)[:-1].astype(np.int64)


def loads(reduced: Reduced) -> Ints:
    """By row, the most that is live in a section of it; by maxima over powers of two."""
    begin, end = first_sections(reduced), last_sections(reduced)
    table = [live(reduced)]
    while 2 << (len(table) - 1) <= reduced.sections:
        last, half = table[-1], 1 << (len(table) - 1)
        table.append(np.maximum(last[:-half], last[half:]))
    level = np.frexp(end - begin)[1].astype(np.int64) - 1
    found = np.zeros(reduced.rows, dtype=np.int64)
    for power, values in enumerate(table):
        here = level == power
        found[here] = np.maximum(values[begin[here]], values[end[here] - (1 << power)])
    return found
