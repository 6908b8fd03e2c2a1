"""Folders of models: every one in a process of its own, resumed where a run stopped, on workers that may be killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from graphopt.flows import many
from graphopt.flows.many import TRIES, Task, attempt
from graphopt.report import many_page
from tests import support
from tests.cli.shell import Shell, small_model

NAMES = ("a.onnx", "deep/b.onnx")


@pytest.fixture
def folder(shell: Shell) -> Path:
    """Two models, one of them a folder down, and one that is none."""
    for name in NAMES:
        (shell.folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (shell.folder / "in" / name).write_bytes(small_model().SerializeToString())
    (shell.folder / "in" / "none.onnx").write_bytes(b"none")
    return shell.folder / "in"


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.onnx")}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as started:
        yield started


def test_a_folder_alone_by_two_and_on_a_cluster(shell: Shell, folder: Path, cluster: LocalCluster) -> None:
    ways = {"alone": (), "two": ("--jobs", "2"), "dask": ("--dask", cluster.scheduler_address)}
    for name, words in ways.items():
        answer = shell.run("optimize", "in", name, "--level", "2", "--json", *words)
        assert answer.status == 1, "one model is none"
        results = {one["model"]: one for one in answer.json["results"]}
        assert list(results) == [*NAMES, "none.onnx"]
        assert {results[one]["status"] for one in NAMES} == {"done"}
        assert (
            results["none.onnx"]["status"] == "refused" and "is not an ONNX protobuf" in results["none.onnx"]["error"]
        )
        assert written(shell.folder / name).keys() == set(NAMES)
        assert json.loads((shell.folder / name / "results.json").read_text()) == answer.json
        assert b"deep/b.onnx" in (shell.folder / name / "results.html").read_bytes()
    assert written(shell.folder / "alone") == written(shell.folder / "two") == written(shell.folder / "dask")
    assert support.op_types(shell.read("two/deep/b.onnx")) == ["Gemm", "Relu"]


def test_nothing_is_done_twice(shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.run("optimize", "in", "out", "--json")
    ledger = shell.folder / "out" / many.LEDGER
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:1]) + lines[1][:40])  # as a run that was killed leaves it
    ran: list[str] = []
    monkeypatch.setattr(many, "attempt", lambda one: ran.append(one.model) or attempt(one))
    answer = shell.run("optimize", "in", "out", "--json")
    assert len(ran) == 2 and answer.json["taken_over"] == 1
    assert [one["model"] for one in answer.json["results"]] == [*NAMES, "none.onnx"]
    ran.clear()
    assert shell.run("optimize", "in", "out", "--json").json["taken_over"] == 3 and not ran
    assert shell.run("optimize", "in", "out", "--json", "--level", "1").json["taken_over"] == 0, "other options"
    (shell.folder / "out" / "a.onnx").unlink()
    ran.clear()
    shell.run("optimize", "in", "out", "--json")
    assert ran == ["a.onnx"], "what is no longer there is made again"


def test_a_worker_that_is_killed_costs_one_try_of_one_model(
    shell: Shell, folder: Path, cluster: LocalCluster, tmp_path: Path
) -> None:
    workers = cluster.scheduler_info["workers"]
    victim = next(iter(cluster.workers.values())).pid
    threading.Timer(0.5, lambda: os.kill(victim, signal.SIGKILL)).start()
    answer = shell.run("optimize", "in", "out", "--dask", cluster.scheduler_address, "--json")
    assert len(workers) == 2
    assert [one["status"] for one in answer.json["results"]] == ["done", "done", "refused"]
    assert written(shell.folder / "out").keys() == set(NAMES)


def test_a_process_that_dies_is_begun_again_and_at_last_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[tuple[int, bytes]] = [(-9, b""), (0, json.dumps({"schema": "graphopt.inspect/1"}).encode())]

    class Done:
        def __init__(self, end: tuple[int, bytes]) -> None:
            self.returncode, self.stdout = end
            self.stderr = b"last words"

    monkeypatch.setattr(many.subprocess, "run", lambda *_, **__: Done(ends.pop(0)))
    task = Task("m.onnx", ("inspect", "m.onnx"), "digest", None)
    found = attempt(task)
    assert (found.status, found.tries) == ("done", 2)
    ends[:] = [(-9, b"")] * TRIES
    found = attempt(task)
    assert (found.status, found.tries) == ("crashed", TRIES)
    assert found.error == "its process died with status -9: last words" and not ends


@pytest.mark.parametrize(
    ("words", "figure"),
    [
        (("memory", "in", "out", "--dim", "batch=2"), "arena 128 B"),
        (("compile", "in", "out", "--dim", "batch=2"), "weights "),
        (("verify", "in", "in", "-o", "out"), "equal"),
    ],
)
def test_other_commands_take_folders_too(shell: Shell, folder: Path, words: tuple[str, ...], figure: str) -> None:
    answer = shell.run(*words)
    assert answer.status == 1 and answer.err == ""
    rows = [line for line in answer.out.splitlines() if line.startswith(("a.onnx", "deep/"))]
    assert len(rows) == 2 and all("done" in row and figure in row for row in rows), answer.out
    assert "2 done, 1 refused" in answer.out
    if words[0] == "compile":
        assert (shell.folder / "out" / "deep" / "b" / "manifest.json").exists()


def test_different_models_of_two_folders_are_told(shell: Shell, folder: Path) -> None:
    (folder / "none.onnx").unlink()
    other = shell.folder / "other"
    for name in NAMES:
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_bytes((folder / name).read_bytes())
    assert shell.run("verify", "in", "other").status == 0
    wrong = support.model("g (float[batch,4] x) => (float[batch,3] y) { m = MatMul(x, w) y = Relu(m) }", w=_ones())
    (other / "a.onnx").write_bytes(wrong.SerializeToString())
    answer = shell.run("verify", "in", "other")
    assert answer.status == 1 and "different" in answer.out


def _ones() -> Any:
    import numpy as np

    return np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("optimize", "in"), "OUT: a folder of models is written to another folder; give it."),
        (("optimize", "in", "out", "--report", "r.html"), "--report: is for one model"),
        (("memory", "in.onnx", "out"), "OUT: is for a folder of models"),
    ],
)
def test_what_is_for_one_model_or_for_many(shell: Shell, folder: Path, words: tuple[str, ...], said: str) -> None:
    answer = shell.run(*words)
    assert answer.status == 2 and answer.error.startswith(said)


def test_an_empty_folder_and_a_cluster_that_is_not_there(shell: Shell, folder: Path) -> None:
    (shell.folder / "empty").mkdir()
    assert shell.run("optimize", "empty", "out").error.endswith("empty' holds no .onnx file.")
    answer = shell.run("optimize", "in", "out", "--dask", "not an address")
    assert answer.status == 1 and "no cluster of Dask answers at 'not an address'" in answer.error


def test_results_stand_without_the_page(shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(record: object) -> bytes:
        raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")

    monkeypatch.setattr(many_page, "many_page", absent)
    (folder / "none.onnx").unlink()
    answer = shell.run("memory", "in", "out", "--dim", "batch=2", "--levers", "none")
    assert answer.status == 0 and (shell.folder / "out" / "results.json").exists()
    assert "none: this needs jinja2, which is not installed: pip install 'graphopt[report]'" in answer.out
