"""Workers of pinned programs: every block has one, runs wait for what they need, and multiprocessors share the work."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.device import Device
from scheduler.pinning import Pinning, pinned
from scheduler.program import Counter, Pinned, Program, Run, Wait
from scheduler.tasks import Kernel, Need, Region, TaskGraph
from scheduler.verify.program import verify


def test_two_blocks_lie_on_two_multiprocessors() -> None:
    found = pinned([4], [(10.0, 0.0)], {0: ()}, [0], 4, 2, 1.0)
    assert [len(some) for some in found.lists] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert found.end == 10.0


def test_a_run_beside_another_takes_multiprocessors_with_less_to_do() -> None:
    found = pinned([2, 2], [(10.0, 0.0), (10.0, 0.0)], {0: (), 1: ()}, [0, 1], 4, 2, 1.0)
    assert places(found, 0, 4) & places(found, 1, 4) == set()
    assert found.end == 10.0


def test_more_blocks_than_workers_go_round() -> None:
    found = pinned([5], [(10.0, 0.0)], {0: ()}, [0], 2, 1, 1.0)
    assert [len(some) for some in found.lists] == [3, 2]
    assert found.end == 30.0


def test_blocks_of_one_multiprocessor_work_while_others_wait() -> None:
    # Twice the work; one waits beside the other's.
    assert pinned([2], [(6.0, 4.0)], {0: ()}, [0], 1, 2, 1.0).end == 12.0
    assert pinned([2], [(2.0, 8.0)], {0: ()}, [0], 1, 2, 1.0).end == 10.0


def test_a_block_goes_where_it_ends_first() -> None:
    found = pinned([1, 2], [(9.0, 1.0), (4.0, 0.0)], {0: (), 1: ()}, [0, 1], 2, 2, 1.0)
    assert places(found, 0, 2) == {0}
    assert places(found, 1, 2) == {1}  # both on the other one: 8 there, 13 beside the first


def test_a_run_begins_when_what_it_needs_has_ended_and_was_waited_for() -> None:
    found = pinned([1, 1], [(10.0, 0.0), (3.0, 2.0)], {0: (), 1: (0,)}, [0, 1], 4, 2, 1.5)
    assert found.begins == [0.0, 11.5] and found.end == 16.5


def test_a_run_that_is_ready_goes_before_a_more_urgent_one_that_waits() -> None:
    times = [(10.0, 0.0), (5.0, 0.0), (6.0, 0.0)]
    found = pinned([1, 1, 2], times, {0: (), 1: (0,), 2: ()}, [0, 1, 2], 2, 1, 1.0)
    assert found.lists == [[(0, 0), (1, 0)], [(2, 0), (2, 1)]]
    assert found.ends == [10.0, 16.0, 12.0]
    alone = pinned([1, 1, 2], times, {0: (), 1: (0,), 2: ()}, [0, 1, 2], 1, 1, 1.0)
    assert alone.lists == [[(0, 0), (2, 0), (1, 0), (2, 1)]]  # one block while it waits, and no more


def test_a_run_without_blocks_hands_on_what_it_waits_for() -> None:
    times = [(10.0, 0.0), (0.0, 0.0), (5.0, 0.0)]
    found = pinned([1, 0, 1], times, {0: (), 1: (0,), 2: (1,)}, [0, 1, 2], 2, 1, 1.0)
    assert found.ends == [10.0, 11.0, 17.0]


def places(found: Pinning, run: int, multiprocessors: int) -> set[int]:
    """The multiprocessors that have blocks of a run."""
    return {number % multiprocessors for number, some in enumerate(found.lists) for one, _ in some if one == run}


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[float, float]], dict[int, tuple[int, ...]]]:
    """Blocks, times and needs of a few runs."""
    count = draw(st.integers(1, 12))
    blocks = [draw(st.integers(1, 9)) for _ in range(count)]
    times = [(draw(st.floats(0.5, 50.0)), draw(st.floats(0.0, 20.0))) for _ in range(count)]
    needs = {run: tuple(draw(st.sets(st.integers(0, run - 1), max_size=3))) if run else () for run in range(count)}
    return blocks, times, needs


@settings(deadline=None, max_examples=60)
@given(graphs(), st.integers(1, 5), st.integers(1, 2))
def test_the_verifier_proves_every_placement(
    graph: tuple[list[int], list[tuple[float, float]], dict[int, tuple[int, ...]]], multiprocessors: int, slots: int
) -> None:
    blocks, times, needs = graph
    found = pinned(blocks, times, needs, range(len(blocks)), multiprocessors, slots, 0.5)
    end = found.end
    there = sorted(one for some in found.lists for one in some)
    assert there == [(run, block) for run, many in enumerate(blocks) for block in range(many)]
    work = sum(busy * many for (busy, _), many in zip(times, blocks, strict=True))
    assert end >= work / multiprocessors * (1 - 1e-12)
    assert end >= max(busy + waiting for busy, waiting in times)
    regions = tuple(Region(f"r{run}", (Kernel("k", many, (1.0,)),)) for run, many in enumerate(blocks))
    task_graph = TaskGraph("g", regions, tuple(Need(f"r{one}", f"r{run}") for run in needs for one in needs[run]))
    waits = [[Wait(one, blocks[one]) for one in needs[run]] for run in range(len(blocks))]
    lists = [[step for run, block in some for step in (*waits[run], Run(f"r{run}", block))] for some in found.lists]
    device = Device("d", multiprocessors, 2048, 64, slots, 65536, 233472, 232448, 1024, 128)
    counters = tuple(Counter(f"r{run}", 0, many) for run, many in enumerate(blocks))
    launch = Pinned(tuple(map(tuple, lists)), counters, 256)
    verify(task_graph, Program("g", "d", {one.name: 0 for one in regions}, (launch,)), device)
