"""Gradients of Loop and If: through states, what is collected, and values of the graph around; by branch."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.errors import ModelError
from tests.gradient.differences import STEPS, analytic, numeric

LOOP = """
<ir_version: 8, opset_import: ["": 17]>
net (double[3] start, double[3, 3] w) => (double loss)
<double[3] weights = {1, -2, 0.5}, double[TRIPS, 3] others = {OTHERS}, int64 trips = {TRIPS}, bool yes = {1}>
{
    last, every = Loop (LIMITS, start) <body = step (int64 i, bool going, double[3] state)
        => (bool go, double[3] next, double[3] kept) <double[1] half = {0.5}> {
        go = CONDITION
        product = MatMul(state, w)
        number = Cast <to = 11> (i)
        sum = Add(product, number)
        next = Tanh(sum)
        scaled = Mul(next, half)
        kept = Mul(scaled, state)
    }>
    a = Mul(last, weights)
    b = Mul(every, others)
    c = ReduceSum <keepdims = 0> (a)
    d = ReduceSum <keepdims = 0> (b)
    loss = END
}
"""


def _loop(trips: int = 4, *, limits: str = "trips, yes", condition: str = "Identity(going)",
          end: str = "Add(c, d)") -> onnx.ModelProto:  # fmt: skip
    others = ", ".join(str(0.3 * at - 1) for at in range(3 * trips))
    text = LOOP.replace("TRIPS", str(trips)).replace("OTHERS", others).replace("LIMITS", limits)
    return onnx.parser.parse_model(text.replace("CONDITION", condition).replace("END", end))


def _inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {name: rng.uniform(-1, 1, shape) for name, shape in {"start": (3,), "w": (3, 3)}.items()}


def _agree(model: onnx.ModelProto, inputs: dict[str, np.ndarray], wanted: list[str]) -> None:
    found = analytic(model, inputs, wanted)
    for name, gradient in found.items():
        tolerance = STEPS[np.dtype(np.float64)][1]
        np.testing.assert_allclose(gradient, numeric(model, inputs, name), rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("end", ["Add(c, d)", "Identity(c)", "Identity(d)"])
@pytest.mark.parametrize("trips", [1, 4])
def test_a_loop_has_gradients_to_states_and_captured_values(trips: int, end: str) -> None:
    _agree(_loop(trips, end=end), _inputs(), ["start", "w"])


@pytest.mark.parametrize("limits", ["trips, ", "trips, yes"])
def test_a_condition_may_be_left_out(limits: str) -> None:
    _agree(_loop(limits=limits), _inputs(), ["start", "w"])


def test_a_condition_of_the_body_ends_the_loop() -> None:
    """It would run four times; the third is the last."""
    model = _loop(4, condition="Less(i, two)")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2, np.int64), "two"))
    others = next(one for one in model.graph.initializer if one.name == "others")
    others.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(others)[:3], "others"))
    _agree(model, _inputs(), ["start", "w"])


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_how_often_a_loop_runs_may_be_an_input(trips: int) -> None:
    model = _loop(1, limits="count, yes")
    model.graph.input.append(onnx.helper.make_tensor_value_info("count", onnx.TensorProto.INT64, []))
    _agree(model, {**_inputs(), "count": np.array(trips, np.int64)}, ["start", "w"])


def test_a_loop_of_no_step_hands_its_gradient_on() -> None:
    model = onnx.parser.parse_model(LOOP.replace("double[TRIPS, 3] others = {OTHERS}, int64 trips = {TRIPS}",
        "double[3] others = {0, 0, 0}, int64 trips = {0}").replace("LIMITS", "trips, yes").replace(
        "CONDITION", "Identity(going)").replace("END", "Identity(c)"))  # fmt: skip
    _agree(model, _inputs(), ["start"])


def test_a_loop_that_grows_its_state_is_refused() -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17]>
    net (double[1] start) => (double loss)
    <int64 trips = {3}, bool yes = {1}, double[8] last>
    {
        last = Loop (trips, yes, start) <body = step (int64 i, bool going, double[n] state)
            => (bool go, double[m] next) {
            go = Identity(going)
            next = Concat <axis = 0> (state, state)
        }>
        loss = ReduceSum <keepdims = 0> (last)
    }
    """)
    with pytest.raises(ModelError, match="Loop 'last' has no gradient: the dims of 'next' in it change from step to"):
        graphopt.gradient(model, loss="loss", with_respect_to=["start"])


