"""Convolutions of one value that are added up become one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.weights.branches import RULES
from tests.support import apply_rules, assert_equal, model, op_types


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng([3, *shape]).standard_normal(shape).astype(np.float32)


WEIGHTS = {
    "w3": _numbers(4, 4, 3, 3), "v3": _numbers(4, 4, 3, 3) / 2, "w1": _numbers(4, 4, 1, 1), "w13": _numbers(4, 4, 1, 3),
    "w2": _numbers(4, 4, 2, 2), "d3": _numbers(4, 1, 3, 3), "d1": _numbers(4, 1, 1, 1), "h3": _numbers(4, 2, 3, 3),
    "h1": _numbers(4, 2, 1, 1), "b": _numbers(4), "a": _numbers(4) + 1, "m": _numbers(4) - 1,
    "var": np.abs(_numbers(4)) + 1, "c": _numbers(4, 1, 1), "p": _numbers(4, 1, 6), "w5": _numbers(4, 4, 5, 5),
}  # fmt: skip
SAME = "pads = [1,1,1,1]"


def _net(body: str, opset: int = 17) -> onnx.ModelProto:
    return model(f"g (float[1,4,6,6] x, float[1,4,6,6] z) => (float[A,B,C,D] y) {{ {body} }}", opset, **WEIGHTS)


JOINS = {
    "two windows": f"s = Conv<{SAME}>(x, w3, b) t = Conv(x, w1) y = Add(s, t)",
    "the larger one last": f"s = Conv(x, w1, a) t = Conv<{SAME}>(x, w3, b) y = Add(s, t)",
    "equal windows": f"s = Conv<{SAME}>(x, w3) t = Conv<{SAME}>(x, v3) y = Add(s, t)",
    "rows": f"s = Conv<{SAME}>(x, w3) t = Conv<pads = [0,1,0,1]>(x, w13) y = Add(s, t)",
    "a window at the edge": f"s = Conv<{SAME}>(x, w3) t = Conv<pads = [1,1,0,0]>(x, w2) y = Add(s, t)",
    "taps of dilations": "s = Conv<pads = [2,2,2,2]>(x, w5) t = Conv(x, w1) y = Add(s, t)",
    "one tap of a dilated window": "s = Conv<pads = [2,2,2,2], dilations = [2,2]>(x, w3) t = Conv(x, w1) y = Add(s, t)",
    "strides": f"s = Conv<{SAME}, strides = [2,2]>(x, w3) t = Conv<strides = [2,2]>(x, w1, b) y = Add(s, t)",
    "groups": f"s = Conv<{SAME}, group = 2>(x, h3) t = Conv<group = 2>(x, h1) y = Add(s, t)",
    "channels alone": f"s = Conv<{SAME}, group = 4>(x, d3) t = Conv<group = 4>(x, d1) y = Add(s, t)",
    "a normalization": f"s = Conv<{SAME}>(x, w3) t = BatchNormalization(x, a, b, m, var) y = Add(s, t)",
    "a normalization of groups": f"s = Conv<{SAME}, group = 2>(x, h3) t = BatchNormalization(x, a, b, m, var) "
    "y = Add(s, t)",
    "a product": f"s = Conv<{SAME}>(x, w3) t = Mul(x, c) y = Add(s, t)",
    "a quotient": f"s = Conv<{SAME}>(x, w3) t = Div(x, c) y = Add(t, s)",
}  # fmt: skip


@pytest.mark.parametrize("name", JOINS)
def test_two_branches_become_one(name: str) -> None:
    _check(_net(JOINS[name]), ["Conv"])


def _check(proto: onnx.ModelProto, kept: list[str]) -> None:
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == kept
    assert_equal(proto, result, rtol=1e-5, atol=1e-5)


def test_all_branches_become_one_with_other_terms_between() -> None:
    body = f"""s = Conv<{SAME}>(x, w3) t = Conv(x, w1) u = BatchNormalization(x, a, b, m, var) v = Conv<{SAME}>(x, v3)
        k = Add(z, s) l = Add(t, k) n = Add(u, v) y = Add(l, n)"""
    _check(_net(body), ["Conv", "Add"])


def test_branches_of_two_values_become_two() -> None:
    body = f"""s = Conv<{SAME}>(x, w3) t = Conv(x, w1) u = Conv<{SAME}>(z, v3) v = Mul(z, c)
        k = Add(s, u) l = Add(t, v) y = Add(k, l)"""
    _check(_net(body), ["Conv", "Conv", "Add"])


STAYS = {
    "another value": f"s = Conv<{SAME}>(x, w3) t = Conv(z, w1) y = Add(s, t)",
    "other groups": f"s = Conv<{SAME}>(x, w3) t = Conv<group = 2>(x, h1) y = Add(s, t)",
    "other taps": f"s = Conv<pads = [2,2,2,2], dilations = [2,2]>(x, w3) t = Conv<{SAME}>(x, v3) y = Add(s, t)",
    "a window that reaches out": "s = Conv<pads = [0,0,2,2]>(x, w3) t = Conv<pads = [1,1,0,0]>(x, w2) y = Add(s, t)",
    "a plain value": f"s = Conv<{SAME}>(x, w3) y = Add(s, x)",
    "a second reader": f"s = Conv<{SAME}>(x, w3) t = Conv(x, w1) u = Add(s, t) r = Relu(t) y = Mul(u, r)",
    "numbers of columns": f"s = Conv<{SAME}>(x, w3) t = Mul(x, p) y = Add(s, t)",
    "a stride beside a product": "s = Conv<pads = [1,1,0,0], strides = [2,2]>(x, w3) t = Mul(x, c) "
    "q = MaxPool<kernel_shape = [2,2], strides = [2,2]>(t) y = Add(s, q)",
    "broadcast": f"s = Conv<{SAME}>(x, w3) q = GlobalAveragePool(x) t = Conv(q, w1) y = Add(s, t)",
    "automatic padding": f's = Conv<{SAME}>(x, w3) t = Conv<auto_pad = "SAME_UPPER">(x, v3) y = Add(s, t)',
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_other_sums_stay(name: str) -> None:
    proto = _net(STAYS[name])
    _check(proto, op_types(proto))


def test_three_dims_and_one_join_too() -> None:
    for size, window, pads in (("6", "3", "1,1"), ("4,4,4", "3,3,3", "1,1,1,1,1,1")):
        taps = [int(one) for one in window.split(",")]
        weights = {"w": _numbers(4, 4, *taps), "v": _numbers(4, 4, *(1 for _ in taps))}
        text = f"g (float[2,4,{size}] x) => (float[2,4,{size}] y) {{ s = Conv<pads = [{pads}]>(x, w) t = Conv(x, v)"
        _check(model(f"{text} y = Add(s, t) }}", 17, **weights), ["Conv"])
