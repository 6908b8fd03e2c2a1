"""Rows and columns of images: read where they are, and written where a larger image wants them."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.target import x86_64_v3
from kernels.templates.convolution.layout import InvalidLayout, Layout
from tests import support
from tests.program.regions.running import compare

TOLERANCE = 1e-4
NUMBERS = {f"n{at}": np.array([at]) for at in (2, 3, 4, 8, 9, 15, 18)}


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(np.float32) / 4


# What reads some rows or columns of a convolution's result of 18 x 18 pixels: 12 rows of them.
READERS = [
    "y = Conv<pads = [1, 1, 1, 1]>(part, across)",
    "y = Conv(part, pixel)",
    "y = Conv<pads = [0, 1, 1, 1], strides = [2, 1]>(part, across)",
    "y = Conv<group = {c}, pads = [1, 1, 0, 1]>(part, each)",
    "y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(part)",
    "y = GlobalAveragePool(part)",
    "y = Mul(part, part)",
    "p = Relu(part) q = Exp(part) r = Add(p, q) s = Add(p, r) y = Conv(s, pixel)",
    'y = Resize<mode = "nearest">(part, , scales)',
    "t = Transpose<perm = [0, 2, 3, 1]>(part) y = MatMul(t, square)",
]


@pytest.mark.parametrize("channels", [16, 24, 32])
@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize("reader", READERS)
def test_a_part_of_images_is_read_where_it_lies(reader: str, axis: int, channels: int) -> None:
    proto = support.model(
        f"""g (float[1,4,18,18] x) => (float[a,b,c,d] y) {{
            whole = Conv<pads = [1, 1, 1, 1]>(x, first) part = Slice(whole, n3, n15, n{axis})
            {reader.format(c=channels)}
        }}""",
        18, **NUMBERS, first=_weight(channels, 4, 3, 3), across=_weight(channels, channels, 3, 3),
        pixel=_weight(channels, channels, 1, 1), each=_weight(channels, 1, 3, 3), square=_weight(channels, 8),
        scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip
    lowered = compare(proto, tolerance=TOLERANCE)
    assert all(region.nodes[0].operator != "Slice" for region in lowered.regions if region.nodes)


# What makes two parts of 9 rows or columns each out of such images, or out of a part of the input.
MAKERS = [
    "a = Conv<pads = [1, 1, 1, 1]>(low, across) b = Conv<pads = [1, 1, 1, 1]>(high, across)",
    "a = Conv(low, pixel) b = Conv(high, pixel)",
    "a = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(low) b = Sigmoid(high)",
    "e = Conv(low, pixel) a = Add(e, low) b = Conv<group = {c}, pads = [1, 1, 1, 1]>(high, each)",
    'e = Conv<strides = [2, 2]>(low, pixel) a = Resize<mode = "nearest">(e, , , nine) b = Identity(high)',
]


@pytest.mark.parametrize("channels", [16, 24, 32])
@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_parts_are_written_where_the_whole_lies(maker: str, axis: int, channels: int) -> None:
    proto = support.model(
        f"""g (float[1,4,18,18] x) => (float[1,{channels},18,18] y) {{
            whole = Conv<pads = [1, 1, 1, 1]>(x, first)
            low = Slice(whole, n0, n9, n{axis}) high = Slice(whole, n9, n18, n{axis})
            {maker.format(c=channels)} z = Concat<axis = {axis}>(a, b) y = Conv<pads = [1, 1, 1, 1]>(z, across)
        }}""",
        18, **NUMBERS, n0=np.array([0]), first=_weight(channels, 4, 3, 3), across=_weight(channels, channels, 3, 3),
        pixel=_weight(channels, channels, 1, 1), each=_weight(channels, 1, 3, 3),
        nine=np.array([1, channels, *((9, 18) if axis == 2 else (18, 9))]),
    )  # fmt: skip
    compare(proto, tolerance=TOLERANCE)


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_a_value_is_joined_to_a_large_result_before_a_small_one(axis: int) -> None:
    """The last Concat says where it lies, which has no room for the first one's result."""
    wide = [1, 16, 6, 6]
    wide[axis] *= 3
    proto = support.model(
        f"""g (float[1,4,6,6] x) => (float[{",".join(map(str, wide))}] y, float[a,b,c,d] z) {{
            a = Conv<pads = [1, 1, 1, 1]>(x, first) b = Relu(a) c = Conv<pads = [1, 1, 1, 1]>(b, w)
            large = Concat<axis = {axis}>(a, b, c) y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(large)
            d = Conv<pads = [1, 1, 1, 1]>(c, w) small = Concat<axis = {axis}>(a, d)
            z = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(small)
        }}""",
        18, first=_weight(16, 4, 3, 3), w=_weight(16, 16, 3, 3),
    )  # fmt: skip
    compare(proto, tolerance=TOLERANCE)


def test_tiles_of_a_chain_are_its_convolutions_alone() -> None:
    proto = support.model(
        """g (float[1,3,20,20] x) => (float[1,16,20,20] y) {
            low = Slice(x, n0, n11, n2) high = Slice(x, n9, n20, n2)
            a = Conv<pads = [1, 1, 0, 1]>(low, w) b = Conv<pads = [0, 1, 1, 1]>(high, w)
            whole = Concat<axis = 2>(a, b) y = Conv<pads = [1, 1, 1, 1]>(whole, v)
        }""",
        18, **{f"n{at}": np.array([at]) for at in (0, 2, 9, 11, 20)}, w=_weight(32, 3, 3, 3), v=_weight(16, 32, 3, 3),
    )  # fmt: skip
    for target in (None, x86_64_v3()):
        lowered = compare(proto, tolerance=TOLERANCE, target=target)
        assert len(lowered.regions) == 3
        assert [one.purpose for one in lowered.temporaries] == ["joined"]


def test_a_part_lies_as_far_apart_as_the_whole() -> None:
    whole = Layout(2, 20, (1, 6, 5), "NCHWc", 8)
    part = Layout(2, 20, (1, 3, 4), "NCHWc", 8, within=(1, 6, 5))
    assert part.row_stride == whole.row_stride and part.block_stride == whole.block_stride
    images = np.random.default_rng(0).standard_normal((2, 20, 1, 6, 5)).astype(np.float32)
    storage = whole.store(images)[whole.position(0, 0, (0, 2, 1)) :]
    np.testing.assert_array_equal(part.read(storage), images[:, :, :, 2:5, 1:5])
    assert part.elements <= storage.size and part.passing == 2 * 24 * 3 * 4
    np.testing.assert_array_equal(part.read(part.store(images[:, :, :, :3, :4])), images[:, :, :, :3, :4])
    assert Layout(2, 20, (1, 6, 5), "NCHWc", 8, within=(1, 6, 5)) == whole
    with pytest.raises(InvalidLayout):
        Layout(1, 8, (1, 6, 5), within=(1, 5, 5))
    with pytest.raises(InvalidLayout):
        Layout(1, 8, (1, 3, 5), before=(0, 1, 0), within=(1, 6, 5))
