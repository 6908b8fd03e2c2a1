"""A quantized Conv whose bias has a scale of its own gets that bias as floats, to the bit what it was."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.ort.quantization import RULES
from tests.support import apply_rules, assert_equal, model, op_types

LAYER = """
    agraph (uint8[1,2,4,4] q) => (float[1,3,4,4] y) {
        x = DequantizeLinear(q, s, z)  w = DequantizeLinear <axis = 0> (i, t)  b = DequantizeLinear <axis = 0> (j, u)
        y = Conv(x, w, b)
    }"""
SCALES = np.array([0.02, 0.03, 0.05], np.float32)


def layer(bias_scale: np.ndarray, **changed: np.ndarray) -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {
        "s": np.float32(0.1).reshape(()), "z": np.uint8(128).reshape(()), "t": SCALES, "u": bias_scale,
        "i": generator.integers(-127, 127, (3, 2, 1, 1)).astype(np.int8),
        "j": np.array([100, -200, 300], np.int32),
    }  # fmt: skip
    return model(LAYER, **{**weights, **changed})


@pytest.mark.fires("bias-of-other-scale")
def test_a_bias_of_another_scale_is_written_out() -> None:
    proto = layer(SCALES)
    result, _ = apply_rules(proto, RULES)
    assert op_types(result).count("DequantizeLinear") == 2
    assert_equal(proto, result, rtol=0, atol=0)


def test_a_bias_of_the_product_of_scales_stays() -> None:
    _, log = apply_rules(layer(np.float32(0.1) * SCALES), RULES)
    assert not log


def test_a_bias_with_one_scale_for_all_is_read_too() -> None:
    proto = layer(np.float32(0.01).reshape(()))
    result, _ = apply_rules(proto, RULES)
    assert op_types(result).count("DequantizeLinear") == 2
    assert_equal(proto, result, rtol=0, atol=0)


def test_a_conv_of_floats_is_left_alone() -> None:
    proto = model("agraph (float[1,2,4,4] x, float[3,2,1,1] w) => (float[1,3,4,4] y) { y = Conv(x, w) }")
    _, log = apply_rules(proto, RULES)
    assert not log


def test_weights_quantized_in_blocks_are_left_alone() -> None:
    proto = layer(SCALES, t=np.full((3, 2, 1, 1), 0.02, np.float32))
    _, log = apply_rules(proto, RULES)
    assert not log
