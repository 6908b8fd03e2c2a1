"""Gates: comparisons of numbers that are as good as equal come out on both sides when rounding is sampled."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from graphopt.check.noise import moved_gates
from graphopt.model.load import load
from tests import support

PLAIN = "g (float[4,16] x) => (float[4,16] y) <float three = {3.0}> { t = Div(x, three) y = Sigmoid(t) }"


def test_what_is_greater_by_rounding_alone_comes_out_the_other_way() -> None:
    """Of -1, 0, 5e-8, 1 and 2, one is above 0 by less than 32 units of the largest; 0 stays what it is."""
    model = load(
        support.model(
            "g (float[5] x) => (bool[5] y, bool[5] z) <float zero = {0.0}> { y = Greater(x, zero) z = Less(x, zero) }"
        )
    )
    moved = moved_gates(model)
    assert moved is not None
    x = np.array([-1, 0, 5e-8, 1, 2], np.float32)
    for signs, expected in ((x, [0, 0, 0, 1, 1]), (-x, [1, 0, 0, 0, 0])):
        above, _ = ReferenceEvaluator(ir.to_proto(moved)).run(None, {"x": signs})
        below = ReferenceEvaluator(ir.to_proto(moved)).run(None, {"x": -signs})[1]
        assert above.tolist() == list(map(bool, expected))
        assert below.tolist() == list(map(bool, expected))
    assert moved_gates(load(support.model(PLAIN))) is None


def test_what_is_not_greater_by_rounding_alone_comes_out_the_other_way_too() -> None:
    """Of -1, -5e-8, 0, 1 and 2, one is below 0 by less than 32 units of the largest; 0 stays what it is."""
    model = load(
        support.model(
            "g (float[5] x) => (bool[5] y, bool[5] z) <float zero = {0.0}> { y = Greater(x, zero) z = Less(x, zero) }"
        )
    )
    moved = moved_gates(model, is_open=True)
    assert moved is not None
    x = np.array([-1, -5e-8, 0, 1, 2], np.float32)
    above = ReferenceEvaluator(ir.to_proto(moved)).run(None, {"x": x})[0]
    below = ReferenceEvaluator(ir.to_proto(moved)).run(None, {"x": -x})[1]
    assert above.tolist() == below.tolist() == [False, True, False, True, True]
    assert moved_gates(load(support.model(PLAIN)), is_open=True) is None


def test_the_gate_of_a_relu_is_opened_by_the_operand_of_the_relu() -> None:
    """Its result is 0 far below the kink and near it; a gate of another bound than zero is one of the result."""
    text = """g (float[5] x) => (bool[5] y, bool[5] z) <float zero = {0.0}, float one = {1.0}> {
        r = Relu(x) y = Greater(r, zero) z = Greater(r, one)
    }"""
    moved = moved_gates(load(support.model(text)), is_open=True)
    assert moved is not None
    x = np.array([-1, -5e-8, 0, 1 - 5e-8, 2], np.float32)
    y, z = ReferenceEvaluator(ir.to_proto(moved)).run(None, {"x": x})
    assert y.tolist() == [False, True, False, True, True]
    assert z.tolist() == [False, False, False, True, True]


def test_a_gate_of_a_number_without_bound_is_not_moved() -> None:
    moved = moved_gates(
        load(support.model("g (float[3] x) => (bool[3] y) <float zero = {0.0}> { y = Greater(x, zero) }"))
    )
    assert moved is not None
    x = np.array([np.inf, np.nan, 1], np.float32)
    assert ReferenceEvaluator(ir.to_proto(moved)).run(None, {"x": x})[0].tolist() == [True, False, True]
