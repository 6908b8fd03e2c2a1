"""Normalization per channel and per group of channels is recognised, its scale and bias with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes import fusion
from graphopt.passes.fusion import channels
from tests import support

SPELLED_OUT = """g (float[n, 4, 5, 6] x) => (float[n, 4, 5, 6] y) {
    m = ReduceMean <axes = [2, 3]> (x)  d = Sub (x, m)  q = Mul (d, d)  v = ReduceMean <axes = [2, 3]> (q)
    e = Add (v, eps)  r = Sqrt (e)  z = Div (d, r)  t = Mul (z, s)  y = Add (t, b) }"""
GROUPED = """g (float[n, 4, 5, 6] x) => (float[n, 4, 5, 6] y) {
    a = Reshape (x, cut)  c = InstanceNormalization <epsilon = 0.001> (a, s, b)  d = Reshape (c, whole)
    e = Mul (d, w)  y = Add (e, v) }"""


def column(*numbers: float) -> np.ndarray:
    """One number per channel, to be broadcast over an image."""
    return np.array(numbers, np.float32).reshape(-1, 1, 1)


def grouped(opset: int = 21, cut: tuple[int, ...] = (0, 2, -1), scale: np.ndarray | None = None) -> onnx.ModelProto:
    """A group normalization as exporters write it."""
    return support.model(
        GROUPED,
        opset,
        cut=np.array(cut),
        whole=np.array([0, 4, 5, 6]),
        s=np.array([1, 2], np.float32),
        b=np.array([0, 3], np.float32),
        w=column(1, 2, 3, 4) if scale is None else scale,
        v=column(4, 3, 2, 1),
    )


@pytest.mark.fires("instance-normalization")
def test_a_normalization_over_the_image_is_one_per_channel() -> None:
    proto = support.model(SPELLED_OUT, eps=np.float32(1e-3), s=column(1, 2, 3, 4), b=column(4, 3, 2, 1))
    result, _ = support.apply_rules(proto, fusion.RULES)
    assert support.op_types(result) == ["InstanceNormalization"]
    support.assert_equal(proto, result, rtol=1e-4, atol=1e-5, n=2)


@pytest.mark.fires("scale-of-normalization")
def test_a_scale_per_pixel_is_a_layer_normalization() -> None:
    pixels = np.arange(30, dtype=np.float32).reshape(5, 6)
    proto = support.model(SPELLED_OUT, eps=np.float32(1e-3), s=pixels, b=column(4, 3, 2, 1))
    result, _ = support.apply_rules(proto, fusion.RULES)
    assert support.op_types(result) == ["LayerNormalization", "Add"]
    support.assert_equal(proto, result, rtol=1e-4, atol=1e-4, n=2)


@pytest.mark.fires("affine-of-channels")
def test_groups_of_channels() -> None:
    proto = grouped()
    result, _ = support.apply_rules(proto, channels.RULES)
    assert support.op_types(result) == ["GroupNormalization"]
    support.assert_equal(proto, result, rtol=1e-4, atol=1e-5, n=2)


def test_before_opset_21_its_scale_is_per_group() -> None:
    result, _ = support.apply_rules(grouped(18), channels.RULES)
    assert "GroupNormalization" not in support.op_types(result)


def test_groups_that_mix_the_samples_stay() -> None:
    proto = support.model(
        GROUPED.replace("n, 4", "2, 4"),
        21,
        cut=np.array([1, 2, 120]),
        whole=np.array([2, 4, 5, 6]),
        s=np.array([1, 2], np.float32),
        b=np.array([0, 3], np.float32),
        w=column(1, 2, 3, 4),
        v=column(4, 3, 2, 1),
    )
    result, _ = support.apply_rules(proto, channels.RULES)
    assert "GroupNormalization" not in support.op_types(result)


@pytest.mark.fires("group-normalization")
def test_a_scale_that_is_not_per_channel_stays_behind() -> None:
    proto = grouped(scale=np.arange(6, dtype=np.float32))
    result, _ = support.apply_rules(proto, channels.RULES)
    assert support.op_types(result) == ["GroupNormalization", "Mul", "Add"]
    support.assert_equal(proto, result, rtol=1e-4, atol=1e-4, n=2)
