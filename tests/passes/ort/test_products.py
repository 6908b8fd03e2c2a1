"""Products and layers take their neighbors in, at level 3."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.ort.products import RULES
from tests.support import apply_rules, assert_equal, model, op_types

WEIGHTS = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "b": np.linspace(0, 1, 3, dtype=np.float32),
    "k": np.linspace(-1, 1, 72, dtype=np.float32).reshape(4, 2, 3, 3), "s": np.float32(0.5).reshape(()),
    "low": np.float32(-0.5).reshape(()), "high": np.float32(0.75).reshape(()),
}  # fmt: skip
PRODUCT = "float[N,3,4] x, float[N,3,4] z", "N, 3, 3"
LAYER = "float[N,2,5,5] x, float[N,4,5,5] z", "N, 4, 5, 5"


def becomes(body: str, signature: tuple[str, str], *kept: str) -> onnx.NodeProto:
    given, result = signature
    proto = model(f"agraph ({given}) => (float[{result}] y) {{ {body} }}", **WEIGHTS)
    after, _ = apply_rules(proto, RULES)
    assert op_types(after) == list(kept)
    assert_equal(proto, after, N=2, rtol=1e-4, atol=1e-5)  # up to eighteen products in another order
    return after.graph.node[-1]


def stays(body: str, signature: tuple[str, str]) -> None:
    given, result = signature
    _, log = apply_rules(model(f"agraph ({given}) => (float[{result}] y) {{ {body} }}", **WEIGHTS), RULES)
    assert not log


@pytest.mark.parametrize("body", ["t = Transpose <perm = [0, 2, 1]> (z)  y = MatMul(x, t)"])
def test_a_transposed_operand(body: str) -> None:
    node = becomes(body, PRODUCT, "FusedMatMul")
    assert [attribute.name for attribute in node.attribute] == ["transB"]


def test_both_operands_may_be_transposed() -> None:
    body = "a = Transpose <perm = [0, 2, 1]> (x)  b0 = Transpose <perm = [0, 2, 1]> (z)  y = MatMul(a, b0)"
    becomes(body, ("float[N,4,3] x, float[N,3,4] z", "N, 3, 3"), "FusedMatMul")


def test_a_number_behind_a_product() -> None:
    becomes("p = MatMul(x, w)  y = Mul(p, s)", PRODUCT, "FusedMatMul")
    becomes("p = MatMul(x, w)  y = Div(p, s)", PRODUCT, "FusedMatMul")


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose <perm = [1, 0, 2]> (z)  u = Transpose <perm = [1, 0, 2]> (t)  v = Relu(u)  y = MatMul(v, w)",
        "p = MatMul(x, w)  y = Mul(p, b)",
        "p = MatMul(x, w)  q = Mul(p, s)  y = Add(p, q)",
        "t = Transpose <perm = [0, 2, 1]> (z)  p = MatMul(x, t)  m = ReduceMax <axes = [1]> (t)  y = Add(p, m)",
    ],
)
def test_other_products_are_left_alone(body: str) -> None:
    stays(body, PRODUCT)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Tanh", "LeakyRelu <alpha = 0.3>"])
def test_an_activation_behind_gemm(activation: str) -> None:
    becomes(f"g = Gemm(x, w, b)  y = {activation}(g)", ("float[N,4] x", "N, 3"), "FusedGemm")


@pytest.mark.parametrize(
    "activation", ["Relu(c)", "Sigmoid(c)", "LeakyRelu <alpha = 0.3>(c)", "HardSigmoid(c)", "Clip(c, low, high)"]
)
def test_an_activation_behind_conv(activation: str) -> None:
    becomes(f"c = Conv <pads = [1, 1, 1, 1]> (x, k)  y = {activation}", LAYER, "FusedConv")


def test_a_sum_and_relu_behind_conv() -> None:
    node = becomes("c = Conv <pads = [1, 1, 1, 1]> (x, k)  t = Add(z, c)  y = Relu(t)", LAYER, "FusedConv")
    assert list(node.input) == ["x", "k", "", "z"]


@pytest.mark.parametrize(
    "body",
    [
        "c = Conv <pads = [1, 1, 1, 1]> (x, k)  r = Relu(c)  y = Add(r, c)",
        "c = Conv <pads = [1, 1, 1, 1]> (x, k)  t = Add(z, c)  y = Sigmoid(t)",
        "c = Conv <pads = [1, 1, 1, 1]> (x, k)  m = ReduceMax <keepdims = 0> (z)  y = Clip(c, low, m)",
    ],
)
def test_other_layers_are_left_alone(body: str) -> None:
    stays(body, LAYER)


def test_a_sum_that_widens_the_conv_is_left_alone() -> None:
    stays("c = Conv(x, k)  t = Add(z, c)  y = Relu(t)", ("float[N,2,3,3] x, float[N,4,5,5] z", "N, 4, 5, 5"))


def test_the_factor_of_doubles_stays_exact() -> None:
    proto = model(
        "agraph (double[3,4] x, double[4,3] z) => (double[3,3] y) { p = MatMul(x, z)  y = Mul(p, s) }", s=np.array(0.1)
    )
    _, log = apply_rules(proto, RULES)
    assert not log