IF = """
<ir_version: 8, opset_import: ["": 17]>
net (double[3] x, double[3, 3] w, double[3] z, bool yes) => (double loss)
<double[3] weights = {1, -2, 0.5}>
{
    h = Tanh(z)
    y, t = If (yes) <then_branch = yes_branch () => (double[3] a, double[3] b) <double[1] half = {0.5}> {
        product = MatMul(x, w)
        a = Sigmoid(product)
        b = Mul(half, h)
    }, else_branch = no_branch () => (double[3] e, double[3] f) {
        e = Mul(x, h)
        f = Sin(x)
    }>
    s = Mul(y, t)
    c = Mul(s, weights)
    loss = ReduceSum <keepdims = 0> (c)
}
"""


@pytest.mark.parametrize("yes", [True, False])
def test_an_if_has_the_gradients_of_the_branch_that_runs(yes: bool) -> None:
    rng = np.random.default_rng(4)
    inputs = {name: rng.uniform(-1, 1, shape) for name, shape in {"x": 3, "w": (3, 3), "z": 3}.items()}
    _agree(onnx.parser.parse_model(IF), {**inputs, "yes": np.array(yes)}, ["x", "w", "z"])


NESTED = """
<ir_version: 8, opset_import: ["": 17]>
net (double[3] start, double[3, 3] w) => (double loss)
<double[3] weights = {1, -2, 0.5}, int64 trips = {3}, int64 inner_trips = {2}, bool yes = {1}, int64 one = {1}>
{
    last = Loop (trips, yes, start) <body = step (int64 i, bool going, double[3] state) => (bool go, double[3] next) {
        go = Identity(going)
        early = Less(i, one)
        product = If (early) <then_branch = first () => (double[3] a) <double[3] own = {0.5, 1.5, 2}> {
            m = MatMul(state, w)
            a = Mul(m, own)
        }, else_branch = later () => (double[3] b) {
            b = Loop (inner_trips, yes, state) <body = inner (int64 j, bool on, double[3] s)
                => (bool off, double[3] n) {
                off = Identity(on)
                v = MatMul(w, s)
                n = Sin(v)
            }>
        }>
        next = Tanh(product)
    }>
    c = Mul(last, weights)
    loss = ReduceSum <keepdims = 0> (c)
}
"""


def test_bodies_may_hold_graphs() -> None:
    """An If in a Loop, in whose branch another Loop stands."""
    _agree(onnx.parser.parse_model(NESTED), _inputs(), ["start", "w"])


def test_operators_with_a_body_in_place_of_a_rule_have_it_in_bodies_too() -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    net (float[1, 2, 3] start) => (float loss)
    <int64 trips = {2}, float[1, 2, 3] weights = {1, -2, 0.5, 3, 1, 2}>
    {
        last = Loop (trips, , start) <body = step (int64 i, bool going, float[1, 2, 3] state)
            => (bool go, float[1, 2, 3] next) {
            go = Identity(going)
            next = MeanVarianceNormalization <axes = [2]> (state)
        }>
        c = Mul(last, weights)
        loss = ReduceSum <keepdims = 0> (c)
    }
    """)
    inputs = {"start": np.random.default_rng(4).uniform(-1, 1, (1, 2, 3)).astype(np.float32)}
    found, expected = analytic(model, inputs, ["start"])["start"], numeric(model, inputs, "start")
    np.testing.assert_allclose(found, expected, rtol=0, atol=STEPS[np.dtype(np.float32)][1])
