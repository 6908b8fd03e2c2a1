"""Random models: the optimized model equals the original, whatever the passes found to do."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings

import graphopt
from graphopt.check.tolerance import compare
from tests import support
from tests.random_graphs import models


def _run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray] | str:
    try:
        outputs: list[np.ndarray] = support.session(model).run(None, feed)
    except Exception as error:  # ONNX Runtime's errors share no base class; the text is what the test needs
        return str(error)
    return outputs


@settings(
    max_examples=400,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(models())
def test_optimized_equals_original(model: onnx.ModelProto) -> None:
    """Without the built-in check, so that a wrong rule shows here instead of being rolled back."""
    result = graphopt.optimize(model, verify=False)
    optimized = result.to_proto()
    onnx.checker.check_model(optimized, full_check=True)
    assert not result.rolled_back
    assert not result.signature_changes
    generator = np.random.default_rng(0)
    for size in (4, 1) if model.graph.input[0].type.tensor_type.shape.dim[0].dim_param else (4,):
        shape = [size, *(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:])]
        feed = {"x": generator.standard_normal(shape).astype(np.float32)}
        expected, found = _run(model, feed), _run(optimized, feed)
        assert not isinstance(expected, str), f"the generator made a model that does not run: {expected}"
        assert not isinstance(found, str), found
        for one, other in zip(expected, found, strict=True):
            difference = compare(one, other)
            assert difference.reason is None, difference.reason


@settings(
    max_examples=80,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(models())
def test_same_in_same_out_and_nothing_left_to_do(model: onnx.ModelProto) -> None:
    first = graphopt.optimize(model, verify=False)
    second = graphopt.optimize(model, verify=False)
    assert first.to_proto().SerializeToString(deterministic=True) == second.to_proto().SerializeToString(
        deterministic=True
    )
    again = graphopt.optimize(first.to_proto(), verify=False)
    assert again.after.nodes == first.after.nodes
