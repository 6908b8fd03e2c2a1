"""The comparison of two models: custom operators, random outputs, dynamic dims, limits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from tests import support

CUSTOM = """<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
g (float[n,4] x) => (float[n,4] y, float[n,4] z) <float[n,4] b> {
    a = Identity(x)
    b = acme.Magic<strength = 3>(a)
    c = Identity(b)
    y = Relu(c)
    d = Neg(a)
    z = Neg(d)
}"""


def test_custom_operators_are_kept_and_compared_around() -> None:
    result = graphopt.optimize(onnx.parser.parse_model(CUSTOM))
    assert result.verification.status == "verified"
    assert result.verification.feeds > 10
    assert result.verification.limited == "compared around what cannot be run here: acme::Magic 'b'"
    assert support.op_types(result.to_proto()) == ["Magic", "Relu", "Identity"]  # z = x needs its Identity


def test_a_custom_operator_that_changes_is_noticed() -> None:
    changed = CUSTOM.replace("acme.Magic<strength = 3>(a)", "acme.Magic<strength = 3>(d0)")
    other = onnx.parser.parse_model(changed.replace("a = Identity(x)", "a = Identity(x) d0 = Abs(x)"))
    verdict = graphopt.verify(onnx.parser.parse_model(CUSTOM), other)
    assert verdict.status == "different"
    assert verdict.reason is not None
    assert "b/input 0" in verdict.reason


def test_random_outputs_are_excluded_and_listed_and_the_others_compared() -> None:
    text = """g (float[4] x) => (float[4] y, float[4] z) {
        r = RandomNormal<shape = [4]>()
        s = RandomNormal<shape = [4]>()
        d = Sub(r, s)
        y = Add(x, d)
        i = Identity(x)
        z = Relu(i)
    }"""
    result = graphopt.optimize(support.model(text))
    assert result.verification.excluded == ("y",)
    assert result.verification.passed
    assert support.op_types(result.to_proto()).count("RandomNormal") == 2  # merged, their difference would be zero


def test_lengths_that_must_agree_under_different_names_are_found() -> None:
    text = """g (float[batch,past_a] a, float[batch,past_b] b, float[batch,whole] c) => (float[?,?] y) {
        k = Constant<value_floats = [0.0]>()
        s = Add(a, b)
        e = Expand(k, one)
        t = Concat<axis = 1>(s, u)
        y = Add(t, c)
    }""".replace("u)", "column)").replace("e = Expand(k, one)", "")
    proto = support.model(text, column=np.ones((1, 1), np.float32))
    result = graphopt.optimize(proto)
    assert result.verification.passed
    if result.verification.feeds:
        assert all(size["past_a"] == size["past_b"] for size in result.verification.sizes)
        several = [size for size in result.verification.sizes if size["whole"] > 1]  # else one stands for all
        assert several
        assert all(size["whole"] == size["past_a"] + 1 for size in several)


@pytest.mark.parametrize(
    ("operator", "status"), [("Relu", "verified"), ("Abs", "different"), ("Identity", "different")]
)
def test_verify_tells_models_apart(operator: str, status: str) -> None:
    text = "g (float[n,3] x) => (float[n,3] y) { y = Relu(x) }"
    verdict = graphopt.verify(support.model(text), support.model(text.replace("Relu", operator)))
    assert verdict.status == status


def test_models_with_other_inputs_cannot_be_compared() -> None:
    one = support.model("g (float[3] x) => (float[3] y) { y = Relu(x) }")
    other = support.model("g (float[3] z) => (float[3] y) { y = Relu(z) }")
    with pytest.raises(graphopt.OptionError, match="their inputs are"):
        graphopt.verify(one, other)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("float[1,3]", None),
        ("float[n,3]", None),
        ("float[2,3]", r"'x' is float\[1, 3\] and float\[2, 3\]; no value suits both"),
        ("float[1,3,1]", r"'x' is float\[1, 3\] and float\[1, 3, 1\]"),
        ("double[1,3]", r"'x' is float\[1, 3\] and double\[1, 3\]"),
    ],
)
def test_models_with_inputs_that_no_value_suits_cannot_be_compared(other: str, said: str | None) -> None:
    text = "g ({} x) => (bool[m] y) {{ a = Shape(x) b = Size(x) y = Equal(a, b) }}"
    one, another = (support.model(text.format(kind)) for kind in ("float[1,3]", other))
    if said is None:
        assert graphopt.verify(one, another).passed
        return
    with pytest.raises(graphopt.OptionError, match=f"the models take different inputs: {said}"):
        graphopt.verify(one, another)


def test_a_result_that_onnx_runtime_cannot_load_is_different() -> None:
    """The reference evaluator takes a tensor of one element where Range asks for a scalar; ONNX Runtime does not."""
    good = support.model("g (float[4] x) => (float[n] y) { l = Size(x) a = Cast<to = 1>(l) y = Range(zero, a, one) }")
    bad = support.model("g (float[4] x) => (float[n] y) { l = Shape(x) a = Cast<to = 1>(l) y = Range(zero, a, one) }")
    for proto in (good, bad):
        for name, number in (("zero", 0.0), ("one", 1.0)):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(number, np.float32), name))
    found = graphopt.verify(good, bad)
    assert found.status == "different"
    assert found.reason is not None and found.reason.startswith("only the ONNX reference evaluator can load the result")


def test_a_model_that_no_engine_loads_is_refused_in_the_words_of_the_runtime() -> None:
    """The ONNX reference evaluator has no operators of com.microsoft, and ONNX Runtime asks this one for its blocks."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2,32] x, uint8[4,1,16] w, float[4] s) => (float[2,4] y) {
            y = com.microsoft.MatMulNBits<K = 32, N = 4, bits = 4, block_size = 7>(x, w, s)
        }"""
    )
    found = graphopt.verify(model, model)
    assert found.reason is not None and "block_size" in found.reason
