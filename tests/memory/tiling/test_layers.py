"""Recurrent layers in chunks of steps: the same results, layers by turns, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.memory.tiling.layers import in_chunks
from graphopt.model.load import load
from graphopt.model.save import to_proto
from tests import support

DRAW = np.random.default_rng(5)


def _weights(gates: int, inputs: int, hidden: int, directions: int = 1) -> tuple[np.ndarray, ...]:
    all_units = gates * hidden
    shapes = (directions, all_units, inputs), (directions, all_units, hidden), (directions, 2 * all_units)
    return tuple((DRAW.standard_normal(shape) / 4).astype(np.float32) for shape in shapes)


ARRAYS = {
    **dict(zip(("w1", "r1", "b1"), _weights(3, 5, 4), strict=True)),
    **dict(zip(("w2", "r2", "b2"), _weights(3, 4, 4), strict=True)),
    **dict(zip(("w4", "r4", "b4"), _weights(4, 5, 4), strict=True)),
    **dict(zip(("w3", "r3", "b3"), _weights(3, 5, 4, 2), strict=True)),
    "one": np.array([1]), "last": np.array(-1),
    "lengths": np.array([3, 7], np.int32), "h": np.ones((1, 2, 4), np.float32),
}  # fmt: skip
GRU = "GRU<hidden_size = 4>"
CASES = {
    "two layers of which the last state is read": (
        f"float[7,2,5] x) => (float[2,4] y) {{ a = {GRU}(x, w1, r1, b1) b = Squeeze(a, one)"
        f" c = {GRU}(b, w2, r2, b2) d = Squeeze(c, one) y = Gather<axis = 0>(d, last) }}",
        ["Slice", "GRU", "Squeeze", "GRU"] * 3 + ["Reshape"],
    ),
    "all steps are read, from a given state": (
        f"float[7,2,5] x) => (float[] y, float[] z) {{ y, z = {GRU}(x, w1, r1, b1, , h) }}",
        ["Slice", "GRU"] * 3 + ["Concat"],
    ),
    "a state of two": (
        "float[7,2,5] x) => (float[] y, float[] s, float[] c) { y, s, c = LSTM<hidden_size = 4>(x, w4, r4, b4) }",
        ["Slice", "LSTM"] * 3 + ["Concat"],
    ),
    "what comes before, step by step": (
        f"float[2,7,5] x) => (float[] z) {{ t = Transpose<perm = [1, 0, 2]>(x) y, z = {GRU}(t, w1, r1, b1) }}",
        ["Slice", "Transpose", "GRU"] * 3,
    ),
    "steps that are concatenated": (
        f"float[7,2,5] x) => (float[] z) {{ p = Neg(x) q = Relu(x) t = Concat<axis = 0>(p, q)"
        f" y, z = {GRU}(t, w1, r1, b1) }}",
        ["Neg", "Relu", *["Slice", "Concat", "GRU"], *["Slice", "Slice", "Concat", "GRU"], *["Slice", "Concat", "GRU"]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_chunks_hand_on_their_states(case: str) -> None:
    text, operators = CASES[case]
    model = load(support.model(f"g ({text}", 17, **ARRAYS))
    chunked = in_chunks(model, 3)
    assert chunked is not None and [node.op_type for node in chunked.graph] == operators
    shape = tuple(model.graph.inputs[0].shape or ())
    x = DRAW.standard_normal([int(str(dim)) for dim in shape]).astype(np.float32)
    before, after = (support.session(to_proto(one)).run(None, {"x": x}) for one in (model, chunked))
    for mine, theirs in zip(before, after, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        "GRU<hidden_size = 4, direction = \"reverse\">(x, w1, r1, b1)",
        "GRU<hidden_size = 4, direction = \"bidirectional\">(x, w3, r3, b3)",
        f"{GRU}(x, w1, r1, b1, lengths)",
    ],
)  # fmt: skip
def test_other_layers_stay(layer: str) -> None:
    model = load(support.model(f"g (float[7,2,5] x) => (float[] y) {{ y = {layer} }}", 17, **ARRAYS))
    assert in_chunks(model, 2) is None


def test_there_are_no_more_chunks_than_steps() -> None:
    model = load(support.model(f"g (float[7,2,5] x) => (float[] y) {{ y = {GRU}(x, w1, r1, b1) }}", 17, **ARRAYS))
    assert in_chunks(model, 7) is not None and in_chunks(model, 8) is None
