"""Convolutions and poolings along a length that a run sets: spelled out with operators of any size."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.errors import NotLowered
from tests import support

_random = np.random.default_rng(0)
ALONG = {
    "convolution": ("Conv<pads = [2, 1]>(x, w, b)", (6, 4, 3), 18),
    "dilated": ("Conv<dilations = [2], pads = [4, 0]>(x, w)", (6, 4, 3), 11),
    "of one element": ("Conv(x, w, b)", (6, 4, 1), 18),
    "each channel apart": ("Conv<group = 4, pads = [3, 0]>(x, w, b)", (4, 1, 4), 18),
    "transposed": ("ConvTranspose<strides = [3], pads = [1, 1], output_padding = [2]>(x, w, b)", (4, 6, 5), 18),
    "transposed, dilated": ("ConvTranspose<dilations = [2]>(x, w, b)", (4, 6, 3), 18),
    "transposed, apart": ("ConvTranspose<group = 4, strides = [2]>(x, w, b)", (4, 1, 3), 18),
    "mean": ("GlobalAveragePool(x)", None, 13),
    "largest": ("GlobalMaxPool(x)", None, 18),
    "of instances": ("InstanceNormalization(x, b, b)", None, 18),
}


@pytest.mark.parametrize("kind", sorted(ALONG))
def test_any_length(kind: str) -> None:
    node, dims, opset = ALONG[kind]
    w = np.ones((4, 4), "f4") if dims is None else _random.standard_normal(dims).astype("f4")
    count = 4 if dims is None else dims[1 if kind in ("transposed", "transposed, dilated") else 0]
    text = f"g (float[2,4,s] x) => (float[2,{count},t] y) {{ a = {node} y = Tanh(a) }}"
    model = support.model(text, opset, w=w, b=np.linspace(0.1, 1, count, dtype="f4"))
    made, session = graphopt.compile(model, dims={"s": (1, 30)}), support.session(model)
    for length in (1, 2, 7, 30):
        x = _random.standard_normal((2, 4, length)).astype("f4")
        for mine, its in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=2e-6)


def test_a_stride_is_left_alone() -> None:
    model = support.model("g (float[2,4,s] x) => (float[2,4,t] y) { y = Conv<strides = [2]>(x, w) }", 18,
                          w=np.ones((4, 4, 3), "f4"))  # fmt: skip
    with pytest.raises(NotLowered, match="Conv y cannot be of any size"):
        graphopt.compile(model, dims={"s": (3, 30)})
