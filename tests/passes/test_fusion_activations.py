"""Spelled out activations become Gelu, HardSwish and Swish, or say why they do not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.fusion import RULES
from tests.support import apply_rules, assert_equal, model, op_types


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


NUMBERS = {
    "half": number(0.5), "one": number(1), "two": number(2), "three": number(3), "zero": number(0), "six": number(6),
    "sixth": number(1 / 6), "root": number(1.4142135), "i": number(0.70710677), "c": number(0.044715),
    "p": number(0.7978845),
}  # fmt: skip


def net(body: str, opset: int, **more: np.ndarray) -> onnx.ModelProto:
    return model(f"agraph (float[N,4] x) => (float[A,B] y) {{ {body} }}", opset, **{**NUMBERS, **more})


def becomes(proto: onnx.ModelProto, *kept: str) -> onnx.ModelProto:
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == list(kept)
    # the kernels approximate erf and tanh in their own ways
    assert_equal(proto, result, rtol=1e-4, atol=1e-5)
    return result


def stays(proto: onnx.ModelProto) -> None:
    result, log = apply_rules(proto, RULES)
    assert not log
    assert op_types(result) == op_types(proto)


ERF = "u = Div(x, root)  e = Erf(u)  s = Add(e, one)  "
CUBE = "f = Pow(x, three)  b = Mul(f, c)  d = Add(x, b)  u = Mul(d, p)  t = Tanh(u)  s = Add(one, t)  "
GELU = {
    "x s half": ERF + "a = Mul(x, s)  y = Mul(a, half)",
    "half x s": ERF + "a = Mul(half, x)  y = Mul(a, s)",
    "x (half s)": ERF + "a = Mul(s, half)  y = Mul(x, a)",
    "x s / two": ERF + "a = Mul(s, x)  y = Div(a, two)",
    "times the inverse root": ERF.replace("Div(x, root)", "Mul(i, x)") + "a = Mul(x, s)  y = Mul(half, a)",
    "tanh": CUBE + "a = Mul(half, x)  y = Mul(a, s)",
    "tanh, cube by products": CUBE.replace("f = Pow(x, three)", "g = Mul(x, x)  f = Mul(g, x)")
    + "a = Mul(x, s)  y = Mul(a, half)",
}


@pytest.mark.parametrize("name", GELU)
def test_every_spelling_becomes_gelu(name: str) -> None:
    result = becomes(net(GELU[name], 20), "Gelu")
    wanted = [b"tanh"] if "tanh" in name else []
    assert [attribute.s for attribute in result.graph.node[0].attribute] == wanted


def test_gelu_of_a_sum_reads_the_sum() -> None:
    becomes(
        net("z = Add(x, b)  " + GELU["x s half"].replace("x", "z"), 20, b=np.ones(4, np.float32)),
        "Add",
        "Gelu",
    )


NEAR_MISSES = {
    "an older opset": (GELU["x s half"], 19, {}),
    "another factor": (GELU["x s half"], 20, {"half": number(0.6)}),
    "another root": (GELU["x s half"], 20, {"root": number(1.5)}),
    "another cube": (GELU["tanh"], 20, {"c": number(0.05)}),
    "another constant in the sum": (GELU["x s half"], 20, {"one": number(1.01)}),
    "a constant that widens": (GELU["x s half"], 20, {"half": np.full((1, 1, 1), 0.5, np.float32)}),
    "a function read elsewhere": (GELU["x s half"].replace("y =", "z =") + "  y = Add(z, e)", 20, {}),
    "another x": (
        GELU["half x s"].replace("Mul(half, x)", "Mul(half, w)"),
        20,
        {"w": np.ones(4, np.float32)},
    ),
    "hard swish in an older opset": ("h = HardSigmoid <alpha = 0.16666667> (x)  y = Mul(x, h)", 13, {}),
    "another slope": ("h = HardSigmoid (x)  y = Mul(x, h)", 14, {}),
    "another bound": ("a = Add(x, three)  h = Clip(a, zero, three)  m = Mul(x, h)  y = Div(m, six)", 14, {}),
    "swish in an older opset": ("s = Sigmoid(x)  y = Mul(x, s)", 23, {}),
    "a sigmoid read twice": ("s = Sigmoid(x)  m = Mul(x, s)  y = Add(m, s)", 24, {}),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_stay(name: str) -> None:
    body, opset, more = NEAR_MISSES[name]
    stays(net(body, opset, **more))


@pytest.mark.parametrize(
    "body",
    [
        "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)  y = Mul(h, x)",
        "a = Add(x, three)  h = Clip(a, zero, six)  m = Mul(x, h)  y = Div(m, six)",
        "a = Add(three, x)  h = Clip(a, zero, six)  m = Mul(h, sixth)  y = Mul(x, m)",
    ],
)
def test_hard_swish(body: str) -> None:
    becomes(net(body, 14), "HardSwish")


def test_swish() -> None:
    becomes(net("s = Sigmoid(x)  y = Mul(s, x)", 24), "Swish")


def test_swish_with_a_factor_inside() -> None:
    becomes(net("z = Mul(x, three)  s = Sigmoid(z)  y = Mul(x, s)", 24), "Swish")
