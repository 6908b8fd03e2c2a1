"""List scheduling: what is ready and first goes to what is free."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import InvalidTaskGraph
from scheduler.lists.list_schedule import Listed, insert_schedule, list_schedule
from scheduler.lists.priority import delayed_tails, heads, ranked, rules, tails, work_behind
from scheduler.lists.tasks import tasks_of, tasks_of_edges
from tests.scheduler.lists.checking import faults
from tests.scheduler.lists.graphs import Graph, small_graphs

# 0 (2) -> 2 (4) -> 3 (1)
# 1 (3) --------------^
DIAMOND = tasks_of([2, 3, 4, 1], [[], [], [0], [1, 2]])


def _rows(listed: Listed) -> list[tuple[int, float]]:
    return [(int(where), float(when)) for where, when in zip(listed.worker, listed.start, strict=True)]


def test_two_workers_share_a_graph() -> None:
    listed = list_schedule(DIAMOND, 2, tails(DIAMOND))
    assert _rows(listed) == [(0, 0), (1, 0), (0, 2), (0, 6)]
    assert listed.makespan == 7


def test_one_worker_follows_the_priorities() -> None:
    tasks = tasks_of([1, 1, 1], [[], [], []])
    assert list_schedule(tasks, 1, np.array([1.0, 3.0, 2.0])).start.tolist() == [2, 0, 1]
    assert list_schedule(tasks, 1, np.zeros(3)).start.tolist() == [0, 1, 2]  # ties go to the lower number


def test_tasks_that_take_no_time_hold_nobody_up() -> None:
    tasks = tasks_of([0, 5, 5, 0], [[], [0], [0], [1, 2]])
    listed = list_schedule(tasks, 2, np.zeros(4))
    assert listed.start.tolist() == [0, 0, 0, 5]


def test_a_slow_signal_keeps_a_chain_on_one_worker() -> None:
    # 0 -> 1 -> 2 takes 6 on one worker; task 3 has the other to itself.
    tasks = tasks_of([2, 2, 2, 3], [[], [0], [1], []], delay=10)
    listed = list_schedule(tasks, 2, delayed_tails(tasks))
    assert listed.worker[0] == listed.worker[1] == listed.worker[2] != listed.worker[3]
    assert listed.makespan == 6


def test_insertion_fills_a_gap() -> None:
    # Worker 0 runs task 0 and 2; worker 1 waits for task 0 with task 1, and the short task 3 fits before it.
    tasks = tasks_of([4, 6, 6, 2], [[], [0], [0], []])
    listed = insert_schedule(tasks, 2, np.array([4.0, 3.0, 2.0, 1.0]))
    assert listed.start[3] == 0
    assert listed.makespan == 10


def test_priorities_of_a_graph_by_hand() -> None:
    assert tails(DIAMOND).tolist() == [7, 4, 5, 1]
    assert heads(DIAMOND).tolist() == [0, 0, 2, 6]
    assert work_behind(DIAMOND).tolist() == [7, 4, 5, 1]
    assert delayed_tails(tasks_of([2, 3, 4, 1], [[], [], [0], [1, 2]], delay=1)).tolist() == [9, 5, 6, 1]


def test_cp_misf_breaks_ties_by_the_number_of_followers() -> None:
    # Tasks 0 and 1 have paths of the same length behind them; task 1 lets two others go.
    tasks = tasks_of([1, 1, 1, 1, 1], [[], [], [0], [1], [1]])
    priority = rules(tasks)["cp/misf"]
    assert priority[1] > priority[0]
    assert ranked(np.array([1.0, 1.0, 2.0])).tolist() == [1, 0, 2]


@given(small_graphs(most=12), st.integers(1, 4), st.sampled_from([0.0, 2.5]))
@settings(max_examples=150, deadline=None)
def test_every_rule_gives_a_schedule_that_can_be_run(graph: Graph, workers: int, delay: float) -> None:
    times, before = graph
    tasks = tasks_of(times, before, delay)
    for priority in rules(tasks).values():
        for listed in (list_schedule(tasks, workers, priority), insert_schedule(tasks, workers, priority)):
            assert not faults(times, before, workers, listed.start.tolist(), listed.worker.tolist(), delay)
            assert listed.makespan == max(listed.start + tasks.times)


@given(small_graphs(most=12, least_time=1), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_without_delays_no_worker_is_idle_while_a_task_is_ready(graph: Graph, workers: int) -> None:
    times, before = graph
    tasks = tasks_of(times, before)
    listed = list_schedule(tasks, workers, tails(tasks))
    ends = listed.start + tasks.times
    for one, reads in enumerate(before):
        for when in range(int(max((ends[other] for other in reads), default=0)), int(listed.start[one])):
            assert sum((listed.start <= when) & (when < ends)) == workers


def test_the_same_edge_twice_counts_once_with_the_longer_delay() -> None:
    tasks = tasks_of_edges([1, 1], [0, 0], [1, 1], [2.0, 5.0])
    assert tasks.before.tolist() == [0] and tasks.delays.tolist() == [5.0]


@pytest.mark.parametrize(
    ("times", "before", "message"),
    [
        (
            [1, 1, 1],
            [[2], [0], [1]],
            "the tasks wait for each other in a circle: 0 -> 1 -> 2 -> 0; drop one of these edges.",
        ),
        ([1, 1], [[], [1]], "the tasks wait for each other in a circle: 1 -> 1; drop one of these edges."),
        ([1, -2], [[], []], "task 1 takes a time of -2: a time is finite and at least 0."),
        ([1, float("nan")], [[], []], "task 1 takes a time of nan: a time is finite and at least 0."),
        ([1, 2], [[], [7]], "the edge 7 -> 1 names a task that is not there: tasks are 0 to 1."),
        ([1], [[], []], "1 times do not fit 2 lists of predecessors."),
    ],
)
def test_what_is_no_graph_of_tasks_is_refused(times: list[float], before: list[list[int]], message: str) -> None:
    with pytest.raises(InvalidTaskGraph) as caught:
        tasks_of(times, before)
    assert str(caught.value) == message


def test_no_worker_and_missing_priorities_are_refused() -> None:
    with pytest.raises(InvalidTaskGraph, match=r"^0 workers cannot run anything: give at least 1\.$"):
        list_schedule(DIAMOND, 0, np.zeros(4))
    with pytest.raises(InvalidTaskGraph, match=r"^3 priorities do not fit 4 tasks\.$"):
        insert_schedule(DIAMOND, 2, np.zeros(3))
    with pytest.raises(InvalidTaskGraph, match=r"^a signal's delay is negative or not finite: give 0 or more\.$"):
        tasks_of([1, 1], [[], [0]], delay=-1)


def test_the_checker_of_these_tests_says_no() -> None:
    times, before = [2, 2, 2], [[], [0], []]
    assert not faults(times, before, 2, [0, 2, 0], [0, 0, 1])
    assert faults(times, before, 2, [0, 1, 0], [0, 0, 1]) == [
        "task 1 starts at 1, 0 is seen at 2",
        "tasks 0 and 1 overlap on worker 0",
    ]
    assert faults(times, before, 2, [0, 2, 0], [0, 1, 1], delay=1) == [
        "task 1 starts at 2, 0 is seen at 3",
    ]
    assert faults(times, before, 1, [0, 2, 4], [0, 0, 1]) == ["task 2 is on worker 1"]
