"""Task graphs: what a block waits for, and graphs that are refused; programs as JSON and as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import InvalidProgram, InvalidTaskGraph
from scheduler.program import Counter, Item, Pinned, Plain, Program, Run, Ticketed, Wait, read, text, write
from scheduler.tasks import Kernel, Need, Region, TaskGraph, needed_blocks


def region(name: str, blocks: int = 1) -> Region:
    return Region(name, (Kernel("k", blocks, (1.0,)),))


def test_a_block_waits_for_the_blocks_that_touch_what_it_reads() -> None:
    near = Need("a", "b", "near")
    assert [list(needed_blocks(near, 4, 4, block)) for block in range(4)] == [[0], [1], [2], [3]]
    assert [list(needed_blocks(near, 4, 2, block)) for block in range(2)] == [[0, 1], [2, 3]]
    assert [list(needed_blocks(near, 2, 4, block)) for block in range(4)] == [[0], [0], [1], [1]]
    assert list(needed_blocks(near, 3, 2, 0)) == [0, 1]
    assert list(needed_blocks(Need("a", "b", "near", halo=0.1), 4, 4, 1)) == [0, 1, 2]
    assert list(needed_blocks(Need("a", "b"), 3, 7, 5)) == [0, 1, 2]


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0, 0.3))
def test_every_source_block_is_waited_for_and_more_halo_never_less(source: int, target: int, halo: float) -> None:
    for wide in (0.0, halo):
        seen = {
            one for block in range(target) for one in needed_blocks(Need("a", "b", "near", wide), source, target, block)
        }
        assert seen == set(range(source))
    for block in range(target):
        narrow = set(needed_blocks(Need("a", "b", "near"), source, target, block))
        assert narrow <= set(needed_blocks(Need("a", "b", "near", halo), source, target, block))


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (TaskGraph("g", (region("a"), region("a"))), "two regions are named 'a'"),
        (TaskGraph("g", (Region("a", ()),)), "region 'a' has no kernel"),
        (TaskGraph("g", (region("a", 0),)), "kernel 'k' of 'a' has 0 blocks"),
        (TaskGraph("g", (Region("a", (Kernel("k", 1, (-1.0,)),)),)), "has no time, or a negative one"),
        (TaskGraph("g", (Region("a", (Kernel("k", 1, (1.0,), 0),)),)), "has 0 threads"),
        (TaskGraph("g", (region("a"),), (Need("a", "b"),)), "names the region 'b', which is not there"),
        (
            TaskGraph("g", (region("a"), region("b")), (Need("a", "b"), Need("b", "a"))),
            "need each other in a circle: a -> b -> a|b -> a -> b",
        ),
    ],
)
def test_graphs_that_mean_nothing_are_refused(graph: TaskGraph, said: str) -> None:
    with pytest.raises(InvalidTaskGraph, match=said):
        graph.check()


def test_the_given_order_stays_where_it_is_one() -> None:
    graph = TaskGraph("g", (region("c"), region("a"), region("b")), (Need("b", "a"),))
    assert graph.order() == ("c", "b", "a")


PROGRAM = Program(
    "g", "cpu:2", {"a": 0, "b": 0},
    (
        Pinned(((Run("a", 0), Run("a", 1)), (Wait(0, 2), Run("b", 0))), (Counter("a", 0, 2),), threads=64),
        Ticketed((Item(Run("c", 0)), Item(Run("d", 0), (Wait(0, 1),))), 2, (Counter("c", 0, 1),)),
        Plain("e"),
    ),
    "by hand",
)  # fmt: skip


def test_a_program_is_read_back_as_written_and_can_be_read_by_people() -> None:
    assert read(write(PROGRAM)) == PROGRAM
    assert text(PROGRAM).splitlines() == [
        "program by hand of g for cpu:2",
        "launch 0: 2 workers",
        "  worker 0: a[0]  a[1]",
        "  worker 1: wait(2 of a[0-1])  b[0]",
        "launch 1: 2 tickets for 2 workers",
        "      0 c[0]",
        "      1 d[0]   after 1 of c[0]",
        "launch 2: all blocks of e",
    ]


def test_waits_before_one_run_are_told_together() -> None:
    counters = (Counter("a", 0, 12), Counter("a", 4, 8), Counter("b", 3, 4))
    last = (Run("b", 0), Wait(2, 1), Wait(0, 12), Run("b", 1), Wait(1, 3), Run("c", 0))
    program = Program("g", "cpu:6", {"b": 0, "c": 0}, (Pinned((*((),) * 5, last), counters),))
    said = "  worker 5: b[0]  wait(1 of b[3], 12 of a[0-11])  b[1]  wait(3 of a[4-7])  c[0]"
    assert text(program).splitlines()[-1] == said


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="this is no program"):
        read(b'{"graph": 1}')
    with pytest.raises(InvalidProgram, match=r"this is no program: Invalid enum value 'scheduler.program/1'"):
        read(write(PROGRAM).replace(b"scheduler.program/2", b"scheduler.program/1"))


@pytest.mark.parametrize("halo", [-0.1, float("nan"), float("inf")])
def test_a_halo_that_is_negative_or_no_number_is_refused(halo: float) -> None:
    regions = tuple(Region(name, (Kernel("k", 4, (1.0,)),)) for name in "ab")
    with pytest.raises(InvalidTaskGraph, match=r"the need of 'b' for 'a' has a halo of \S+: give a fraction of the"):
        TaskGraph("g", regions, (Need("a", "b", "near", halo),)).check()
