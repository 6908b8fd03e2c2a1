"""Simulated errors are those of the models that ONNX Runtime's quantizers write."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.quantization.apply import quantized
from graphopt.quantization.calibration import ranges_of, scale_of
from graphopt.quantization.errors import Error, error_of
from graphopt.quantization.formats import FORMATS, RANGES, Form
from graphopt.quantization.graph import Graph, named
from graphopt.quantization.search import outputs_of
from graphopt.quantization.simulation import Simulation, session_of, with_switches
from tests.quantization import networks


def _prepared(proto: onnx.ModelProto) -> onnx.ModelProto:
    named(proto)
    return onnx.shape_inference.infer_shapes(proto)


def _feeds(kind: str, count: int) -> list[dict[str, object]]:
    arrays = networks.images(count)["x"][:, None] if kind == "images" else networks.rows(count)["x"]
    return [{"x": array} for array in arrays]


@pytest.mark.parametrize("kind", ["images", "rows"])
@pytest.mark.parametrize("form", [*(Form("static", one) for one in RANGES), *map(Form, FORMATS[1:])], ids=str)
def test_a_node_alone_is_off_as_in_the_model_that_is_written(kind: str, form: Form) -> None:
    proto = _prepared(networks.convolutions() if kind == "images" else networks.products())
    feeds, candidates = _feeds(kind, 3), Graph(proto).candidates(FORMATS)
    ranges = {one: ranges_of(proto, feeds, one) for one in RANGES}
    simulation = Simulation(proto, candidates, ranges, feeds)
    assert simulation.error({}) == Error(0.0, 0.0)
    wanted = outputs_of(proto, feeds)
    for one in candidates:
        if form.format not in one.formats:
            continue
        choice = {one.name: form}
        simulated = simulation.error(choice)
        made = quantized(proto, candidates, choice, ranges)
        found = error_of(wanted, outputs_of(made, feeds, optimized=False))
        # Both round in bytes; a bias in int32 and the order of float sums are all that differs.
        assert simulated.rms == pytest.approx(found.rms, rel=0.1) and found.rms > 1e-4
        last = simulation.error({})
        assert last.rms == 0.0, "switches do not stay on"


def test_all_nodes_together_are_off_as_in_the_model_that_is_written() -> None:
    proto = _prepared(networks.convolutions())
    feeds, candidates = _feeds("images", 3), Graph(proto).candidates(["static"])
    ranges = {"minmax": ranges_of(proto, feeds, "minmax")}
    choice = {one.name: Form("static", "minmax") for one in candidates}
    made = quantized(proto, candidates, choice, ranges)
    found = error_of(outputs_of(proto, feeds), outputs_of(made, feeds, optimized=False))
    assert Simulation(proto, candidates, ranges, feeds).error(choice).rms == pytest.approx(found.rms, rel=0.25)


def test_switches_have_defaults_that_change_nothing() -> None:
    proto = _prepared(networks.convolutions())
    switched = with_switches(proto, Graph(proto).candidates(FORMATS))
    onnx.checker.check_model(switched, full_check=True)
    feed = networks.images(1)
    (one,), (other,) = session_of(proto).run(None, feed), session_of(switched).run(None, feed)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_ranges_hold_zero_and_a_tensor_that_is_not_known_has_none() -> None:
    proto = _prepared(networks.products())
    ranges = ranges_of(proto, [{"x": np.full((4, 64), 3.0, np.float32)}], "minmax")
    scale = scale_of(ranges, "x")
    assert scale is not None and scale[0] == pytest.approx(3 / 255) and scale[1] == 0
    assert scale_of(ranges, "nobody") is None


def test_percentiles_leave_out_what_stands_alone() -> None:
    proto = _prepared(networks.products())
    x = networks.normal(4, 64)
    x[0, 0] = 1000
    many = [{"x": x}, *({"x": networks.normal(4, 64, seed=seed)} for seed in range(1, 200))]
    all_of_it, most_of_it = (scale_of(ranges_of(proto, many, one), "x") for one in RANGES)
    assert all_of_it is not None and most_of_it is not None and most_of_it[0] < all_of_it[0] / 2


def test_errors_are_of_the_output_that_is_furthest_off() -> None:
    wanted = [[np.array([3.0, -4.0]), np.array([1, 2]), np.array([1.0])]]
    found = [[np.array([3.0, -4.5]), np.array([5, 6]), np.array([1.0])]]
    assert error_of(wanted, found) == Error(pytest.approx(0.1), pytest.approx(0.125))
    infinite = [[np.array([np.inf, -4.0]), np.array([1, 2]), np.array([1.0])]]
    assert error_of(wanted, infinite).rms == np.inf
    assert error_of(infinite, infinite) == Error(0.0, 0.0)
    assert error_of([[np.zeros(2)]], [[np.ones(2)]]) == Error(np.inf, np.inf)
    assert error_of([[np.zeros(2)]], [[np.zeros(2)]]) == Error(0.0, 0.0)
