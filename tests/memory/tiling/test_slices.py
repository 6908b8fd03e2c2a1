"""Tiles cut the operand of what only reads and writes, where that takes no more memory or time."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.memory.tiling.slices import with_slices_before
from graphopt.model import nodes
from graphopt.model.load import load
from graphopt.model.save import to_proto
from tests import support

DRAW = np.random.default_rng(3)
ARRAYS = {
    "s": DRAW.uniform(0.5, 1.5, 4).astype(np.float32), "w": DRAW.standard_normal((2, 4, 1, 1)).astype(np.float32),
    "begin": np.array([0]), "half": np.array([3]), "late": np.array([1]), "end": np.array([6]), "rows": np.array([2]),
}  # fmt: skip
TILED = """g (float[1,4,6,6] x) => (float[] y) {
    v = Exp(x) n = BatchNormalization(v, s, s, s, s) r = Relu(n)
    p = Slice(r, begin, half, rows) q = Slice(r, half, end, rows) a = Conv(p, w) b = Conv(q, w)
    y = Concat<axis = 2>(a, b)
}"""


def _moved(text: str, *, tiles: bool = True) -> tuple[list[str], bool]:
    """The operators afterwards, and whether there was something to move; the results are the same."""
    model = load(support.model(text, **ARRAYS))
    for node in model.graph:
        if node.op_type == "Slice" and tiles:
            node.metadata_props[nodes.TILED] = "r"
    found = with_slices_before(model)
    feeds = {"x": DRAW.standard_normal((1, 4, 6, 6)).astype(np.float32)}
    expected, got = (support.session(to_proto(one)).run(None, feeds) for one in (model, found))
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)
    return [node.op_type for node in found.graph], found is not model


def test_a_normalization_runs_for_each_piece() -> None:
    """What is cut is the result of Exp: its operand is the caller's and takes as many bytes as it does."""
    assert _moved(TILED) == (
        ["Slice", "Exp", "BatchNormalization", "Relu", "Slice", "Exp", "BatchNormalization", "Relu", "Conv", "Conv",
         "Concat"], True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        TILED.replace("r = Relu(n)", "r = Add(n, v)"),  # two values would wait for the last piece
        TILED.replace("Slice(r, half, end", "Slice(r, late, end"),  # positions would be computed twice
        TILED.replace(
            "y = Concat<axis = 2>(a, b)", "z = Concat<axis = 2>(a, b) m = ReduceMax(r) y = Add(z, m)"
        ),  # whole
        TILED.replace("(float[] y)", "(float[] y, float[1,4,6,6] r)"),  # it is a result of the model
        TILED.replace("Relu(n)", "Softmax<axis = 2>(n)"),  # a row needs all others
    ],
)
def test_other_values_stay_whole(text: str) -> None:
    assert not _moved(text)[1]


def test_what_the_model_itself_slices_stays() -> None:
    assert not _moved(TILED, tiles=False)[1]
