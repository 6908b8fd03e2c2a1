"""`python -m memplan pack`: JSON on standard output; one sentence and exit status 1 for what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.memory.instances import cut
from memplan.__main__ import main
from memplan.compiling import COMPILING
from memplan.packing.csv_file import read_csv, write_csv
from memplan.plan import Packing
from memplan.verify.packing import verify


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error without word that solvers are compiled."""
    monkeypatch.setattr(sys, "argv", ["memplan", "pack", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    out = capsys.readouterr()
    return int(stopped.value.code or 0), out.out, out.err.removeprefix(f"{COMPILING}\n")


def test_offsets_under_a_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, file, output = cut(100, 4), tmp_path / "cut.csv", tmp_path / "out.csv"
    write_csv(problem, file)
    status, out, _ = run(monkeypatch, capsys, str(file), "--capacity", "1024", "--output", str(output))
    assert status == 0
    found = json.loads(out)
    plan = Packing(found["offsets"], found["arena_size"], found["lower_bound"], found["solver"])
    verify(problem, plan)
    assert (found["arena_size"], found["lower_bound"], found["fragmentation"]) == (1024, 1024, 0)
    assert found["proved_optimal"] is True and found["limited"] is None and found["seconds"] >= 0
    assert {buffer.name: buffer.offset for buffer in read_csv(output).buffers} == found["offsets"]


def test_the_least_arena_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "input.csv"
    file.write_text("id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n")
    status, out, _ = run(monkeypatch, capsys, str(file))
    assert status == 0 and json.loads(out)["arena_size"] == 12


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("id,lower,upper,size\na,0,3,9\n", ("--capacity", "5"), "the capacity of 5 bytes is 4 bytes below the lower"),
        ("id,lower,upper,size\na,0,3,9\n", ("--capacity", "-5"), "a capacity of -5 bytes is no capacity."),
        ("id,lower,upper,size\na,0,3,9\n", ("--time-limit", "-1"), "a time limit of -1.0 s is no time limit."),
        ("id,lower,upper,size\na,0,3,-9\n", (), "line 2: buffer 'a' has -9 bytes; a size is not negative."),
        ("size\n", (), "line 1: the header lacks id, lower, upper"),
    ],
)
def test_what_is_refused_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    file = tmp_path / "input.csv"
    file.write_text(text)
    status, out, error = run(monkeypatch, capsys, str(file), *arguments)
    assert (status, out) == (1, "")
    assert sentence in error and error.startswith("error: ") and error.count("\n") == 1
