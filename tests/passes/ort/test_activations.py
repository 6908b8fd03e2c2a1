"""Gelu below opset 20 becomes ONNX Runtime's own operator where it has a kernel for the type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.ort.activations import RULES
from tests.support import apply_rules, assert_equal, model, op_types

NUMBERS = {
    "root": np.float32(np.sqrt(2)).reshape(()), "one": np.float32(1).reshape(()), "half": np.float32(0.5).reshape(()),
    "three": np.float32(3).reshape(()), "c": np.float32(0.044715).reshape(()),
    "s": np.float32(np.sqrt(2 / np.pi)).reshape(()), "other": np.float32(1.5).reshape(()),
}  # fmt: skip
ERF = "d = Div(x, {})  e = Erf(d)  p = Add(e, one)  "
TANH = "t = Pow(x, three)  u = Mul(t, c)  v = Add(x, u)  w = Mul(v, s)  e = Tanh(w)  p = Add(e, one)  "


def gelu(body: str, kind: str = "float", opset: int = 17) -> onnx.ModelProto:
    dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[kind]
    numbers = {name: array.astype(dtype) for name, array in NUMBERS.items()}
    return model(f"agraph ({kind}[N, 6] x) => ({kind}[N, 6] y) {{ {body} }}", opset, **numbers)


@pytest.mark.fires("gelu-of-runtime")
@pytest.mark.parametrize(
    "end",
    ["h = Mul(half, p)  y = Mul(x, h)", "h = Mul(x, p)  y = Mul(h, half)", "h = Mul(x, half)  y = Mul(h, p)"],
)
@pytest.mark.parametrize("start, name", [(ERF.format("root"), "Gelu"), (TANH, "FastGelu")])
def test_every_spelling_becomes_the_operator(start: str, end: str, name: str) -> None:
    proto = gelu(start + end)
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == [name]
    assert result.graph.node[0].domain == "com.microsoft"
    assert {entry.domain for entry in result.opset_import} == {"", "com.microsoft"}
    assert_equal(proto, result, rtol=1e-4, atol=1e-6, N=5)  # Tanh and Erf are computed by other polynomials


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_types_without_a_kernel_are_left_alone(kind: str) -> None:
    proto = gelu(ERF.format("root") + "h = Mul(half, p)  y = Mul(x, h)", kind)
    _, log = apply_rules(proto, RULES)
    assert not log


def test_another_formula_is_left_alone() -> None:
    _, log = apply_rules(gelu(ERF.format("other") + "h = Mul(half, p)  y = Mul(x, h)"), RULES)
    assert not log


def test_a_part_that_is_read_elsewhere_is_left_alone() -> None:
    proto = gelu(ERF.format("root") + "h = Mul(half, p)  y = Mul(x, h)")
    proto.graph.output.append(onnx.helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, ["N", 6]))
    _, log = apply_rules(proto, RULES)
    assert not log


@pytest.mark.parametrize("start, name", [(ERF.format("root"), "BiasGelu"), (TANH, "FastGelu")])
def test_a_bias_in_front_goes_along(start: str, name: str) -> None:
    body = "x = Add(z, b)  " + start + "h = Mul(half, p)  y = Mul(x, h)"
    bias = np.linspace(-1, 1, 6, dtype=np.float32)
    proto = model(f"agraph (float[N, 6] z) => (float[N, 6] y) {{ {body} }}", **NUMBERS, b=bias)
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == [name]
    assert len(result.graph.node[0].input) == 2
    assert_equal(proto, result, rtol=1e-4, atol=1e-6, N=5)


def test_sigmoid_of_a_multiple_becomes_quick_gelu() -> None:
    proto = gelu("d = Mul(x, other)  e = Sigmoid(d)  y = Mul(x, e)")
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == ["QuickGelu"]
    assert_equal(proto, result, rtol=1e-4, atol=1e-6, N=5)
