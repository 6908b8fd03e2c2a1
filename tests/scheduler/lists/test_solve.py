"""The best schedule: equal to trying everything on small graphs, close to the bound on larger ones."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.bounds import lower_bound
from scheduler.errors import InvalidTaskGraph
from scheduler.lists.empty import with_empty, without_empty
from scheduler.lists.exact import branch_and_bound
from scheduler.lists.improve import improve, placed
from scheduler.lists.list_schedule import list_schedule
from scheduler.lists.priority import tails
from scheduler.lists.solve import Solved, solve
from scheduler.lists.tasks import tasks_of
from tests.scheduler.lists.checking import faults, least
from tests.scheduler.lists.graphs import Graph, small_graphs


def _random(count: int, seed: int, reads: float) -> tuple[list[int], list[list[int]]]:
    draw = random.Random(seed)
    before = [[other for other in range(one) if draw.random() < 2 * reads / count] for one in range(count)]
    return [draw.randint(1, 10) for _ in range(count)], before


def _layered(layers: int, wide: int, seed: int) -> tuple[list[int], list[list[int]]]:
    """Every task waits for two of the layer before: narrow graphs, where idling in the right place is better."""
    draw = random.Random(seed)
    before: list[list[int]] = [[] for _ in range(wide)]
    for layer in range(1, layers):
        last = range((layer - 1) * wide, layer * wide)
        before += [sorted(draw.sample(last, 2)) for _ in range(wide)]
    return [draw.randint(1, 10) for _ in before], before


def _good(times: list[int], before: list[list[int]], workers: int, solved: Solved) -> bool:
    assert not faults(times, before, workers, solved.start.tolist(), solved.worker.tolist())
    assert solved.makespan == max(start + time for start, time in zip(solved.start, times, strict=True))
    assert solved.lower_bound <= solved.makespan
    return solved.proved_optimal == (solved.lower_bound == solved.makespan)


@given(small_graphs(), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_small_graphs_get_the_least_schedule_and_a_proof(graph: Graph, workers: int) -> None:
    times, before = graph
    solved = solve(tasks_of(times, before), workers)
    assert _good(times, before, workers, solved)
    assert solved.makespan == least(times, before, workers)
    assert solved.proved_optimal


@given(small_graphs(least_time=1), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_branch_and_bound_alone_finds_the_least_and_nothing_below(graph: Graph, workers: int) -> None:
    times, before = graph
    tasks = tasks_of(times, before)
    best = least(times, before, workers)
    for one in (tasks, tasks.reversed()):  # the same length from either end
        found = branch_and_bound(one, workers, sum(times) + 1.0, lower=0.0, nodes=100_000)
        assert found.complete and found.start is not None
        assert max(found.start + tasks.times) == best
        assert branch_and_bound(one, workers, best, lower=0.0, nodes=100_000).start is None


def test_a_worker_waits_where_waiting_is_better() -> None:
    # Task 2 could start at once, but then one of 1 and 3 comes late; a list that never idles starts it whatever the
    # priorities are.
    times, before = [1, 3, 3, 2, 2], [[], [0], [], [0], [1, 3]]
    tasks = tasks_of(times, before)
    lists = [list_schedule(tasks, 2, np.array(one, np.float64)).makespan for one in permutations(range(5))]
    solved = solve(tasks, 2)
    assert min(lists) == 7
    assert solved.makespan == least(times, before, 2) == 6
    assert solved.start[2] > 0
    assert solved.proved_optimal


@pytest.mark.parametrize("seed", range(4))
def test_fourteen_tasks_are_always_searched_whole(seed: int) -> None:
    times, before = _random(14, seed, 1.0)
    solved = solve(tasks_of(times, before), 3)
    assert _good(times, before, 3, solved)
    assert solved.proved_optimal


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("count", [50, 300])
def test_random_graphs_come_close_to_the_bound(count: int, workers: int) -> None:
    gaps = []
    for seed in range(4):
        times, before = _random(count, seed, 2.0)
        tasks = tasks_of(times, before)
        solved = solve(tasks, workers)
        assert _good(times, before, workers, solved)
        assert solved.lower_bound >= lower_bound(tasks, workers).value
        gaps.append(solved.makespan / solved.lower_bound - 1)
    assert sum(gaps) / len(gaps) <= 0.005  # the bar of half a percent


@pytest.mark.parametrize("workers", [2, 3])
def test_narrow_layers_are_proved(workers: int) -> None:
    for seed in range(3):
        times, before = _layered(12, workers + 1, seed)
        solved = solve(tasks_of(times, before), workers)
        assert _good(times, before, workers, solved)
        assert solved.proved_optimal


def test_the_same_schedule_comes_out_twice() -> None:
    times, before = _layered(20, 8, 1)
    first, second = (solve(tasks_of(times, before), 5, work=1_600_000) for _ in range(2))
    assert first.start.tolist() == second.start.tolist()
    assert first.worker.tolist() == second.worker.tolist()


def test_local_search_never_makes_a_schedule_longer_and_places_what_it_finds() -> None:
    times, before = _layered(15, 5, 3)
    tasks = tasks_of(times, before)
    first = list_schedule(tasks, 3, tails(tasks))
    found, kept = improve(tasks, 3, first.start, bound=0.0, decodes=600, seed=1)
    start, worker = placed(tasks, 3, found)
    assert not faults(times, before, 3, start.tolist(), worker.tolist())
    assert max(start + tasks.times) <= max(found + tasks.times) < first.makespan
    assert max(kept + tasks.times) >= max(found + tasks.times)


def test_times_need_not_be_whole() -> None:
    draw = random.Random(5)
    times, before = [draw.uniform(0.1, 3.0) for _ in range(40)], _random(40, 5, 1.5)[1]
    solved = solve(tasks_of(times, before), 4)
    assert not faults(times, before, 4, solved.start.tolist(), solved.worker.tolist())
    assert solved.lower_bound <= solved.makespan <= solved.lower_bound * 1.02


def test_delays_are_kept_by_every_rule() -> None:
    times, before = _random(40, 2, 1.5)
    solved = solve(tasks_of(times, before, delay=3), 4)
    assert not faults(times, before, 4, solved.start.tolist(), solved.worker.tolist(), delay=3)
    assert (
        solved.makespan <= list_schedule(tasks_of(times, before, delay=3), 4, tails(tasks_of(times, before))).makespan
    )


def test_tasks_that_take_no_time_are_left_out_and_put_back() -> None:
    tasks = tasks_of([0, 2, 3, 0, 4], [[], [0], [0], [1, 2], [3]])
    reduced = without_empty(tasks)
    assert reduced is not None
    inner, kept = reduced
    assert kept.tolist() == [1, 2, 4]
    assert inner.before.tolist() == [0, 1] and inner.before_start.tolist() == [0, 0, 0, 2]
    start, worker = with_empty(tasks, kept, np.array([0.0, 0.0, 3.0]), np.array([0, 1, 1]))
    assert start.tolist() == [0, 0, 0, 3, 3] and worker.tolist() == [0, 0, 1, 1, 1]


def test_a_barrier_of_many_by_many_keeps_its_task() -> None:
    many = 60
    before: list[list[int]] = [[] for _ in range(many)] + [list(range(many))] + [[many] for _ in range(many)]
    times = [2] * many + [0] + [3] * many
    tasks = tasks_of(times, before)
    assert without_empty(tasks) is None
    solved = solve(tasks, 8)
    assert _good(times, before, 8, solved)
    assert solved.makespan == 8 * 2 + 8 * 3


def test_graphs_of_nothing_and_of_more_workers_than_tasks() -> None:
    nothing = solve(tasks_of([0, 0], [[], [0]]), 2)
    assert nothing.makespan == 0 and nothing.proved_optimal and nothing.start.tolist() == [0, 0]
    wide = solve(tasks_of([3, 1, 2], [[], [], []]), 1_000_000)
    assert wide.makespan == 3 and wide.proved_optimal


def test_what_is_no_limit_is_refused() -> None:
    tasks = tasks_of([1], [[]])
    with pytest.raises(InvalidTaskGraph, match=r"^-1 steps of work are no budget: give 0 or more\.$"):
        solve(tasks, 1, work=-1)
    with pytest.raises(InvalidTaskGraph, match=r"^a time limit of nan s is none: give 0 or more seconds\.$"):
        solve(tasks, 1, time_limit=float("nan"))


def test_a_schedule_says_what_has_ended_its_search() -> None:
    tasks = tasks_of(*_layered(20, 8, 1), delay=3)
    assert solve(tasks, 5, work=0).limited == "work"
    assert solve(tasks, 5, time_limit=0).limited in ("work", "time")
    assert solve(tasks, 5, work=10**9, time_limit=0).limited == "time"
    assert solve(tasks_of([1], [[]]), 1).limited is None


def test_no_worker_is_refused() -> None:
    with pytest.raises(InvalidTaskGraph, match=r"^0 workers cannot run anything: give at least 1\.$"):
        solve(tasks_of([1], [[]]), 0)
