"""`graphopt compile --dim batch=1..8`: a bundle says its ranges, runs them and is certified."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

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


@pytest.mark.parametrize(("said", "sizes"), [("past=0", (0,)), ("past=0,3", (0, 3)), ("past=0..3", (0, 1, 3))])
def test_a_cache_may_be_empty(shell: Shell, said: str, sizes: tuple[int, ...]) -> None:
    """Of old rows and new ones, side by side and as their mean: both of copies, as Concat is no cache in place here."""
    text = """g (float[2,past,4] old, float[2,1,4] new) => (float[2,all,4] both, float[2,1,4] y)
        { both = Concat <axis = 1> (old, new) y = ReduceMean <axes = [1], keepdims = 1> (both) }"""
    onnx.save(support.model(text, 17), shell.folder / "m.onnx")
    assert shell.run("compile", "m.onnx", "b", "--dim", said, "--threads", "1").status == 0
    loaded = runtime.load(shell.folder / "b", threads=1)
    for size in sizes:
        old, new = np.full((2, size, 4), 2, np.float32), np.full((2, 1, 4), 5, np.float32)
        made = loaded(old=old, new=new)
        np.testing.assert_array_equal(made["both"], np.concatenate([old, new], 1))
        np.testing.assert_allclose(made["y"], made["both"].mean(1, keepdims=True), rtol=1e-6)
    loaded.close()


def test_a_range_of_multiples(shell: Shell) -> None:
    text = "g (float[s,8] x) => (float[s,3] y) { h = MatMul(x, w) y = Relu(h) }"
    onnx.save(support.model(text, 18, w=WEIGHTS), shell.folder / "m.onnx")
    sizes = ("--dim", "s=4*n", "--dim", "n=1..3", "--threads", "1")
    assert shell.run("compile", "m.onnx", "b", *sizes).status == 0
    loaded = runtime.load(shell.folder / "b", threads=1)
    for rows in (12, 4, 8):
        x = np.random.default_rng(rows).random((rows, 8), np.float32)
        np.testing.assert_allclose(loaded(x=x)["y"], x @ WEIGHTS, rtol=1e-5)
    loaded.close()
    answer = shell.run("compile", "m.onnx", "b", "--dim", "s=4*")
    assert answer.status == 2 and "'4*' is neither a size nor a name for a dim" in answer.err
