"""Every example of docs/examples runs as its first line says, on a model of the zoo."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

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
    "deploy_to_c": (["model.onnx", "bundle"], r"(?s)(logits: .+\n)?logits: equal True\n"),
    "find_divergence": (
        ["model.onnx", "wrong.onnx"],
        r"different, largest error .+\nfirst at 'linear', made by Gemm 'node_linear': off by ",
    ),
    "memory_page": (["model.onnx", "page.html"], r"<MemoryReport model.onnx: arena .+>\nlinear: 512 bytes\n"),
    "notebook": (
        ["model.onnx"],
        r"<OptimizeResult model.onnx: \d+ -> \d+ nodes, verified>\ninput \[1, 64\] -> \(1, 10\), [\d,]+ bytes\n",
    ),
    "memory_budget": (["model.onnx", "4096", "out.onnx"], r"peak [\d,]+ bytes at .+\norder: "),
    "own_feeds": (["model.onnx", "feeds.npz"], r"verified on \d+ feeds \(given, .*\), largest error "),
    "quantize": (
        ["model.onnx", "feeds.npz", "out.onnx"],
        r"(?s)node_linear\S*: [\w -]+.*, error alone .+\nerror \S+ of a budget of 0.05\n",
    ),
    "train": (["model.onnx", "out.onnx", "page.html"], r"mean loss [\d.]+ -> [\d.]+\n"),
    "schedule": (["model.onnx"], r"\d+ regions in \d+ us by [\w -]+, \d+ waits\nno schedule is below "),
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    models.write("mlp_tiny", tmp_path / "model.onnx")
    (one,) = graphopt.load("model.onnx").graph.inputs
    np.savez("feeds.npz", **{one.name or "": np.ones([int(dim) for dim in one.shape or ()], np.float32)})
    _write_wrong(Path("wrong.onnx"))
    words, beginning = RUNS[example.stem]
    monkeypatch.setattr(sys, "argv", [example.name, *words])
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert re.match(beginning, said), said
    written = [word for word in words if word in ("out.onnx", "bundle", "page.html")]
    assert all((tmp_path / word).exists() for word in written)


def test_deploying_without_a_c_compiler_runs_the_python_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models.write("mlp_tiny", tmp_path / "model.onnx")
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *rest: None if name == "cc" else which(name, *rest))
    example = next(path for path in EXAMPLES if path.stem == "deploy_to_c")
    monkeypatch.setattr(sys, "argv", [example.name, str(tmp_path / "model.onnx"), str(tmp_path / "bundle")])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out == "logits: equal True\n"
    assert not (tmp_path / "bundle" / "example").exists()


def _write_wrong(path: Path) -> None:
    """The model with its first layer's weights moved."""
    proto = onnx.load("model.onnx")
    first = proto.graph.initializer[0]
    first.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(first) + np.float32(0.5), first.name))
    onnx.save(proto, path)
