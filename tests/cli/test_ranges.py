"""`graphopt compile --dim batch=1..8`: a bundle says its ranges, runs them and is certified."""

from __future__ import annotations

import json

import numpy as np
import onnx

from graphopt.program.deploy import runtime
from tests import support
from tests.cli.shell import Shell

WEIGHTS = np.random.default_rng(0).random((8, 3), np.float32)


def test_a_bundle_says_its_ranges_and_runs_them(shell: Shell) -> None:
    text = "g (float[batch,8] x) => (float[batch,3] y) { h = MatMul(x, w) y = Relu(h) }"
    onnx.save(support.model(text, 18, w=WEIGHTS), shell.folder / "m.onnx")
    assert shell.run("compile", "m.onnx", "b", "--dim", "batch=1..8", "--threads", "1").status == 0
    folder = shell.folder / "b"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert len(manifest["model"]) == 64, "the digest of its file"
    assert manifest["program"]["sizes"] == [{"name": "batch", "least": 1, "most": 8}]
    assert manifest["program"]["inputs"][0]["free"] == [[0, [[1, ["batch"]]]]]
    header = (folder / "m.h").read_text()
    assert "int m_set_dim(" in header and '"batch", from 1 to 8' in header and "f32 [batch, 8]" in header
    loaded = runtime.load(folder, threads=1)
    for batch in (8, 3):
        x = np.random.default_rng(batch).random((batch, 8), np.float32)
        np.testing.assert_allclose(loaded(x=x)["y"], x @ WEIGHTS, rtol=1e-5)
    loaded.close()
    assert shell.run("certify", "b").status == 0
    answer = shell.run("compile", "m.onnx", "b", "--dim", "batch=8..1")
    assert answer.status == 2 and "is no range; give a least and a greatest size, batch=1..8" in answer.err
