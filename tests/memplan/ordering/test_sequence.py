"""A sequence under change: what is counted where something changed is what is counted anew."""

from __future__ import annotations

import random

import numpy as np
import pytest

from memplan.graph import Graph
from memplan.ordering.anneal import Annealing
from memplan.ordering.arrays import Arrays, Ints, arrays_of
from memplan.ordering.profile import peak
from memplan.ordering.runs import needs, tables
from memplan.ordering.sequence import (
    ABOVE,
    LENGTH,
    OPERATOR,
    OVER,
    RUN,
    columns_of,
    count_again,
    fill,
    insert,
    is_needed,
    keep,
    remove,
    renew_all,
    shift,
    take_back,
    window,
)  # fmt: skip
from memplan.verify.packing import WrongPlan
from memplan.verify.sequence import verify_sequence
from tests.memplan.ordering.test_order import random_graph


class Sequence:
    """The tables of a sequence, and the changes that the annealing makes."""

    def __init__(self, arrays: Arrays, budget: int) -> None:
        operators, values, items = columns_of(arrays)
        self.graph = (operators, values, items)
        room = 3 * arrays.count
        self.steps, self.figures = np.zeros((room, 8), np.int64), np.zeros(6, np.int64)
        self.runs, self.ends = np.zeros((arrays.count, 7), np.int64), np.zeros((len(arrays.size), 7), np.int64)
        self.journal, self.counts = np.zeros((500, 4), np.int64), np.zeros((room, 2), np.int64)
        self._given = (arrays.inputs_size() - arrays.unread, budget, arrays.unread)
        order = np.arange(arrays.count)
        fill(order, self.steps, self.runs, self.ends, self.figures, self.journal, operators, values, items)
        self.count(kept=True)

    def renew(self, one: int) -> None:
        renew_all(one, self.steps, self.runs, self.ends, self.figures, self.journal, *self.graph)

    def count(self, *, kept: bool) -> int:
        over = count_again(*self._given, self.counts, self.steps, self.figures, *self.graph)
        if kept:
            keep(over, self.counts, self.steps, self.figures)
        return int(over)

    @property
    def order(self) -> Ints:
        return self.steps[self.steps[: self.figures[LENGTH], RUN], OPERATOR]


@pytest.mark.parametrize("seed", range(12))
def test_what_changes_is_counted_as_if_all_were(seed: int) -> None:
    draw = random.Random(seed)
    arrays = arrays_of(random_graph(seed, 14, density=0.2))
    budget = int(0.6 * peak(arrays, np.arange(arrays.count)))
    graph = tables(arrays)
    sequence = Sequence(arrays, budget)
    for _ in range(60):
        before = [table.copy() for table in (sequence.order, sequence.figures[[LENGTH, OVER]], sequence.ends)]
        step, kind, run = draw.randrange(sequence.figures[LENGTH]), draw.random(), -1
        run = sequence.steps[step, RUN]
        one, goal, above = sequence.steps[run, OPERATOR], step, sequence.steps[run, ABOVE]
        if kind < 0.2 and sequence.figures[LENGTH] < 2 * arrays.count and sequence.runs[one, 6] < 6:
            goal = draw.randrange(step + 1, sequence.figures[LENGTH] + 1)
            run = insert(one, goal, 0, sequence.steps, sequence.runs, sequence.figures)
        elif kind < 0.4:
            if is_needed(run, sequence.steps, sequence.runs, sequence.graph[0], sequence.graph[2]):
                continue
            remove(run, sequence.steps, sequence.runs, sequence.figures)
        else:
            low, high = window(
                run, sequence.steps, sequence.runs, sequence.figures, sequence.graph[0], sequence.graph[2]
            )
            goal = draw.randint(low, high)
            shift(run, goal, sequence.steps, sequence.figures)
        sequence.renew(one)
        over = sequence.count(kept=False)
        needed = needs(graph, sequence.order)
        assert over == np.maximum(needed - budget, 0).sum()
        if draw.random() < 0.5:
            sequence.count(kept=True)
            continue
        if kind >= 0.4 or len(sequence.order) == len(before[0]):
            shift(run, step, sequence.steps, sequence.figures)
        elif len(sequence.order) > len(before[0]):
            remove(run, sequence.steps, sequence.runs, sequence.figures)
        else:
            insert(one, step, above, sequence.steps, sequence.runs, sequence.figures)
        take_back(sequence.steps, sequence.ends, sequence.figures, sequence.journal)
        after = (sequence.order, sequence.figures[[LENGTH, OVER]], sequence.ends)
        assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_a_run_moves_as_far_as_it_can_be_executed(seed: int) -> None:
    draw = random.Random(seed)
    graph = random_graph(seed, 12, density=0.2)
    arrays = arrays_of(graph)
    sequence = Sequence(arrays, 0)
    for _ in range(4):  # some operators run twice
        step = draw.randrange(len(sequence.order))
        one = sequence.order[step]
        insert(one, draw.randint(step + 1, len(sequence.order)), 0, sequence.steps, sequence.runs, sequence.figures)
    order = sequence.order
    for step in range(len(order)):
        run = sequence.steps[step, RUN]
        low, high = window(run, sequence.steps, sequence.runs, sequence.figures, sequence.graph[0], sequence.graph[2])
        for goal in range(len(order)):
            moved = np.insert(np.delete(order, step), goal, order[step])
            assert can_be_executed(graph, arrays, moved) == (low <= goal <= high)
        is_kept = is_needed(run, sequence.steps, sequence.runs, sequence.graph[0], sequence.graph[2])
        assert can_be_executed(graph, arrays, np.delete(order, step)) == (not is_kept)


def can_be_executed(graph: Graph, arrays: Arrays, order: Ints) -> bool:
    try:
        verify_sequence(graph, [arrays.names[one] for one in order])
    except WrongPlan:
        return False
    return True


def test_an_order_that_keeps_the_budget_ends_the_search() -> None:
    arrays = arrays_of(random_graph(7, 60, density=0.05))
    order = np.arange(arrays.count)
    budget = int(0.9 * peak(arrays, order))
    found = Annealing(arrays, order, budget, adding=False, seed=1).run(200_000_000, 0.0)
    assert peak(arrays, found) <= budget and sorted(found) == list(range(arrays.count))
