"""Reshape, Transpose, Reshape over blocks of pixels becomes SpaceToDepth or DepthToSpace."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphopt.passes.fusion import blocks
from tests import support


def moved(
    shape: str, first: list[int], perm: list[int], last: list[int], result: str, opset: int = 17
) -> onnx.ModelProto:
    """The three operators over x."""
    return support.model(
        f"""g (float[{shape}] x) => (float[{result}] y) {{
            a = Reshape (x, first) b = Transpose <perm = {perm}> (a) y = Reshape (b, last) }}""",
        opset,
        first=np.array(first),
        last=np.array(last),
    )


def fused(proto: onnx.ModelProto, **dims: int) -> list[str]:
    """The operators after the rules; the models are equal, bit for bit."""
    result, _ = support.apply_rules(proto, blocks.RULES)
    support.assert_equal(proto, result, rtol=0, atol=0, **dims)
    return support.op_types(result)


@pytest.mark.fires("space-to-depth")
def test_blocks_into_channels() -> None:
    proto = moved("1, 3, 4, 6", [1, 3, 2, 2, 3, 2], [0, 3, 5, 1, 2, 4], [1, 12, 2, 3], "1, 12, 2, 3")
    assert fused(proto) == ["SpaceToDepth"]


def test_channels_into_blocks_in_both_orders() -> None:
    proto = moved("1, 12, 2, 3", [1, 2, 2, 3, 2, 3], [0, 3, 4, 1, 5, 2], [1, 3, 4, 6], "1, 3, 4, 6")
    assert fused(proto) == ["DepthToSpace"]
    shuffle = moved("1, 12, 2, 3", [1, 3, 2, 2, 2, 3], [0, 1, 4, 2, 5, 3], [1, 3, 4, 6], "1, 3, 4, 6")
    assert fused(shuffle) == ["DepthToSpace"]


@pytest.mark.fires("depth-to-space")
def test_a_pixel_shuffle_of_any_batch() -> None:
    proto = moved("n, 12, 2, 3", [-1, 3, 2, 2, 2, 3], [0, 1, 4, 2, 5, 3], [-1, 3, 4, 6], "n, 3, 4, 6")
    assert fused(proto, n=2) == ["DepthToSpace"]


def test_before_opset_11_there_is_one_order_only() -> None:
    shuffle = moved("1, 12, 2, 3", [1, 3, 2, 2, 2, 3], [0, 1, 4, 2, 5, 3], [1, 3, 4, 6], "1, 3, 4, 6", 10)
    assert fused(shuffle) == ["Reshape", "Transpose", "Reshape"]


def test_a_pixel_unshuffle_has_another_order_of_channels() -> None:
    proto = moved("1, 3, 4, 6", [1, 3, 2, 2, 3, 2], [0, 1, 3, 5, 2, 4], [1, 12, 2, 3], "1, 12, 2, 3")
    assert fused(proto) == ["Reshape", "Transpose", "Reshape"]


def test_blocks_that_are_no_squares_stay() -> None:
    proto = moved("1, 3, 4, 6", [1, 3, 2, 2, 2, 3], [0, 3, 5, 1, 2, 4], [1, 18, 2, 2], "1, 18, 2, 2")
    assert fused(proto) == ["Reshape", "Transpose", "Reshape"]


def test_a_window_partition_is_no_block_of_channels() -> None:
    proto = moved("1, 4, 6, 3", [1, 2, 2, 3, 2, 3], [0, 1, 3, 2, 4, 5], [6, 2, 2, 3], "6, 2, 2, 3")
    assert fused(proto) == ["Reshape", "Transpose", "Reshape"]
