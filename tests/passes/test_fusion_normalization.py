"""Spelled out normalizations become LayerNormalization and RMSNormalization, or say why they do not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.fusion import RULES
from tests.passes.refusing import refusal, refuses
from tests.support import apply_rules, assert_equal, model, op_types

RTOL, ATOL = 1e-4, 1e-5  # the variance of five numbers, summed in another order

PARAMETERS = {
    "axes": np.array([-1]), "two": np.float32(2).reshape(()), "half": np.float32(0.5).reshape(()),
    "minus_half": np.float32(-0.5).reshape(()), "one": np.float32(1).reshape(()), "e": np.float32(1e-5).reshape(()),
    "k": np.linspace(0.5, 1.5, 5, dtype=np.float32), "b": np.linspace(-1, 1, 5, dtype=np.float32).reshape(1, 5),
}  # fmt: skip


def norm(
    body: str, opset: int = 17, signature: str = "float[N,3,5] x", result: str = "A,B,C", **more: np.ndarray
) -> onnx.ModelProto:
    mean = "ReduceMean <axes = [-1]> ({})" if opset < 18 else "ReduceMean({}, axes)"
    for value in ("x", "s", "q"):
        body = body.replace(f"mean({value})", mean.format(value))
    return model(f"agraph ({signature}) => (float[{result}] y) {{ {body} }}", opset, **{**PARAMETERS, **more})


def becomes(proto: onnx.ModelProto, *kept: str, rtol: float = RTOL, atol: float = ATOL) -> onnx.ModelProto:
    result, _ = apply_rules(proto, RULES)
    assert op_types(result) == list(kept)
    assert_equal(proto, result, rtol=rtol, atol=atol, N=2)
    return result


def stays(proto: onnx.ModelProto) -> None:
    result, log = apply_rules(proto, RULES)
    assert not log
    assert op_types(result) == op_types(proto)


CENTRED = "m = mean(x)  d = Sub(x, m)  "
VARIANCE = CENTRED + "q = Pow(d, two)  v = mean(q)  w = Add(v, e)  r = Sqrt(w)  "
FORMS = {
    "the usual form": VARIANCE + "n = Div(d, r)  z = Mul(n, k)  y = Add(z, b)",
    "operands the other way round": VARIANCE.replace("v, e", "e, v") + "n = Div(d, r)  z = Mul(k, n)  y = Add(b, z)",
    "squares by Mul": VARIANCE.replace("Pow(d, two)", "Mul(d, d)") + "n = Div(d, r)  z = Mul(n, k)  y = Add(z, b)",
    "reciprocal": VARIANCE + "i = Reciprocal(r)  n = Mul(d, i)  z = Mul(n, k)  y = Add(z, b)",
    "one over": VARIANCE + "i = Div(one, r)  n = Mul(i, d)  z = Mul(n, k)  y = Add(z, b)",
    "a negative power": VARIANCE.replace("Sqrt(w)", "Pow(w, minus_half)")
    + "n = Mul(d, r)  z = Mul(n, k)  y = Add(z, b)",
    "a power of one half": VARIANCE.replace("Sqrt(w)", "Pow(w, half)") + "n = Div(d, r)  z = Mul(n, k)  y = Add(z, b)",
    "centred twice": VARIANCE.replace("Pow(d", "Pow(f").replace("q =", "f = Sub(x, m)  q =")
    + "n = Div(d, r)  y = Mul(n, k)",
    "without scale": VARIANCE + "n = Div(d, r)  y = Add(n, b)",
    "without both": VARIANCE + "y = Div(d, r)",
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("opset", [17, 18])
def test_every_spelling_becomes_layer_normalization(name: str, opset: int) -> None:
    becomes(norm(FORMS[name], opset), "LayerNormalization")


@pytest.mark.fires("bias-of-normalization")
def test_scale_and_bias_may_be_computed() -> None:
    text = FORMS["the usual form"].replace("z, b)", "z, c)").replace("n, k)", "n, h)")
    proto = norm(text, signature="float[N,3,5] x, float[5] h, float[5] c")
    assert len(becomes(proto, "LayerNormalization").graph.node[0].input) == 3


def test_several_trailing_axes_normalize_together() -> None:
    text = FORMS["the usual form"].replace("mean(x)", "ReduceMean <axes = [1, 2]> (x)")
    text = text.replace("mean(q)", "ReduceMean <axes = [-1, -2]> (q)")
    becomes(norm(text, k=np.ones((3, 5), np.float32) * 2), "LayerNormalization", "Add", atol=1e-4)


@pytest.mark.parametrize(
    "body, kept", [("y = Mul(n, k)", 1), ("z = Add(n, b)  y = Mul(k, z)", 1), ("y = Mul(n, x)", 2)]
)
def test_a_given_normalization_takes_what_stands_behind_it(body: str, kept: int) -> None:
    proto = norm("n = LayerNormalization <epsilon = 0.1> (x, k, k)  " + body)
    becomes(proto, *["LayerNormalization", "Mul"][:kept])


NEAR_MISSES = {
    "an older opset": (FORMS["without both"], 16),
    "another mean": (FORMS["without both"].replace("d = Sub", "u = Add(x, x)  d = Sub").replace("Sub(x", "Sub(u"), 17),
    "another power": (FORMS["without both"].replace("d, two", "d, half"), 17),
    "no epsilon": (FORMS["without both"].replace("w = Add(v, e)", "w = Add(v, v)"), 17),
    "another axis": (FORMS["without both"].replace("mean(q)", "ReduceMean <axes = [1]> (q)"), 17),
    "a deviation that is read": (VARIANCE + "n = Div(d, r)  y = Mul(n, r)", 17),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_stay(name: str) -> None:
    stays(norm(*NEAR_MISSES[name]))


def test_doubles_stay_in_double_precision() -> None:
    text = "agraph (double[2,5] x) => (double[2,5] y) {" + FORMS["without both"] + "}"
    mean = text.replace("mean(x)", "ReduceMean <axes = [-1]> (x)").replace("mean(q)", "ReduceMean <axes = [-1]> (q)")
    stays(model(mean, two=np.array(2.0), e=np.array(1e-5)))


RMS = "q = Mul(x, x)  v = mean(q)  w = Add(v, e)  r = Sqrt(w)  n = Div(x, r)  y = Mul(k, n)"


@pytest.mark.fires("rms-normalization")
def test_the_root_of_the_mean_square_becomes_rms_normalization() -> None:
    becomes(norm(RMS, 23), "RMSNormalization")
    becomes(norm(RMS.replace("n = Div(x, r)", "i = Reciprocal(r)  n = Mul(x, i)"), 23), "RMSNormalization")
    becomes(norm(FORMS["the usual form"], 23), "LayerNormalization")


def test_before_opset_23_there_is_no_rms_normalization() -> None:
    stays(norm(RMS, 22))
    stays(norm(RMS.replace("q = Mul(x, x)", "q = Add(x, x)"), 23))


NORM = FORMS["without both"]
TWO_INPUTS = "float[N,3,5] x, float[N,3,5] z"
WITH_SCALE = "n = LayerNormalization(x, k)  "
WIDE = {"w": np.ones((1, 1, 1, 5), np.float32)}
HUGE = np.full(5, 3e38, np.float32)
REFUSALS = [
    refusal("layer-normalization", "two different tensors are centred",
            norm(NORM.replace("q = Pow(d, two)", "p = ReduceMean <axes = [-1]> (z)  f = Sub(z, p)  q = Mul(f, f)"),
                 17, TWO_INPUTS)),
    refusal("layer-normalization", "the mean is over other axes than the variance",
            norm(NORM.replace("mean(x)", "ReduceMean <axes = [1, 2]> (x)"))),
    refusal("layer-normalization", "a constant widens the tensor",
            norm(NORM, result="A,B,C,D", e=np.full((1, 1, 1, 1), 1e-5, np.float32))),
    refusal("layer-normalization", "the size of the normalized axes is not known",
            norm(NORM, signature="float[N,3,D] x")),
    refusal("layer-normalization", "epsilon is not a small number", norm(NORM, e=np.float32(2).reshape(()))),
    refusal("layer-normalization", "no epsilon is added under the root", norm(NORM.replace("Sqrt(w)", "Sqrt(v)"))),
    refusal("layer-normalization", "the reduction drops its axes",
            norm(NORM.replace("mean(q)", "ReduceMean <axes = [-1], keepdims = 0> (q)"), signature="float[5,5,5] x")),
    refusal("layer-normalization", "the axes may be none",
            norm(NORM.replace("mean(q)", "ReduceMean <noop_with_empty_axes = 1> (q, axes)"), 18)),
    refusal("rms-normalization", "what is squared is not what is divided",
            norm(RMS.replace("Mul(x, x)", "Mul(x, z)"), 23, TWO_INPUTS)),
    refusal("scale-of-normalization", "'h' has not the normalized shape",
            norm(WITH_SCALE + "y = Mul(n, h)", 17, "float[N,3,5] x, float[1,5] h", k=np.ones(5, np.float32))),
    refusal("scale-of-normalization", "the folded scale does not fit FLOAT",
            norm("n = LayerNormalization(x, h)  y = Mul(n, h)", h=HUGE)),
    refusal("scale-of-normalization", "it does not compute in float32",
            norm("n = LayerNormalization <stash_type = 11> (x, k)  y = Mul(n, k)")),
    refusal("scale-of-normalization", "'w' widens the tensor",
            norm(WITH_SCALE + "y = Mul(n, w)", result="A,B,C,D", **WIDE)),
    refusal("bias-of-normalization", "the bias is infinite or not a number",
            norm(WITH_SCALE + "y = Add(n, h)", h=np.full(5, np.inf, np.float32))),
    refusal("bias-of-normalization", "it has a bias already",
            norm("n = LayerNormalization(x, k, k)  y = Add(n, c)", 17, "float[N,3,5] x, float[5] c")),
    refusal("bias-of-normalization", "'c' has not the normalized shape",
            norm(WITH_SCALE + "y = Add(n, c)", 17, "float[N,3,5] x, float[1,5] c")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "proto"), REFUSALS)
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)
