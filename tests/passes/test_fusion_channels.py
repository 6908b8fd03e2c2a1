"""Normalization per channel and per group of channels is recognised, its scale and bias with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes import fusion
from graphopt.passes.fusion import channels
from tests import support
from tests.passes.refusing import refusal, refuses

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


# -- what each condition refuses --------------------------------------------------------------------------------------

ONES, PER_CHANNEL = np.ones((5, 6), np.float32), column(1, 2, 3, 4)
FIVE_AXES = np.ones((1, 1, 4, 1, 1), np.float32) * PER_CHANNEL


def layer(
    dims: str = "2, 4, 5, 6", *, norm: str = "LayerNormalization <axis = 2> (x, ones)", result: str = "",
    kind: str = "float", ones: np.ndarray = ONES, s: np.ndarray = PER_CHANNEL,
) -> onnx.ModelProto:  # fmt: skip
    """A LayerNormalization times a constant."""
    text = f"g ({kind}[{dims}] x) => ({kind}[{result or dims}] y) {{ n = {norm}  y = Mul (n, s) }}"
    return support.model(text, 17, ones=ones, s=s)


def affine(
    norm: str, then: str, opset: int = 17, result: str = "2, 4, 5, 6", **constants: np.ndarray
) -> onnx.ModelProto:
    """A normalization per channel or group, and arithmetic behind it."""
    text = f"g (float[2, 4, 5, 6] x) => (float[{result}] y) {{ n = {norm}  y = {then} }}"
    return support.model(text, opset, **constants)


def between(cut: tuple[int, ...], whole: tuple[int, ...], dims: str = "2, 4, 5, 6", kind: str = "float", zero: int = 0
            ) -> onnx.ModelProto:  # fmt: skip
    """An InstanceNormalization between two Reshapes."""
    result = ", ".join(str(size) for size in whole)
    text = f"""g ({kind}[{dims}] x) => ({kind}[{result}] y) {{ r = Reshape <allowzero = {zero}> (x, cut)
        n = InstanceNormalization (r, s, b)  y = Reshape <allowzero = {zero}> (n, whole) }}"""
    numbers = np.ones(cut[1], np.float64 if kind == "double" else np.float32)
    return support.model(text, 21, cut=np.array(cut), whole=np.array(whole), s=numbers, b=numbers)


FOUR, HUGE = np.ones(4, np.float32), np.full(4, 3e38, np.float32)
INSTANCE = "InstanceNormalization (x, s, b)"
REFUSALS = [
    refusal("instance-normalization", "the normalization has a bias",
            layer(norm="LayerNormalization <axis = 2> (x, ones, ones)")),
    refusal("instance-normalization", "it is no image",
            layer("2, 4", norm="LayerNormalization (x, ones)", ones=FOUR, s=FOUR)),
    refusal("instance-normalization", "the normalization is not over all that follows the channels",
            layer(norm="LayerNormalization (x, ones)", ones=np.ones(6, np.float32))),
    refusal("instance-normalization", "the number of channels is not known", layer("2, C, 5, 6")),
    refusal("instance-normalization", "the scale it has already is not all ones", layer(ones=2 * ONES)),
    refusal("instance-normalization", "only float has the operator in runtimes",
            layer(kind="double", ones=ONES.astype(np.float64), s=PER_CHANNEL.astype(np.float64))),
    refusal("instance-normalization", "'s' widens the tensor", layer(result="1, 2, 4, 5, 6", s=FIVE_AXES)),
    refusal("instance-normalization", "'s' has not one number per channel", layer(s=np.arange(6, dtype=np.float32))),
    refusal("affine-of-channels", "the constant widens the tensor",
            affine(INSTANCE, "Add (n, c)", result="1, 2, 4, 5, 6", s=FOUR, b=FOUR, c=FIVE_AXES)),
    refusal("affine-of-channels", "the scale is per group, not per channel",
            affine("GroupNormalization <num_groups = 2> (x, s, b)", "Add (n, c)", 18, s=FOUR[:2], b=FOUR[:2],
                   c=PER_CHANNEL)),
    refusal("affine-of-channels", "the numbers do not fit",
            affine(INSTANCE, "Mul (n, c)", s=HUGE, b=FOUR, c=np.float32(10).reshape(()))),
    refusal("group-normalization", "the second Reshape does not restore the shape", between((2, 2, 60), (2, 4, 6, 5))),
    refusal("group-normalization", "the channels are not cut into groups of equal size",
            between((2, 3, 40), (2, 4, 5, 6))),
    refusal("group-normalization", "the groups hold something else than their channels",
            between((0, 2, 7), (0, 4, 5, 6), "0, 4, 5, 6", zero=1)),
    refusal("group-normalization", "only float has the operator in runtimes",
            between((2, 2, 60), (2, 4, 5, 6), kind="double")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "proto"), REFUSALS)
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)
