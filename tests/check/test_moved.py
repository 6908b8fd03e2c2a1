"""Models whose functions, sums and subnormal results are moved by what engines leave open."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import graphopt
from graphopt.check.moved import moved_functions, moved_orders, moved_subnormals
from graphopt.model.load import load
from tests import support


def test_functions_of_a_fixed_range_move_by_half_a_unit_of_it() -> None:
    """An engine gives a sigmoid of e^-40, another zero; the weight's gradient behind it is that or nothing."""
    text = "g (float[4,16] x) => (float[16,16] y) { s = Sigmoid(x) t = Transpose(s) y = MatMul(t, s) }"
    model = load(support.model(text))
    moved = moved_functions(model)
    assert moved is not None
    x = np.linspace(-3, 3, 64, dtype=np.float32).reshape(4, 16)
    x[:, 3] = -40
    before, after = (support.session(ir.to_proto(one)).run(None, {"x": x})[0] for one in (model, moved))
    apart = np.abs(after.astype(np.float64) - before)
    assert apart[3].min() > 0 and apart.max() < 4 * 4 * 2.0**-24
    tanh = moved_functions(load(support.model("g (float[64] x) => (float[64] y) { y = Tanh(x) }")))
    assert tanh is not None
    ends = support.session(ir.to_proto(tanh)).run(None, {"x": np.zeros(64, np.float32)})[0]
    assert 0 < np.abs(ends).max() <= 2.0**-24 and np.sign(ends).min() == -1 and np.sign(ends).max() == 1
    assert moved_functions(load(support.model("g (float[4] x) => (float[4] y) { y = Exp(x) }"))) is None


@pytest.mark.parametrize("text", [
    "y = Conv(x, w)",
    "s = Squeeze(x, zero) v = Squeeze(w, one) t = Transpose(v) r = MatMul(s, t) y = Unsqueeze(r, zero)",
])  # fmt: skip
def test_sums_whose_terms_cancel_are_moved_by_a_unit_of_the_terms(text: str) -> None:
    """1000 - 1000 + 1e-3 in another order is another number, by more than a unit in the last place of 1e-3."""
    x = np.array([1000, 1000, 1e-3] * 8, np.float32).reshape(1, 1, 24)
    w = np.array([1, -1, 1] * 8, np.float32).reshape(1, 1, 24)
    model = load(support.model(f"g (float[1,1,24] x) => (float[1,1,1] y) {{ {text} }}", w=w,
                               zero=np.array([0]), one=np.array([1])))  # fmt: skip
    moved = moved_orders(model)
    assert moved is not None
    before, after = (support.session(ir.to_proto(one)).run(None, {"x": x})[0] for one in (model, moved))
    assert 1e-6 < np.abs(after - before).max() < 4 * 16_000 * 2.0**-23
    assert moved_orders(load(support.model("g (float[3] x) => (float[3] y) { y = Exp(x) }"))) is None


def test_subnormal_results_may_be_zeros() -> None:
    """What is left of e^-89 has a logarithm, in a program there is none: neither is another model's."""
    model = load(support.model("g (float[3] x) => (float[3] y) { e = Exp(x) y = Log(e) }"))
    moved = moved_subnormals(model)
    assert moved is not None
    x = np.array([-89, -87, 3], np.float32)
    before, after = (support.session(ir.to_proto(one)).run(None, {"x": x})[0] for one in (model, moved))
    assert np.isfinite(before).all() and after[0] == -np.inf and (after[1:] == before[1:]).all()
    assert graphopt.compile(ir.to_proto(model), threads=1).verification.passed
    assert moved_subnormals(load(support.model("g (float[3] x) => (float[3] y) { y = Log(x) }"))) is None
    assert moved_subnormals(load(support.model("g (double[3] x) => (double[3] y) { y = Exp(x) }"))) is None


def test_what_a_body_computes_is_moved_too() -> None:
    """Each iteration multiplies by a sigmoid: of -20 it is zero in ONNX Runtime, and e^-20 is right."""
    proto = support.model("""g (float[4] x) => (float[4] y) {
        often = Constant<value = int64 {3}>() on = Constant<value = bool {1}>()
        y = Loop(often, on, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
            d = Identity(c) g = Sigmoid(v) w = Mul(g, v) }> }""")
    moved = moved_functions(load(proto))
    assert moved is not None
    x = np.full(4, -20, np.float32)
    before, after = (support.session(ir.to_proto(one)).run(None, {"x": x})[0] for one in (load(proto), moved))
    assert (before == 0).all() and 0 < np.abs(after).max() < 20 * 2.0**-24
