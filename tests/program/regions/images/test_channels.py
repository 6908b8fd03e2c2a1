"""Channels of images: parts read where they lie, several images of a batch joined without copies, and turned to pay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import graphopt
from graphopt.program.regions.lower import lower
from kernels.target import host, x86_64_v3
from tests import support
from tests.program.regions.running import compare

TOLERANCE = 1e-4


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([8, *shape]).standard_normal(shape).astype(np.float32) / 8


# What reads the last 32 of 64 channels of a convolution's result.
READERS = [
    "y = Conv<pads = [1, 1, 1, 1]>(part, across)",
    "y = Conv(part, pixel)",
    "y = Conv<group = 32, pads = [1, 1, 0, 1]>(part, each)",
    "y = Conv<group = 2, pads = [1, 1, 1, 1]>(part, halves)",
    "y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(part)",
    "y = GlobalAveragePool(part)",
    "y = Mul(part, first)",
    "g = Sigmoid(part) p = Mul(first, g) y = Conv(p, pixel)",
    'y = Resize<mode = "nearest">(part, , scales)',
    "t = Transpose<perm = [0, 2, 3, 1]>(part) y = MatMul(t, square)",
    "c = Concat<axis = 1>(part, first) y = MaxPool<kernel_shape = [2, 2]>(c)",
    "r = Slice(part, three, nine, two) y = Conv(r, pixel)",
    "y = Identity(part)",
]
CUTS = {
    "split": "first, part = Split<axis = 1>(whole, sizes)",
    "slices": "first = Slice(whole, zero, half, one) part = Slice(whole, half, end, one)",
    "some": "first, between, part = Split<axis = 1>(whole, thirds)",
}
NUMBERS = {
    "sizes": np.array([32, 32]), "thirds": np.array([32, 16, 32]), "zero": np.array([0]), "half": np.array([32]),
    "end": np.array([2**60]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3]), "nine": np.array([9]),
}  # fmt: skip


@pytest.mark.parametrize(("cut", "batch"), [("split", 1), ("slices", 3), ("some", 2)])
@pytest.mark.parametrize("reader", READERS)
def test_channels_are_read_where_they_lie(reader: str, cut: str, batch: int) -> None:
    channels = 80 if cut == "some" else 64
    proto = support.model(
        f"""g (float[{batch},4,12,12] x) => (float[a,b,c,d] y) {{
            whole = Conv<pads = [1, 1, 1, 1]>(x, w) {CUTS[cut]} {reader}
        }}""",
        18, **NUMBERS, w=_weight(channels, 4, 3, 3), across=_weight(48, 32, 3, 3), pixel=_weight(48, 32, 1, 1),
        each=_weight(32, 1, 3, 3), halves=_weight(32, 16, 3, 3), square=_weight(32, 8),
        scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip
    lowered = compare(proto, tolerance=TOLERANCE)
    assert not {one.operator for region in lowered.regions for one in region.nodes} & {"Slice", "Split"}
    if reader.startswith("y = Conv"):
        assert all(region.nodes for region in lowered.regions[1:-1]), "nothing is copied but the input and the result"


@pytest.mark.parametrize("target", [host(), x86_64_v3()], ids=["host", "v3"])
@pytest.mark.parametrize("sizes", [(26, 38), (8, 56), (40, 20, 4)])
def test_parts_that_begin_within_a_block_are_right(sizes: tuple[int, ...], target: object) -> None:
    parts = [f"p{number}" for number in range(len(sizes))]
    body = " ".join(f"{part} = Conv<pads = [1, 1, 1, 1]>({part}x, w{part})" for part in parts)
    proto = support.model(
        f"""g (float[2,4,12,12] x) => (float[a,b,c,d] y) {{
            whole = Conv<pads = [1, 1, 1, 1]>(x, w) {", ".join(f"{part}x" for part in parts)} =
            Split<axis = 1>(whole, sizes) {body} y = Concat<axis = 1>({", ".join(parts)})
        }}""",
        18, sizes=np.array(sizes), w=_weight(sum(sizes), 4, 3, 3),
        **{f"w{part}": _weight(size, size, 3, 3) for part, size in zip(parts, sizes, strict=True)},
    )  # fmt: skip
    compare(proto, tolerance=TOLERANCE, target=target)


@pytest.mark.parametrize("batch", [1, 4])
def test_images_of_a_batch_are_joined_without_copies(batch: int) -> None:
    """A block of a DenseNet, where each result is concatenated again, and a pool behind it."""
    proto = support.model(
        f"""g (float[{batch},4,10,10] x) => (float[{batch},80,5,5] y) {{
            a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Conv<pads = [1, 1, 1, 1]>(a, u) c = Concat<axis = 1>(a, b)
            d = Conv<pads = [1, 1, 1, 1]>(c, v) e = Concat<axis = 1>(c, d) f = Conv(e, t) g = Concat<axis = 1>(e, f)
            y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(g)
        }}""",
        18, w=_weight(32, 4, 3, 3), u=_weight(16, 32, 3, 3), v=_weight(16, 48, 3, 3), t=_weight(16, 64, 1, 1),
    )  # fmt: skip
    lowered = compare(proto, tolerance=TOLERANCE)
    assert not any(one.operator == "Concat" for region in lowered.regions for one in region.nodes)


def test_a_range_of_batches_is_joined_and_split() -> None:
    proto = support.model(
        """g (float[n,64,10,10] x) => (float[n,32,10,10] y) {
            a = Conv<pads = [1, 1, 1, 1]>(x, w) p, q = Split<axis = 1, num_outputs = 2>(a)
            b = Conv<pads = [1, 1, 1, 1]>(p, u) c = Concat<axis = 1>(q, b) y = Conv<pads = [1, 1, 1, 1]>(c, v)
        }""",
        18, w=_weight(64, 64, 3, 3), u=_weight(32, 32, 3, 3), v=_weight(32, 64, 3, 3),
    )  # fmt: skip
    made, session = graphopt.compile(proto, dims={"n": (1, 5)}), support.session(proto)
    for batch in (1, 2, 5):
        x = np.random.default_rng(batch).standard_normal((batch, 64, 10, 10), np.float32)
        np.testing.assert_allclose(made.run(None, {"x": x})[0], session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)


def test_channels_that_lie_apart_are_turned_once_where_that_pays() -> None:
    """Two convolutions read 64 channels of 28 x 28 pixels as a caller gives them."""
    text = "g (float[1,64,28,28] x) => (float[a,b,c,d] y) { p = Conv<pads = [1, 1, 1, 1]>(x, w)"
    text += " q = Conv<pads = [1, 1, 1, 1]>(x, v) r = Add(p, q) y = MaxPool<kernel_shape = [2, 2]>(r) }"
    proto = support.model(text, 18, w=_weight(64, 64, 3, 3), v=_weight(64, 64, 3, 3))
    compare(proto, tolerance=TOLERANCE)
    regions = lower(ir.from_proto(proto), x86_64_v3()).regions
    assert [bool(region.nodes) for region in regions] == [False, True, True, True, False], "x and y are turned"


@pytest.mark.parametrize("channels", [1, 3, 21, 32])
@pytest.mark.parametrize(
    "tail", ['y = Resize<mode = "linear">(a, , up)', 'r = Resize<mode = "linear">(a, , up) y = Add(r, b)']
)
def test_a_resized_result_is_written_as_callers_read_it(tail: str, channels: int) -> None:
    proto = support.model(
        f"""g (float[2,4,9,9] x) => (float[2,{channels},22,18] y) {{
            a = Conv<pads = [1, 1, 1, 1]>(x, w) {tail}
        }}""",
        18, w=_weight(channels, 4, 3, 3), up=np.array([1, 1, 2.5, 2], np.float32), b=_weight(channels, 1, 1),
    )  # fmt: skip
    lowered = compare(proto, tolerance=TOLERANCE)
    if channels >= 8:
        assert len(lowered.regions) == 2
