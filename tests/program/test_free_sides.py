"""Convolutions and poolings along a length that a run sets: spelled out with operators of any size."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from tests import support

_random = np.random.default_rng(0)
ALONG = {
    "convolution": ("Conv<pads = [2, 1]>(x, w, b)", (6, 4, 3), 18),
    "of a stride": ("Conv<strides = [2], pads = [2, 1]>(x, w, b)", (6, 4, 3), 18),
    "of a stride, dilated": ("Conv<strides = [3], dilations = [2], pads = [4, 0]>(x, w)", (6, 4, 3), 11),
    "of one element and a stride": ("Conv<strides = [2]>(x, w)", (6, 4, 1), 18),
    "in groups": ("Conv<group = 2, strides = [2], pads = [2, 1]>(x, w, b)", (6, 2, 3), 18),
    "each channel apart, a stride": ("Conv<group = 4, strides = [3], pads = [3, 0]>(x, w, b)", (4, 1, 4), 18),
    "long, of a stride": ("Conv<strides = [5], pads = [9, 10]>(x, w, b)", (6, 4, 18), 18),
    "long, in groups": ("Conv<group = 2, strides = [4], pads = [8, 7]>(x, w, b)", (6, 2, 16), 13),
    "twice": ("Conv<strides = [2], pads = [1, 1]>(c, w)", (4, 4, 3), 18),
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
    before = "c = Conv<strides = [3], pads = [2, 2]>(x, w)" if kind == "twice" else ""
    text = f"g (float[2,4,s] x) => (float[2,{count},t] y) {{ {before} a = {node} y = Tanh(a) }}"
    model = support.model(text, opset, w=w, b=np.linspace(0.1, 1, count, dtype="f4"))
    made, session = graphopt.compile(model, dims={"s": (1, 30)}), support.session(model)
    for length in (1, 2, 7, 30):
        x = _random.standard_normal((2, 4, length)).astype("f4")
        for mine, its in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=2e-6)


SEQUENCES = {
    "one row": ("float[2,4,1,s]", "Conv<pads = [0, 2, 0, 1]>(x, w, b)", (6, 4, 1, 4)),
    "one row, padded as the operator says": ("float[2,4,1,s]", 'Conv<auto_pad = "SAME_UPPER">(x, w, b)', (6, 4, 1, 4)),
    "one row, padded in front": ("float[2,4,1,s]", 'Conv<auto_pad = "SAME_LOWER">(x, w)', (6, 4, 1, 4)),
    "one row, each channel apart": ("float[2,4,1,s]", "Conv<group = 4, pads = [0, 1, 0, 1]>(x, w)", (4, 1, 1, 3)),
    "all rows": ("float[2,4,3,s]", "Conv<pads = [0, 1, 0, 1], strides = [1, 2]>(x, w, b)", (6, 4, 3, 3)),
    "all rows in groups": ("float[2,4,3,s]", "Conv<group = 2, pads = [0, 1, 0, 1]>(x, w, b)", (6, 2, 3, 3)),
    "all rows and padding": ("float[2,4,2,s]", "Conv<pads = [1, 1, 2, 1]>(x, w)", (6, 4, 5, 3)),
    "all rows, dilated": ("float[2,4,5,s]", "Conv<dilations = [2, 2], pads = [0, 2, 0, 2]>(x, w)", (6, 4, 3, 3)),
    "one column": ("float[2,4,s,1]", "Conv<pads = [2, 0, 1, 0]>(x, w, b)", (6, 4, 4, 1)),
    "all columns": ("float[2,4,s,3]", "Conv<pads = [1, 0, 1, 0]>(x, w, b)", (6, 4, 3, 3)),
}


@pytest.mark.parametrize("kind", sorted(SEQUENCES))
def test_sequences_that_are_written_as_images(kind: str) -> None:
    """tf2onnx writes a Conv1D as a Conv of one row; spectrograms have kernels as high as they are."""
    given, node, dims = SEQUENCES[kind]
    w = _random.standard_normal(dims).astype("f4")
    model = support.model(
        f"g ({given} x) => (float[2,{dims[0]},u,v] y) {{ a = {node} y = Tanh(a) }}", 18,
        w=w, b=np.linspace(0.1, 1, dims[0], dtype="f4"),
    )  # fmt: skip
    made, session = graphopt.compile(model, dims={"s": (1, 30)}), support.session(model)
    fixed = [int(one) if one.isdigit() else None for one in given[len("float[") : -1].split(",")]
    for length in (1, 2, 7, 30):
        x = _random.standard_normal([length if one is None else one for one in fixed]).astype("f4")
        for mine, its in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("dims", [(6, 4, 3), (4, 1, 3)])
def test_weights_of_half_precision(dims: tuple[int, ...]) -> None:
    """They are widened where they are multiplied; ours rounds once, ONNX Runtime after the convolution too."""
    w = _random.standard_normal(dims).astype("f2")
    node = f"Conv<group = {4 // dims[1]}, pads = [1, 1]>(x, w)"
    model = support.model(f"g (float16[2,4,s] x) => (float16[2,{dims[0]},t] y) {{ y = {node} }}", 18, w=w)
    made, session = graphopt.compile(model, dims={"s": (1, 30)}), support.session(model)
    for length in (1, 7, 30):
        x = _random.standard_normal((2, 4, length)).astype("f2")
        for mine, its in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, its, rtol=2e-3, atol=2e-3)


def test_an_image_of_several_rows_is_refused_for_a_range() -> None:
    """Its kernel is made for the sides that it has."""
    w = _random.standard_normal((6, 4, 3, 3)).astype("f4")
    model = support.model("g (float[2,4,5,s] x) => (float y) { y = Conv(x, w) }", 18, w=w)
    with pytest.raises(graphopt.GraphoptError, match="cannot be made for a range"):
        graphopt.compile(model, dims={"s": (3, 30)})
