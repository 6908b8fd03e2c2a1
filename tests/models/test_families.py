"""The families: the same bytes every time, valid, alive, optimized with nothing taken back, and compiled.

All stand in two tables: how many nodes may remain, and what of each runs without a kernel.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import graphopt
import models
from models import families
from tests.support import feeds, session

# Nodes that may remain.
MOST = {
    "cached_decoder": 91,
    "diffusion_unet": 174,
    "diffusion_unet_opset21": 118,
    "masked_encoder": 121,
    "masked_encoder_10000": 121,
    "masked_encoder_fp16": 131,
    "odd_groups": 20,
    "plain_stacks": 21,
    "shifted_windows": 131,
    "silu_detector": 201,
    "squeeze_excite": 75,
}
SCALED = ("silu_detector", "squeeze_excite")  # numbers of many magnitudes side by side: other weights are tried, too


def feed_of(name: str, model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Normal numbers and small integers; masks say 0 or 1."""
    feed = feeds(model, families.sizes(name), seed)
    return {key: np.minimum(value, 1) if key == "attention_mask" else value for key, value in feed.items()}


def test_families_are_no_light_files() -> None:
    assert families.names() == tuple(sorted(MOST))
    assert not set(families.names()) & {*models.names(), *models.onnx_light_names()}


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(KeyError) as caught:
        families.build("odd_group")
    assert str(caught.value) == "There is no family 'odd_group'. The nearest name is 'odd_groups'."


@pytest.mark.parametrize("name", families.names())
def test_a_family_is_the_same_every_time_valid_and_alive(name: str) -> None:
    model = families.build(name)
    first, again, other = (families.build(name, seed).SerializeToString(deterministic=True) for seed in (0, 0, 1))
    assert first == again == model.SerializeToString(deterministic=True)
    assert first != other
    assert len(first) < 5_000_000
    onnx.checker.check_model(model, full_check=True)
    dims = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim} - {""}
    assert dims == set(families.sizes(name))
    runner = session(model)
    one, another = (runner.run(None, feed_of(name, model, seed)) for seed in (0, 1))
    for output, moved in zip(one, another, strict=True):
        # Neither vanished nor blown up behind its layers, and not the same whatever is read.
        assert 0.1 < float(np.std(output.astype(np.float64))) < 100.0
        assert not np.array_equal(output, moved)


def test_every_size_of_a_dynamic_dim_runs() -> None:
    for name in families.names():
        model = families.build(name)
        larger = {dim: size + 2 for dim, size in families.sizes(name).items()}
        for output in session(model).run(None, feeds(model, larger)):
            assert output.size > 0


def test_variances_of_batch_normalizations_are_spread_as_after_training() -> None:
    model = families.build("squeeze_excite")
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    spread = np.concatenate([weights[n.input[4]] for n in model.graph.node if n.op_type == "BatchNormalization"])
    assert 0.05 <= spread.min() < 0.06
    assert 2.5 < spread.max() <= 3.0


def test_the_detector_gives_boxes_in_pixels_beside_scores() -> None:
    model = families.build("silu_detector")
    (output,) = session(model).run(None, feed_of("silu_detector", model, 0))
    boxes, scores = output[0, :4], output[0, 4:]
    assert boxes.max() > 100.0
    assert 0.0 <= scores.min() <= scores.max() <= 1.0


@pytest.mark.parametrize("name", families.names())
def test_a_family_is_optimized_with_nothing_taken_back(name: str) -> None:
    result = graphopt.optimize(families.build(name))
    assert result.verification.passed, result.verification.reason
    assert result.rolled_back == ()
    assert not result.signature_changes
    assert result.after.nodes <= MOST[name]
    assert result.after.bytes <= result.before.bytes


@pytest.mark.parametrize("name", families.names())
def test_the_program_of_a_family_gives_what_the_model_gives(name: str) -> None:
    compiled = graphopt.compile(families.build(name), dims=families.sizes(name))
    assert compiled.verification.passed, compiled.verification.reason
    assert compiled.remade is None
    assert compiled.fallback == ()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SCALED)
def test_other_weights_pass_too(name: str, seed: int) -> None:
    model = families.build(name, seed)
    result = graphopt.optimize(model)
    assert result.verification.passed, result.verification.reason
    assert result.rolled_back == ()
    compiled = graphopt.compile(model, dims=families.sizes(name))
    assert compiled.verification.passed, compiled.verification.reason
    assert compiled.fallback == ()


def test_a_mask_of_8_is_nan_in_float16_and_a_number_in_float32() -> None:
    model = families.build("masked_encoder_fp16")
    feed = {"input_ids": np.arange(6)[None], "attention_mask": np.array([[8, 1, 0, 1, 1, 0]])}
    with np.errstate(over="ignore", invalid="ignore"):
        (in_half, _) = ReferenceEvaluator(model).run(None, feed)
    (in_float, _) = session(model).run(None, feed)
    assert np.isnan(in_half).all()
    assert np.isfinite(in_float).all()
