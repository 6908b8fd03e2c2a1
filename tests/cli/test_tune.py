"""`--tune` and `graphopt tune`: what was measured is kept, shown, and handed on to machines of the same kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from distributed import LocalCluster

import graphopt
from graphopt.errors import OptionError, SaveError
from graphopt.flows.records.tuning import TuningFile
from graphopt.flows.tune import import_choices, kept_choices
from graphopt.machine.kept import own_key
from kernels.tune import Choice
from tests import support
from tests.cli.shell import Shell

COMPILE = ("compile", "in.onnx", "b", "--dim", "batch=2")
ENOUGH = ("--tune", "1e9")  # seconds: a test never runs out of them
CHOICES = {
    "k": Choice("product", "cpu", "b", 2.0, {"a": 3.0, "b": 2.0}),
    "l": Choice("product", "cpu", "a", 1.0, {"a": 1.0}),
    "m": Choice("convolution", "cpu", "a", 1.0, {"a": 1.0, "b": 2.0}),
}


@pytest.fixture(autouse=True)
def cache(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and no word about tuning."""
    monkeypatch.delenv("GRAPHOPT_TUNE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(shell.folder / "cache"))
    return shell.folder / "cache" / "graphopt"


def test_compile_measures_for_this_machine_and_keeps_what_it_finds(shell: Shell, cache: Path) -> None:
    weights = np.ones((64, 96), np.float32)
    onnx.save(support.model("g (float[48,64] x) => (float[48,96] y) { y = MatMul(x, w) }", 18, w=weights),
              shell.folder / "product.onnx")  # fmt: skip
    words = ("compile", "product.onnx", "b", *ENOUGH)
    assert shell.run(*words).status == 0
    kept = kept_choices()
    assert kept.path.parent == cache and kept.choices()
    before = kept.path.read_bytes()
    assert shell.run(*words).status == 0 and kept.path.read_bytes() == before


@pytest.mark.parametrize("words", [("--tune", "0"), ("--target", "x86-64-v3", "--unchecked")])
def test_estimates_choose_where_nothing_is_to_be_measured(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell.run(*COMPILE, *words).status == 0
    assert not kept_choices().path.exists()


def test_a_processor_that_is_not_here_cannot_be_measured(shell: Shell) -> None:
    answer = shell.run(*COMPILE, "--target", "aarch64", "--tune", "1")
    assert answer.status != 0 and "kernels cannot be measured" in answer.err


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_python_refuses_times_that_are_none(shell: Shell, seconds: float) -> None:
    with pytest.raises(OptionError, match="cannot be measured for"):
        graphopt.compile(shell.folder / "in.onnx", dims={"batch": 2}, tune=seconds)


def test_a_cache_that_cannot_be_written_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    with pytest.raises(SaveError, match="XDG_CACHE_HOME"):
        graphopt.compile(shell.folder / "in.onnx", dims={"batch": 2}, tune=1)


def test_what_is_kept_is_a_table(shell: Shell) -> None:
    assert shell.run("tune").out.startswith("no kernel was measured on ")
    kept_choices().add(CHOICES)
    rows = [line.split() for line in shell.run("tune").out.splitlines()]
    assert ["product", "2", "1", "1"] in rows and ["convolution", "1", "1", "0"] in rows
    found = json.loads(shell.run("tune", "--json").out)
    assert found["file"] == str(kept_choices().path) and len(found["templates"]) == 2


def test_what_is_exported_is_imported(shell: Shell) -> None:
    kept_choices().add(CHOICES)
    assert shell.run("tune", "--export", "out.json").status == 0
    kept_choices().path.unlink()
    own = Choice("product", "cpu", "mine", 9.0, {"mine": 9.0})
    kept_choices().add({"k": own, "x": own})
    assert shell.run("tune", "--import", "out.json").status == 0
    assert kept_choices().choices() == {"x": own, **CHOICES}


def test_only_one_way_at_a_time(shell: Shell) -> None:
    answer = shell.run("tune", "--export", "a.json", "--import", "b.json")
    assert answer.status == 2 and "one at a time" in answer.err


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "cannot be read"),
        (b"{", "is no file of graphopt tune"),
        (msgspec.json.encode(TuningFile(own_key(), {}, "graphopt.choices/9")), "of schema 'graphopt.choices/9'"),
        (msgspec.json.encode(TuningFile(msgspec.structs.replace(own_key(), cpu="other"), {})), "is of other"),
        (msgspec.json.encode(TuningFile(msgspec.structs.replace(own_key(), llvm="1.0"), {})), "LLVM 1.0"),
    ],
)
def test_other_files_are_not_imported(tmp_path: Path, content: bytes | None, fault: str) -> None:
    path = tmp_path / "given.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=fault):
        import_choices(path)
    assert not kept_choices().path.exists()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as started:
        yield started


def test_a_cluster_measures_for_one_model(shell: Shell, cluster: LocalCluster) -> None:
    weights = np.ones((64, 96), np.float32)
    onnx.save(support.model("g (float[48,64] x) => (float[48,96] y) { y = MatMul(x, w) }", 18, w=weights),
              shell.folder / "product.onnx")  # fmt: skip
    words = ("compile", "product.onnx", "b", "--dask", cluster.scheduler_address)
    answer = shell.run(*words, *ENOUGH)
    assert answer.status == 0, answer.err
    kept = kept_choices()
    assert any(len(one.measured) > 1 for one in kept.choices().values())
    before, made = kept.path.read_bytes(), _files(shell.folder / "b")
    assert shell.run(*words, *ENOUGH).status == 0
    assert kept.path.read_bytes() == before and _files(shell.folder / "b") == made
    assert shell.run("compile", "product.onnx", "b", *ENOUGH).status == 0
    assert kept.path.read_bytes() == before and _files(shell.folder / "b") == made, "alone with the same choices"


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", [(), ("--tune", "0")])
def test_a_cluster_for_one_model_is_for_measuring(shell: Shell, words: tuple[str, ...]) -> None:
    answer = shell.run(*COMPILE, *words, "--dask", "tcp://127.0.0.1:1")
    assert answer.status == 2
    assert answer.error.startswith("--dask: a cluster measures the kernels of one model; say for how long with --tune")


def test_a_cluster_that_does_not_answer_is_told(shell: Shell) -> None:
    answer = shell.run(*COMPILE, *ENOUGH, "--dask", "not an address")
    assert answer.status == 1 and "no cluster of Dask answers at 'not an address'" in answer.error
