"""A sum that ONNX Runtime would fuse with its normalization into something slower is written as Sum."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.ort.normalization import RULES
from tests.support import apply_rules, assert_equal, model, op_types

NORM = "y = LayerNormalization(a, k)"


def norm(body: str, kind: str = "float") -> onnx.ModelProto:
    scale = np.linspace(0.5, 1.5, 8).astype({"float": np.float32, "float16": np.float16}[kind])
    return model(f"agraph ({kind}[N,3,8] x, {kind}[N,3,8] z) => ({kind}[N,3,8] y) {{ {body} }}", k=scale)


@pytest.mark.fires("sum-before-normalization")
def test_a_sum_that_is_only_normalized_becomes_sum() -> None:
    proto = norm("a = Add(x, z)  " + NORM)
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == ["Sum", "LayerNormalization"]
    assert_equal(proto, result, rtol=0, atol=0, N=2)


@pytest.mark.parametrize(
    "body",
    [
        "a = Add(x, z)  n = LayerNormalization(a, k)  y = Mul(n, a)",
        "a = Add(x, z)  y = Relu(a)",
        "s = ReduceMax <axes = [0, 1], keepdims = 0> (z)  q = Add(s, k)  y = LayerNormalization(x, q)",
    ],
)
def test_sums_that_are_not_fused_are_left_alone(body: str) -> None:
    _, log = apply_rules(norm(body), RULES)
    assert not log


def test_only_float_is_written_so() -> None:
    _, log = apply_rules(norm("a = Add(x, z)  " + NORM, "float16"), RULES)
    assert not log
