"""Reuse of bytes decided from graph, program and buffers: beside brute force over all orders, and on mutants."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.buffers import Buffer, Buffers, read_buffers, write_buffers
from scheduler.cli.check import command
from scheduler.device import cpu
from scheduler.errors import InvalidProgram, UnsafeProgram
from scheduler.program import Counter, Item, Program, Run, Ticketed, Wait, write, write_graph
from scheduler.tasks import Kernel, Need, Region, TaskGraph
from scheduler.verify.reuse import verify_reuse

WORKERS = 2


def ticketed(needs: list[list[int]]) -> tuple[TaskGraph, Program]:
    """Regions of one block, each of which needs, and waits for, some before it."""
    regions = tuple(Region(f"r{at}", (Kernel("k", 1, (1.0,)),)) for at in range(len(needs)))
    graph = TaskGraph("g", regions, tuple(Need(f"r{one}", f"r{at}") for at, some in enumerate(needs) for one in some))
    items = tuple(Item(Run(f"r{at}", 0), tuple(Wait(one, 1) for one in some)) for at, some in enumerate(needs))
    counters = tuple(Counter(f"r{at}", 0, 1) for at in range(len(needs)))
    program = Program("g", "cpu:2", {f"r{at}": 0 for at in range(len(needs))}, (Ticketed(items, WORKERS, counters),))
    return graph, program


def chain() -> tuple[TaskGraph, Program, Buffers]:
    """r0 writes a, r1 reads it and writes b, r2 reads b and writes c, where a was."""
    graph, program = ticketed([[], [0], [1]])
    buffers = Buffers(
        "g", 128,
        (
            Buffer("a", 0, 64, ("r1",), ("r0",)), Buffer("b", 64, 64, ("r2",), ("r1",)),
            Buffer("c", 0, 64, (), ("r2",)),
        ),
    )  # fmt: skip
    return graph, program, buffers


def moved(buffers: Buffers, which: str, /, **changes: object) -> Buffers:
    some = tuple(msgspec.structs.replace(one, **changes) if one.name == which else one for one in buffers.buffers)
    return msgspec.structs.replace(buffers, buffers=some)


def test_bytes_that_are_free_again_may_be_taken() -> None:
    graph, program, buffers = chain()
    assert verify_reuse(graph, program, buffers, cpu(WORKERS)) == 1


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("b", {"offset": 32}, "buffers 'a' and 'b' share bytes, and nothing makes all uses of one"),
        ("c", {"offset": 64}, "buffers 'b' and 'c' share bytes"),
        ("a", {"readers": ("r1", "r2")}, "buffers 'a' and 'c' share bytes"),
        ("b", {"readers": ("r0",)}, "region 'r0' reads buffer 'b', and needs none that writes it"),
    ],
)
def test_mutants_are_refused_by_name(name: str, changes: dict[str, object], said: str) -> None:
    graph, program, buffers = chain()
    with pytest.raises(UnsafeProgram, match=said):
        verify_reuse(graph, program, moved(buffers, name, **changes), cpu(WORKERS))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("c", {"offset": 65}, "buffer 'c' takes 64 bytes from 65 of an arena of 128"),
        ("c", {"offset": -1}, "buffer 'c' takes 64 bytes from -1"),
        ("c", {"size": -64}, "takes -64 bytes"),
        ("c", {"name": "a"}, "two buffers are named 'a'"),
        ("c", {"writers": ("r9",)}, "'c' is used by the region 'r9', which is not there"),
    ],
)
def test_buffers_that_mean_nothing_are_refused(name: str, changes: dict[str, object], said: str) -> None:
    graph, program, buffers = chain()
    with pytest.raises(InvalidProgram, match=said):
        verify_reuse(graph, program, moved(buffers, name, **changes), cpu(WORKERS))


def orders(needs: list[list[int]]) -> list[tuple[int, ...]]:
    """All orders in which the regions can run, one after the other."""
    return [
        order
        for order in itertools.permutations(range(len(needs)))
        if all(order.index(one) < order.index(at) for at, some in enumerate(needs) for one in some)
    ]


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[list[int]], Buffers]:
    """Up to five regions, each of which writes a buffer that those who need it read."""
    count = draw(st.integers(2, 5))
    needs = [sorted(draw(st.sets(st.integers(0, at - 1), max_size=2))) if at else [] for at in range(count)]
    buffers = tuple(
        Buffer(
            f"b{at}", draw(st.integers(0, 3)), draw(st.integers(0, 2)),
            tuple(f"r{other}" for other in range(count) if at in needs[other]), (f"r{at}",),
        )
        for at in range(count)
    )  # fmt: skip
    return needs, Buffers("g", 8, buffers)


@settings(max_examples=300, deadline=None)
@given(drawn())
def test_it_accepts_what_no_order_breaks_and_nothing_else(given: tuple[list[list[int]], Buffers]) -> None:
    needs, buffers = given
    graph, program = ticketed(needs)
    broken = False
    for one, other in itertools.combinations(buffers.buffers, 2):
        if not (
            one.offset < other.offset + other.size and other.offset < one.offset + one.size and one.size * other.size
        ):
            continue
        uses = [{int(name[1:]) for name in (*some.readers, *some.writers)} for some in (one, other)]
        writes = [{int(name[1:]) for name in some.writers} for some in (one, other)]
        for a, b in ((0, 1), (1, 0)):
            # All uses of one before every write of the other, whatever the order is.
            if all(
                order.index(use) < order.index(write)
                for order in orders(needs)
                for use in uses[a]
                for write in writes[b]
            ):
                break
        else:
            broken = True
    try:
        verify_reuse(graph, program, buffers, cpu(WORKERS))
        accepted = True
    except UnsafeProgram:
        accepted = False
    assert accepted != broken


def test_the_command_decides_deadlock_needs_and_reuse(tmp_path: Path) -> None:
    graph, program, buffers = chain()
    for name, content in (
        ("p", write(program)), ("g", write_graph(graph)), ("b", write_buffers(buffers)),
        ("w", write_buffers(moved(buffers, "b", offset=0))),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
    assert read_buffers((tmp_path / "b").read_bytes()) == buffers
    common = [str(tmp_path / "p"), "--device", "cpu:2", "--graph", str(tmp_path / "g"), "--buffers"]
    found = json.loads(CliRunner().invoke(command, [*common, str(tmp_path / "b")]).stdout)
    assert (found["safe"], found["sharing"], found["checked"]) == (True, 1, "deadlock, needs, and the reuse of bytes")
    answer = CliRunner().invoke(command, [*common, str(tmp_path / "w")])
    assert "buffers 'a' and 'b' share bytes" in json.loads(answer.stdout)["reason"]
    assert isinstance(answer.exception, UnsafeProgram)
    alone = CliRunner().invoke(command, [str(tmp_path / "p"), "--device", "cpu:2", "--buffers", str(tmp_path / "b")])
    assert "pass --graph too" in str(alone.exception)


def test_a_file_that_names_no_buffers_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="this names no buffers"):
        read_buffers(b"{}")
