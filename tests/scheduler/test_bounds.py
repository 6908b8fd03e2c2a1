"""Lower bounds: by hand, below the least schedule always, and where each of them is the one that counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.bounds import (
    all_bounds,
    critical_path,
    excess,
    fernandez_bussell,
    lower_bound,
    tightened,
    work,
    work_over_slots,
)
from scheduler.errors import InvalidTaskGraph
from scheduler.lists.priority import heads, tails
from scheduler.lists.tasks import tasks_of
from scheduler.lists.windows import tight_heads, tight_tails
from tests.scheduler.lists.checking import least
from tests.scheduler.lists.graphs import Graph, small_graphs


def test_the_critical_path_counts_with_many_workers() -> None:
    tasks = tasks_of([2, 3, 4, 1], [[], [], [0], [1, 2]])
    assert critical_path(tasks).value == 7
    assert (lower_bound(tasks, 9).name, lower_bound(tasks, 9).value) == ("critical path", 7)


def test_work_counts_with_few_and_is_rounded_up_where_times_are_whole() -> None:
    assert work(tasks_of([2, 2, 3], [[], [], []]), 2).value == 4
    assert work(tasks_of([2, 2, 3.5], [[], [], []]), 2).value == 3.75
    assert lower_bound(tasks_of([2, 2, 3], [[], [], []]), 2).name == "work"
    assert work_over_slots([6.0, 3.0], 4) == 2.25


def test_fernandez_and_bussell_see_a_crowd_in_the_middle() -> None:
    # A chain 4, 1, 4 and beside its middle four more tasks of 1 that must come after the first and before the last.
    tasks = tasks_of([4, 1, 1, 1, 1, 1, 4], [[], [0], [0], [0], [0], [0], [1, 2, 3, 4, 5]])
    # In [4, 5] lie 5 of work for 2 workers: 5 / 2 - 1 = 1.5 too much; by the path 9, by the work 7.
    assert critical_path(tasks).value == 9 and work(tasks, 2).value == 7
    assert fernandez_bussell(tasks, 2).value == 11
    assert excess(heads(tasks), tails(tasks), tasks.times, 2, 9.0) == 1.5
    assert least([4, 1, 1, 1, 1, 1, 4], [[], [0], [0], [0], [0], [0], [1, 2, 3, 4, 5]], 2) == 11


def test_tightened_windows_see_one_crowd_after_the_other() -> None:
    # Three tasks, one, three, one, all of 1, on two workers: each crowd takes 2, and one interval holds but one crowd.
    before = [[], [], [], [0, 1, 2], [3], [3], [3], [4, 5, 6]]
    tasks = tasks_of([1] * 8, before)
    assert critical_path(tasks).value == 4
    assert tight_tails(tasks, 2).tolist() == [5, 5, 5, 4, 2, 2, 2, 1]
    assert tight_heads(tasks, 2).tolist() == [0, 0, 0, 2, 3, 3, 3, 5]
    assert tightened(tasks, 2).value == 6 == least([1] * 8, before, 2)


@given(small_graphs(), st.integers(1, 3), st.booleans())
@settings(max_examples=200, deadline=None)
def test_no_bound_is_above_the_least_schedule(graph: Graph, workers: int, halves: bool) -> None:
    whole, before = graph
    times = [time + 0.5 for time in whole] if halves else [float(time) for time in whole]
    tasks = tasks_of(times, before)
    best = least(times, before, workers)
    for bound in all_bounds(tasks, workers):
        assert bound.value <= best * (1 + 1e-12), bound.name


@given(small_graphs(most=9), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_the_sweep_finds_the_worst_of_all_whole_intervals(graph: Graph, workers: int) -> None:
    times, before = graph
    tasks = tasks_of(times, before)
    head, tail = heads(tasks), tails(tasks)
    path = int(critical_path(tasks).value)
    worst = 0.0
    for begin in range(path):
        for end in range(begin + 1, path + 1):
            inside = sum(
                max(0, min(time, end - begin, early + time - begin, end - (path - late)))
                for time, early, late in zip(times, head, tail, strict=True)
            )
            worst = max(worst, inside / workers - (end - begin))
    assert excess(head, tail, tasks.times, workers, path) >= worst - 1e-9
    # Between whole numbers nothing is worse: every corner of the function is a whole number.
    assert excess(head, tail, tasks.times, workers, path) == pytest.approx(worst)


@given(small_graphs(most=9), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_tightened_is_never_the_weaker_one(graph: Graph, workers: int) -> None:
    tasks = tasks_of(*graph)
    assert tightened(tasks, workers).value >= fernandez_bussell(tasks, workers).value - 1e-9
    assert (tight_tails(tasks, workers) >= tails(tasks)).all()
    assert (tight_heads(tasks, workers) >= heads(tasks) - 1e-9).all()


def test_no_worker_is_refused() -> None:
    with pytest.raises(InvalidTaskGraph, match=r"^0 workers cannot run anything: give at least 1\.$"):
        lower_bound(tasks_of([1], [[]]), 0)
    with pytest.raises(InvalidTaskGraph, match=r"^-2 workers cannot run anything: give at least 1\.$"):
        work_over_slots([1.0], -2)
