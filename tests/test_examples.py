"""Every example of docs/examples runs as its first line says, on a model of the zoo."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import graphopt
import models

EXAMPLES = sorted((Path(__file__).parent.parent / "docs" / "examples").glob("*.py"))
# What follows the script's name, and what its output begins with.
RUNS = {
    "optimize": (["model.onnx", "out.onnx"], r"\d+ -> \d+ nodes, verified\n"),
    "compile_and_run": (
        ["model.onnx", "bundle"],
        r"logits float32 \[1, 10\]\narena [\d,]+ bytes, compared: verified\n",
    ),
    "memory_budget": (["model.onnx", "out.onnx"], r"peak [\d,]+ bytes at .+\norder: "),
    "own_feeds": (["model.onnx", "feeds.npz"], r"verified on \d+ feeds \(given, .*\), largest error "),
    "schedule": (["model.onnx"], r"\d+ regions in \d+ us by \w+, \d+ waits\nno schedule is below "),
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    models.write("mlp_tiny", tmp_path / "model.onnx")
    (one,) = graphopt.load("model.onnx").graph.inputs
    np.savez("feeds.npz", **{one.name or "": np.ones([int(dim) for dim in one.shape or ()], np.float32)})
    words, beginning = RUNS[example.stem]
    monkeypatch.setattr(sys, "argv", [example.name, *words])
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert re.match(beginning, said), said
    written = [word for word in words if word in ("out.onnx", "bundle")]
    assert all((tmp_path / word).exists() for word in written)
