"""Softplus, Mish, LogSoftmax and HardSigmoid are recognised in what spells them out."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.passes import fusion
from graphopt.passes.fusion import exponentials
from tests import support

X, Y = "float[2, 5] x", "float[2, 5] y"


def fused(body: str, opset: int = 18, **initializers: np.ndarray) -> list[str]:
    """The operators after the rules; the models are equal."""
    proto = support.model(f"g ({X}) => ({Y}) {{ {body} }}", opset, **initializers)
    result, _ = support.apply_rules(proto, exponentials.RULES)
    support.assert_equal(proto, result)
    return support.op_types(result)


def test_softplus_and_mish() -> None:
    assert fused("e = Exp (x) s = Add (one, e) y = Log (s)", one=np.float32(1)) == ["Softplus"]
    mish = "e = Exp (x) s = Add (e, one) l = Log (s) t = Tanh (l) y = Mul (t, x)"
    assert fused(mish, one=np.float32(1)) == ["Mish"]
    assert fused(mish, 17, one=np.float32(1)) == ["Softplus", "Tanh", "Mul"]


def test_another_sum_is_no_softplus() -> None:
    assert fused("e = Exp (x) s = Add (e, two) y = Log (s)", two=np.float32(2)) == ["Exp", "Add", "Log"]
    assert fused("e = Exp (x) s = Add (e, one) l = Log (s) y = Add (l, s)", one=np.float32(1))[0] == "Exp"


def test_mish_of_another_value() -> None:
    body = "n = Neg (x) s = Softplus (n) t = Tanh (s) y = Mul (t, x)"
    assert fused(body) == ["Neg", "Softplus", "Tanh", "Mul"]


def test_log_softmax() -> None:
    assert fused("s = Softmax <axis = 1> (x) y = Log (s)") == ["LogSoftmax"]
    assert fused("s = Softmax <axis = 1> (x) l = Log (s) y = Add (s, l)") == ["Softmax", "Log", "Add"]


@pytest.mark.fires("hard-sigmoid")
@pytest.mark.parametrize(
    "body",
    [
        "a = Add (x, three) c = Clip (a, zero, six) y = Div (c, six)",
        "a = Add (x, three) c = Clip (a, zero, six) y = Mul (c, sixth)",
        "m = Mul (x, sixth) a = Add (m, half) y = Clip (a, zero, one)",
    ],
)
def test_hard_sigmoid(body: str) -> None:
    numbers = {"three": 3, "zero": 0, "six": 6, "sixth": 1 / 6, "half": 0.5, "one": 1}
    assert fused(body, **{name: np.float32(number) for name, number in numbers.items()}) == ["HardSigmoid"]


def test_other_limits_are_no_sigmoid() -> None:
    numbers = {"three": np.float32(3), "zero": np.float32(0), "five": np.float32(5), "six": np.float32(6)}
    assert fused("a = Add (x, three) c = Clip (a, zero, five) y = Div (c, six)", **numbers) == ["Add", "Clip", "Div"]
    assert fused("y = Clip (x, zero, six)", **numbers) == ["Clip"]


@pytest.mark.fires("hard-swish")
def test_hard_swish_is_still_found_behind_a_hard_sigmoid() -> None:
    proto = support.model(
        f"g ({X}) => ({Y}) {{ a = Add (x, three) c = Clip (a, zero, six) d = Div (c, six) y = Mul (x, d) }}",
        three=np.float32(3),
        zero=np.float32(0),
        six=np.float32(6),
    )
    result, _ = support.apply_rules(proto, fusion.RULES)
    assert support.op_types(result) == ["HardSwish"]
    support.assert_equal(proto, result)
