"""Programs for ranges that begin with 0: runs of nothing, and of a few, as ONNX Runtime has them."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from tests import support

GENERATOR = np.random.default_rng(3)


def _drawn(*shape: int) -> np.ndarray:
    return (0.3 * GENERATOR.standard_normal(shape)).astype(np.float32)


MODELS = {
    "products": (
        "g (float[n,64] x) => (float[n,300] y) { h = MatMul (x, w) r = Relu (h) y = MatMul (r, v) }",
        {"w": _drawn(64, 90), "v": _drawn(90, 300)},
    ),
    "products of a batch": (
        "g (float[n,5,40] x) => (float[n,5,5] y) { t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t) }",
        {},
    ),
    "integers": (
        """g (float[n,64] x) => (float[n,90] y) {
          q, s, z = DynamicQuantizeLinear (x) m = MatMulInteger (q, w, z) f = Cast <to = 1> (m) y = Mul (f, s)
        }""",
        {"w": GENERATOR.integers(-100, 100, (64, 90)).astype(np.int8)},
    ),
    "attention": (
        """g (float[2,n,32] x) => (float[2,n,32] y) {
          q = MatMul (x, w) k = MatMul (x, v) t = Transpose <perm = [0, 2, 1]> (k) s = MatMul (q, t) p = Softmax (s)
          y = MatMul (p, x)
        }""",
        {"w": _drawn(32, 32), "v": _drawn(32, 32)},
    ),
    "softmax": ("g (float[n,40] x) => (float[n,40] y) { y = Softmax (x) }", {}),
    "normalization": ("g (float[n,40] x) => (float[n,40] y) { y = LayerNormalization (x, s) }", {"s": _drawn(40)}),
    "rows": ("g (float[n,40] x) => (float[n] y) { y = ReduceMean <axes = [1], keepdims = 0> (x) }", {}),
    "columns": ("g (float[n,40] x) => (float[40] y) { y = ReduceSum <keepdims = 0> (x, a) }", {"a": np.array([0])}),
    "steps": (
        "g (float[n,2,8] x) => (float[n,1,2,6] y) { y = LSTM <hidden_size = 6> (x, w, r) }",
        {"w": _drawn(1, 24, 8), "r": _drawn(1, 24, 6)},
    ),
    "convolution": (
        "g (float[n,16,8,8] x) => (float[n,32,8,8] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }",
        {"w": _drawn(32, 16, 3, 3)},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_run_may_have_none(name: str) -> None:
    text, arrays = MODELS[name]
    model = support.model(text, **arrays)
    program = graphopt.compile(model, dims={"n": (0, 9)}, threads=1)
    assert {"n": 0} in program.verification.sizes
    session = support.session(model)
    (given,) = session.get_inputs()
    for n in (0, 3, 9, 1, 0):
        feed = {"x": _drawn(*(one if isinstance(one, int) else n for one in given.shape))}
        ((found,), (expected,)) = program.run(None, feed), session.run(None, feed)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_samples_of_a_layer_on_which_onnx_runtime_ends_its_process() -> None:
    """Those that are none: the reference evaluator has the results."""
    text = "g (float[4,n,8] x) => (float[4,1,n,6] y) { y = LSTM <hidden_size = 6> (x, w, r) }"
    program = graphopt.compile(
        support.model(text, w=_drawn(1, 24, 8), r=_drawn(1, 24, 6)), dims={"n": (0, 5)}, threads=1
    )
    assert program.run(None, {"x": np.zeros((4, 0, 8), np.float32)})[0].shape == (4, 1, 0, 6)
