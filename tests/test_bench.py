"""The benches can be started: each of their modules imports what is there."""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
from pathlib import Path

import pytest
from rich.console import Console

import bench
from bench import kept
from bench.bar import Bar, Sheet

# What they measure beside, or count with, is no dependency of the tests.
OPTIONAL = {"openvino", "onnxslim", "onnxsim", "onnxscript", "onnxoptimizer", "torch", "onnx_tool"}
MODULES = sorted(one.name for one in pkgutil.walk_packages(bench.__path__, "bench."))


@pytest.mark.parametrize("name", MODULES)
def test_a_bench_imports_what_is_there(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert (error.name or "").partition(".")[0] in OPTIONAL, error


def test_promises_of_one_number_are_kept_side_by_side(tmp_path: Path) -> None:
    """Each in its place when it is measured again, and others of the number, of another script for example, stay."""
    kept.keep(
        [Bar(21, 4, "arm", "all", "3 of 4", False), Bar(21, 4, "risc", "all", "all", True)], folder=tmp_path, name="a"
    )
    kept.keep([Bar(21, 4, "web", "all", "all", True)], folder=tmp_path, name="a")
    kept.keep([Bar(21, 4, "arm", "all", "4 of 4", True)], folder=tmp_path, name="a")
    found = json.loads((tmp_path / "a.json").read_text())["bars"]
    assert [(label, bar["text"], bar["figure"]) for label, bar in found.items()] == [
        ("d4a", "arm", "4 of 4"), ("d4b", "risc", "all"), ("d4c", "web", "all")
    ]  # fmt: skip


def test_results_are_kept_by_processor(tmp_path: Path) -> None:
    """A bar that is measured again takes the place of its older figure; others stay, and what was not measured."""
    first = [Bar(18, 2, "speed", "1.75", "1.6", False), Bar(18, 10, "order", "all", "all", True)]
    kept.keep(first, folder=tmp_path, name="one-2")
    kept.keep([Bar(18, 2, "speed", "1.75", "1.8", True)], folder=tmp_path, name="one-2")
    kept.keep([Bar(1, 3, "zoo", "0", "not here", None)], folder=tmp_path, name="other-4")
    found = json.loads((tmp_path / "one-2.json").read_text())["bars"]
    assert [(label, bar["figure"]) for label, bar in found.items()] == [("c2", "1.8"), ("c10", "all")]
    assert json.loads((tmp_path / "other-4.json").read_text()) == {"processor": "other-4", "bars": {}}
    stream = io.StringIO()
    kept.show(Sheet(Console(file=stream, width=100)), folder=tmp_path)
    assert "bars on one-2" in stream.getvalue() and "1.8" in stream.getvalue()
