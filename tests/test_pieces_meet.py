"""The pieces meet: ten models go all the way, and all records of one say the same.

What a fact is, and how a later step joins, stands in `tests/trail.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

import models
from tests import support
from tests.cli.shell import Shell
from tests.trail import DEVICE, FACTS, SCHEDULE_WORK, follow

# Two heads of 8 over a sequence of any length, then two layers; exporters write attention like this.
ENCODER = """g (float[1,seq,16] x) => (float[1,seq,16] y)
<int64[4] split = {0, 0, 2, 8}, int64[3] join = {0, 0, 16}, float scale = {0.35355}> {
    n = LayerNormalization<axis = -1>(x, gain, shift)
    q0 = MatMul(n, wq) q1 = Reshape(q0, split) q = Transpose<perm = [0, 2, 1, 3]>(q1)
    k0 = MatMul(n, wk) k1 = Reshape(k0, split) k = Transpose<perm = [0, 2, 3, 1]>(k1)
    v0 = MatMul(n, wv) v1 = Reshape(v0, split) v = Transpose<perm = [0, 2, 1, 3]>(v1)
    s0 = MatMul(q, k) s1 = Mul(s0, scale) s = Softmax<axis = -1>(s1)
    c0 = MatMul(s, v) c1 = Transpose<perm = [0, 2, 1, 3]>(c0) c = Reshape(c1, join)
    o = MatMul(c, wo) r = Add(x, o)
    h0 = MatMul(r, up) h = Relu(h0) d = MatMul(h, down) y = Add(r, d)
}"""
# Convolutions wide enough for Winograd, one of them read twice; their results are concatenated as images.
BRANCHES = """g (float[1,16,12,12] x) => (float[1,32,6,6] y) {
    a0 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, wa, ba) a = Relu(a0)
    b0 = Conv<kernel_shape = [1, 1]>(a, wb) b = Relu(b0)
    c0 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a, wa, ba) c = Relu(c0)
    d = Concat<axis = 1>(b, c) y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d)
}"""
# A sum in float16, which kernels compute in float32 and store rounded.
HALF = """g (float16[4,32] x, float16[32] b) => (float16[4,32] y) { a = Add(x, b) c = Sigmoid(a) y = Mul(a, c) }"""
# Rows of a table by number, with their mean beside them: two inputs of different types, two outputs.
LOOKUP = """g (int64[2,seq] ids, float[2,seq,12] x) => (float[2,seq,12] y, float[2,seq,1] m) {
    e = Gather(table, ids) y = Add(e, x) m = ReduceMean<axes = [2]>(y)
}"""


def floats(*shape: int, seed: int, share: float = 0.2) -> np.ndarray:
    return (share * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def encoder() -> onnx.ModelProto:
    names = {"wq": (16, 16), "wk": (16, 16), "wv": (16, 16), "wo": (16, 16), "up": (16, 64), "down": (64, 16)}
    weights = {name: floats(*shape, seed=number) for number, (name, shape) in enumerate(names.items())}
    return support.model(ENCODER, **weights, gain=np.ones(16, np.float32), shift=np.zeros(16, np.float32))


def branches() -> onnx.ModelProto:
    return support.model(
        BRANCHES, wa=floats(16, 16, 3, 3, seed=1), ba=floats(16, seed=2), wb=floats(16, 16, 1, 1, seed=3)
    )


def half() -> onnx.ModelProto:
    return support.model(HALF)


def lookup() -> onnx.ModelProto:
    return support.model(LOOKUP, table=floats(7, 12, seed=4))


@dataclass(frozen=True)
class Traveller:
    """A model, how it is written, and the sizes of its dynamic dims."""

    model: str | Callable[[], onnx.ModelProto]  # of the zoo, or of this file
    outside_from: int | None = None  # bytes: larger tensors lie beside the file
    dims: tuple[tuple[str, int], ...] = ()

    def write(self, file: Path) -> None:
        """The model as the user has it."""
        if isinstance(self.model, str):
            models.write(self.model, file, outside_from=self.outside_from)
        else:
            onnx.save(self.model(), file)


TRAVELLERS = {
    "layers": Traveller("mlp_tiny"),
    "layers, data outside": Traveller("mlp_tiny", outside_from=1024),
    "depthwise": Traveller("dscnn_kws", outside_from=1024),
    "convolutions, data outside": Traveller("squeezenet1_1", outside_from=1024),
    "recurrent": Traveller("gru_op"),
    "unrolled": Traveller("gru_unrolled"),
    "transformer": Traveller(encoder, dims=(("seq", 5),)),
    "branches": Traveller(branches),
    "float16": Traveller(half),
    "integers": Traveller(lookup, dims=(("seq", 3),)),
}


@pytest.mark.parametrize("name", TRAVELLERS)
def test_all_records_of_a_model_agree(name: str, tmp_path: Path) -> None:
    traveller = TRAVELLERS[name]
    (tmp_path / "given").mkdir()
    source = tmp_path / "given" / "model.onnx"
    traveller.write(source)
    trail = follow(source, dict(traveller.dims), tmp_path)
    for fact in FACTS:
        fact(trail)


@pytest.mark.parametrize("name", ["layers, data outside", "transformer"])
def test_the_command_line_says_what_python_says(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command's JSON is the record of the trail, but for times and for the names of files."""
    traveller, shell = TRAVELLERS[name], Shell(tmp_path, capsys)
    monkeypatch.chdir(tmp_path)
    (shell.folder / "given").mkdir()
    traveller.write(shell.folder / "given" / "model.onnx")
    (shell.folder / "python").mkdir()
    trail = follow(shell.folder / "given" / "model.onnx", dict(traveller.dims), shell.folder / "python")
    dims = [word for dim, size in traveller.dims for word in ("--dim", f"{dim}={size}")]
    listing = trail.compiled.linked.listing

    said = shell.run("optimize", "given/model.onnx", "optimized.onnx", "--json").json
    assert (said["nodes_after"], said["bytes_after"]) == (trail.optimized.after.nodes, trail.optimized.after.bytes)
    assert said["verification"]["status"] == "verified"
    assert (shell.folder / "optimized.onnx").read_bytes() == trail.file.read_bytes()
    assert same(shell.run("inspect", "optimized.onnx", *dims, "--json").json, trail.inspected)
    assert same(shell.run("memory", "optimized.onnx", *dims, "--json").json, trail.memory.record)
    words = ("--device", DEVICE, "--work", str(SCHEDULE_WORK), "--no-measure", "--json")
    assert same(shell.run("schedule", "optimized.onnx", *dims, *words).json, trail.scheduled.record)
    said = shell.run("compile", "optimized.onnx", "bundle", "--name", "model", *dims, "--json").json
    assert (said["regions"], said["kernels"]) == (len(listing.runs), len(listing.kernels))
    assert (said["arena_bytes"], said["weights_bytes"]) == (listing.arena_bytes, listing.weights_bytes)
    assert (said["scratch_bytes"], said["max_abs"]) == (listing.scratch_bytes, trail.compiled.max_abs)
    for file in trail.folder.iterdir():
        assert (shell.folder / "bundle" / file.name).read_bytes() == file.read_bytes()


def same(said: Mapping[str, object], record: msgspec.Struct) -> bool:
    """Whether JSON holds what the record does, but for the model's path."""
    wanted = json.loads(msgspec.json.encode(record))
    return {**said, "model": ""} == {**wanted, "model": ""}
