"""`python -m scheduler check`: what it prints, and what it says to programs that are not safe or no programs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from scheduler.cli.check import command
from scheduler.errors import InvalidDevice, InvalidProgram, InvalidTaskGraph, UnsafeProgram
from scheduler.program import Counter, Instruction, Item, Launch, Pinned, Plain, Program, Run, Ticketed, Wait, write
from scheduler.tasks import Kernel, Need, Region, TaskGraph

GRAPH = TaskGraph(
    "g", (Region("a", (Kernel("k", 2, (1.0,), threads=256),)), Region("b", (Kernel("k", 1, (1.0,)),))),
    (Need("a", "b"),),
)  # fmt: skip
LISTS: tuple[tuple[Instruction, ...], ...] = ((Run("a", 0), Wait(0, 2), Run("b", 0)), (Run("a", 1),))
COUNTERS = (Counter("a", 0, 2), Counter("b", 0, 1))


def checked(folder: Path, *launches: Launch, graph: TaskGraph | None = GRAPH, on: str = "v100") -> Result:
    program = folder / "program.json"
    program.write_bytes(write(Program("g", "v100", {"a": 0, "b": 0}, launches)))
    options = ["--device", on]
    if graph is not None:
        (folder / "graph.json").write_bytes(msgspec.json.encode(graph))
        options += ["--graph", str(folder / "graph.json")]
    return CliRunner().invoke(command, [str(program), *options])


def test_a_safe_program(tmp_path: Path) -> None:
    result = checked(tmp_path, Pinned(LISTS, COUNTERS, threads=256))
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "safe": True, "reason": None, "sharing": None,
        "checked": "deadlock and needs: pass --buffers to check the reuse of bytes too",
        "workers": 2, "resident": 640, "launches": 1, "waits": 1,
    }  # fmt: skip
    result = checked(tmp_path, Plain("a"), Plain("b"))
    assert result.exit_code == 0 and json.loads(result.stdout)["resident"] == 640


def test_an_unsafe_program_says_why(tmp_path: Path) -> None:
    result = checked(tmp_path, Pinned((LISTS[0][::2], LISTS[1]), COUNTERS, threads=256))
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and isinstance(result.exception, UnsafeProgram)
    assert not found["safe"] and found["reason"] == str(result.exception)
    assert "the edge a[1] -> b[0] is missing" in found["reason"]


def test_without_the_task_graph_needs_are_not_checked(tmp_path: Path) -> None:
    """And it says so; whether the program ends is decided all the same."""
    result = checked(tmp_path, Pinned((LISTS[0][::2], LISTS[1]), COUNTERS, threads=256), graph=None)
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["safe"]
    assert found["checked"] == "deadlock only: pass --graph to check needs and kernels too"
    circle = Pinned(((Wait(0, 2), Run("a", 0), Run("b", 0)), (Wait(1, 1), Run("a", 1))), COUNTERS)
    result = checked(tmp_path, circle, graph=None)
    assert result.exit_code == 1 and "worker 0 run 1 -> worker 0 run 1" in str(result.exception)
    tickets = Ticketed((Item(Run("a", 0)), Item(Run("a", 1), (Wait(1, 1),)), Item(Run("b", 0))), 3, COUNTERS)
    result = checked(tmp_path, tickets, graph=None)
    assert result.exit_code == 1 and "1 blocks of b[0], of which earlier tickets run 0" in str(result.exception)
    many = Pinned((*((Run("a", block),) for block in range(200)), (Run("b", 0),)), threads=1024)
    result = checked(tmp_path, many, graph=None)
    assert result.exit_code == 1 and "201 workers, of which only 160 are resident" in str(result.exception)
    split = (Pinned(((Run("a", 0), Run("a", 1)),)), Pinned(((Run("a", 2), Run("b", 0)),)))
    assert checked(tmp_path, *split, graph=None).exit_code == 0
    result = checked(tmp_path, Plain("a"), Plain("b"), graph=None)
    assert result.exit_code == 0 and json.loads(result.stdout)["resident"] is None


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    def refused(result: Result, kind: type[Exception], said: str) -> None:
        assert result.exit_code == 1 and not result.stdout
        assert isinstance(result.exception, kind) and said in str(result.exception)
        assert str(result.exception).endswith(".") and "\n" not in str(result.exception)

    plain = (Plain("a"), Plain("b"))
    refused(checked(tmp_path, *plain, on="h200"), InvalidProgram, "made for the device 'v100', not for 'h200'")
    refused(checked(tmp_path, *plain, on="h900"), InvalidDevice, "there is no device 'h900'")
    refused(checked(tmp_path, Plain("a")), InvalidProgram, "the program never runs b[0]")
    refused(checked(tmp_path, Plain("a"), graph=None), InvalidProgram, "the program never runs b[0]")
    refused(checked(tmp_path, Pinned(())), InvalidProgram, "launch 0 has 0 workers")
    refused(checked(tmp_path, Pinned(((Run("a", 1 << 70),),)), graph=None), InvalidProgram, "and has 1 runs; each")
    beyond = Pinned(((Run("a", 0), Run("b", 0)),), (Counter("a", 0, 3),))
    refused(checked(tmp_path, beyond, graph=None), InvalidProgram, "counts the blocks 0 to 3 of 'a'")
    refused(checked(tmp_path, Pinned(((Run("a", -1),),)), graph=None), InvalidProgram, "runs block -1 of 'a'")
    cyclic = TaskGraph("g", GRAPH.regions, (Need("a", "b"), Need("b", "a")))
    refused(checked(tmp_path, *plain, graph=cyclic), InvalidTaskGraph, "in a circle: a -> b -> a")


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "this is no program"), (b"[1]", "this is no program"), (b'{"graph": "\xff"}', "no pro")]
)
def test_files_that_are_no_programs(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "p.json").write_bytes(content)
    result = CliRunner().invoke(command, [str(tmp_path / "p.json"), "--device", "cpu:2"])
    assert result.exit_code == 1 and isinstance(result.exception, InvalidProgram) and said in str(result.exception)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(tmp_path / "p.json"), "--device", "cpu:2"])
    assert isinstance(result.exception, InvalidProgram) and "cannot be read: No such file" in str(result.exception)


def test_a_counter_that_overflows(tmp_path: Path) -> None:
    result = checked(tmp_path, Pinned((LISTS[0], (Wait(0, 1 << 70), Run("a", 1))), COUNTERS, threads=256))
    assert result.exit_code == 1 and "a counter holds at most 2147483647" in str(result.exception)
