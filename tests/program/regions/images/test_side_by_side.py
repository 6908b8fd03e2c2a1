"""Convolutions to few channels as ones to the channels of several pixels."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.program.regions.images.side_by_side import spread_weights
from kernels.target import Target, host, x86_64_v3
from kernels.templates.convolution.problem import Convolution
from tests import support
from tests.program.regions.running import compare

TOLERANCE = 1e-4


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([10, *shape]).standard_normal(shape).astype(np.float32) / 8


def _widest(channels: int, width: int, tail: str, target: Target, window: int = 3, batch: int = 1) -> int:
    """Columns of the widest window of a kernel of the program, whose results are compared."""
    pad = window // 2
    proto = support.model(
        f"""g (float[{batch},4,24,{width}] x, float[{batch},{channels},24,{width}] z) => (float[a,b,c,d] y) {{
            e = Conv(x, u) a = Conv<pads = [{pad}, {pad}, {pad}, {pad}]>(e, w, f) {tail}
        }}""",
        18, u=_weight(32, 4, 1, 1), w=_weight(channels, 32, window, window), f=_weight(channels),
        c=_weight(channels, 1, 1), two=np.float32(2).reshape(()),
    )  # fmt: skip
    problems = compare(proto, tolerance=TOLERANCE, target=target).problems.values()
    return max(problem.kernel[2] for _, problem in problems if isinstance(problem, Convolution))


@pytest.mark.parametrize("target", [host(), x86_64_v3()], ids=["host", "v3"])
@pytest.mark.parametrize(("batch", "window"), [(1, 3), (2, 5)])
@pytest.mark.parametrize("width", [24, 25])
@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_pixels_side_by_side_are_what_single_ones_are(
    channels: int, width: int, window: int, batch: int, target: Target
) -> None:
    assert _widest(channels, width, "y = Identity(a)", target, window, batch) >= window
    _widest(channels, width, "b = Tanh(a) y = Div(b, two)", target, window, batch)


def test_rows_of_whole_groups_of_pixels_are_taken_so() -> None:
    assert _widest(3, 24, "b = Tanh(a) y = Div(b, two)", host()) > 3
    assert _widest(3, 25, "b = Tanh(a) y = Div(b, two)", x86_64_v3()) == 3, "25 is no multiple of 2 pixels"


@pytest.mark.parametrize("tail", ["y = Mul(a, c)", "y = Add(a, z)"])
def test_what_reads_other_operands_is_not(tail: str) -> None:
    assert _widest(3, 24, tail, host()) == 3


def test_a_bias_that_others_read_keeps_its_numbers() -> None:
    """Two convolutions share it, of which one has several pixels as channels and one does not."""
    text = """g (float[1,32,24,24] x) => (float[1,3,24,24] y, float[1,3,23,23] z) {
        y = Conv<pads = [1, 1, 1, 1]>(x, w, f) z = Conv(x, v, f)
    }"""
    compare(support.model(text, 18, w=_weight(3, 32, 3, 3), v=_weight(3, 32, 2, 2), f=_weight(3)), tolerance=TOLERANCE)


def test_the_weights_of_each_pixel_begin_a_column_further() -> None:
    weights = _weight(2, 3, 1, 3)
    found = spread_weights(weights, 4)
    assert found.shape == (8, 3, 1, 6)
    for pixel in range(4):
        np.testing.assert_array_equal(found[2 * pixel : 2 * pixel + 2, :, :, pixel : pixel + 3], weights)
    assert np.count_nonzero(found) == 4 * np.count_nonzero(weights)
