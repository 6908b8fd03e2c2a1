"""Small graphs of images: every operator, and what joins it, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from kernels.target import host, x86_64_v3
from tests import support
from tests.program.regions.running import compare

# Sums of a few hundred products, and Winograd's transforms, which round about ten times as much as a sum does.
TOLERANCE = 1e-4


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(np.float32) / 4


def test_a_residual_block_is_two_regions() -> None:
    proto = support.model(
        """g (float[1,16,9,7] x) => (float[1,16,9,7] y) {
            a = Conv<pads = [1, 1, 1, 1]>(x, w, b) c = Relu(a)
            d = Conv<pads = [1, 1, 1, 1]>(c, v) e = Add(d, c) y = Relu(e)
        }""",
        18, w=_weight(16, 16, 3, 3), b=_weight(16), v=_weight(16, 16, 3, 3),
    )  # fmt: skip
    for target in (host(), x86_64_v3()):  # some cores also copy the image into blocks, and back
        regions = compare(proto, tolerance=TOLERANCE, target=target).regions
        computed = [[one.operator for one in region.nodes] for region in regions]
        assert [sorted(one) for one in computed if "Conv" in one] == [["Conv", "Relu"], ["Add", "Conv", "Relu"]]
        assert not any({"Add", "Relu"} & set(one) for one in computed if "Conv" not in one)


def test_what_is_concatenated_is_written_in_its_place() -> None:
    proto = support.model(
        """g (float[1,16,9,7] x) => (float[1,64,9,7] y) {
            a = Conv(x, p) b = Conv<pads = [1, 1, 1, 1]>(a, w) c = Concat<axis = 1>(a, b) d = Conv(c, q)
            e = Concat<axis = 1>(a, b, d) y = Conv(e, r)
        }""",
        18, p=_weight(16, 16, 1, 1), w=_weight(16, 16, 3, 3), q=_weight(32, 32, 1, 1), r=_weight(64, 64, 1, 1),
    )  # fmt: skip
    lowered = compare(proto, tolerance=TOLERANCE)
    assert len(lowered.regions) == 4  # the convolutions
    assert [(one.name, one.size) for one in lowered.temporaries] == [("joined:e", 64 * 9 * 7 * 4)]


def test_what_no_template_takes_is_written_as_loops() -> None:
    cut = support.model(
        "g (float[1,8,5,5] x) => (float[1,8,6,6] y) {"
        " y = ConvTranspose<group = 2, strides = [2, 2], pads = [2, 2, 2, 2]>(x, w) }",
        18, w=_weight(8, 4, 2, 2),
    )  # fmt: skip
    compare(cut, tolerance=TOLERANCE)
    free = support.model("g (float[1,8,5,5] x, float[8,8,3,3] w) => (float[1,8,3,3] y) { y = Conv(x, w) }", 18)
    compare(free, tolerance=TOLERANCE)
    places = support.model(
        "g (float[1,8,5,5] x) => (float[1,8,3,3] y, int64[1,8,3,3] i) { y, i = MaxPool<kernel_shape = [3, 3]>(x) }", 18
    )
    compare(places, tolerance=TOLERANCE)


NETWORKS = [
    "g (float[2,3,9,7] x) => (float[2,24,9,7] y) { y = Conv<pads = [1, 1, 1, 1]>(x, w3) }",
    "g (float[2,3,9,7] x) => (float[2,20,5,4] y) { a = Conv<auto_pad = \"SAME_UPPER\">(x, w3)"
    " y = Conv<auto_pad = \"SAME_LOWER\", strides = [2, 2]>(a, w24) }",
    "g (float[1,3,9,7] x) => (float[1,24,1,1] y) { a = Conv(x, w3) y = GlobalAveragePool(a) }",
    "g (float[2,3,9,7] x) => (float[2,24] y) { a = Conv(x, w3) b = ReduceMean<keepdims = 0>(a, axes) y = Relu(b) }",
    "g (float[2,3,9,7] x) => (float[2,5] y) { a = Conv(x, w3) b = GlobalMaxPool(a) c = Flatten(b) y = Gemm(c, g) }",
    "g (float[2,3,9,7] x) => (float[2,840] y) { a = Conv(x, w3) y = Flatten(a) }",
    "g (float[2,3,9,7] x) => (float[2,24,3,2] y) { a = Conv(x, w3)"
    " y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 0>(a) }",
    "g (float[2,3,9,7] x) => (float[2,24,4,3] y) { a = Conv(x, w3)"
    " y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(a) }",
    "g (float[2,3,9,7] x) => (float[2,24,7,5] y) { a = Conv(x, w3) y = AveragePool<kernel_shape = [3, 3],"
    " pads = [1, 1, 1, 1], count_include_pad = 1>(a) }",
    "g (float[1,3,9,7] x) => (float[1,3,7,5] y) { y = AveragePool<kernel_shape = [3, 3]>(x) }",
    "g (float[2,3,9,7] x) => (float[2,24,7,5] y) { a = Conv(x, w3) b = Exp(a) c = Add(b, a) d = Neg(c)"
    " y = Conv<group = 24, pads = [1, 1, 1, 1]>(d, depth) }",
    "g (float[2,3,9,7] x) => (float[2,24,7,5] y) { a = Conv(x, w3) s = GlobalAveragePool(a) t = Conv(s, p)"
    " u = HardSigmoid(t) m = Mul(a, u) y = Add(m, a) }",
    "g (float[2,3,9,7] x) => (float[2,24,7,5] y, float[2,24,7,5] z) { y = Conv(x, w3) z = HardSwish(y) }",
    "g (float[2,3,9,7] x) => (float[2,44,7,5] y) { a = Conv(x, w3) b = Conv<pads = [1,1,1,1]>(a, w24)"
    " c = Concat<axis = 1>(a, b) y = Relu(c) }",
    "g (float[2,3,9,7] x) => (float[2,7,5,24] y) { a = Conv(x, w3) b = Relu(a) c = Add(a, b)"
    " y = Transpose<perm = [0, 2, 3, 1]>(c) }",
    "g (float[2,3,9,7] x) => (float[2,24,7,5] y) { a = Conv(x, w3) b = BatchNormalization(a, n, n, n, vv)"
    " c = Add(a, b) d = BatchNormalization(c, n, n, n, vv) y = Relu(d) }",
    "g (float[2,3,9,7] x) => (bool[2,24,7,5] m, float[2,24,7,5] y) { a = Conv(x, w3) b = Relu(a)"
    " m = Greater(b, c24) k = Not(m) e = Exp(a) y = Where(k, e, c24) }",
    "g (float[2,3,9,7] x, float[2,24,7,5] z) => (float[2,24,7,5] y) { a = Conv(x, w3) b = PRelu(a, c24)"
    " c = PRelu(b, z) d = GlobalMaxPool(c) e = PRelu(c, d) y = MaxPool<kernel_shape = [1, 1]>(e) }",
    "g (float[2,24,7] x) => (float[2,20,5] y) { y = Conv<dilations = [2], pads = [1, 1]>(x, one) }",
    "g (float[1,24,5,6,7] x) => (float[1,20,3,4,5] y) { y = Conv(x, three) }",
    "g (float[1,24,5,6] x) => (float[1,12,5,6] y) { y = Conv<group = 4, pads = [1, 1, 1, 1]>(x, grouped) }",
    "g (float[1,24,5,6] x) => (float[1,8,11,13] y) { y = ConvTranspose<strides = [2, 2]>(x, up, b8) }",
    "g (float[2,3,9,7] x) => (float[2,24,14,10] y) { a = Conv(x, w3) b = Resize(a, none, scales) y = Relu(b) }",
    "g (float[2,3,9,7] x) => (float[2,3,5,11] y) { y = Resize<mode = \"linear\">(x, none, none, sizes) }",
    "g (float[2,3,9,7] x) => (float[2,24,9,9] y) { a = Conv(x, w3) b = Relu(a) y = Pad(b, pads) }",
    "g (float[2,3,9,7] x) => (float[2,24,6,2] y) { a = Conv(x, w3) b = Relu(a)"
    " y = Slice(b, starts, stops, axes, steps) }",
    "g (float[2,3,9,7] x) => (float[2,3,11,11] y) { a = Pad(x, pads, filler) y = Neg(a) }",
    "g (float[1,24,5,6] x) => (float[1,8,10,12] y) {"
    " y = ConvTranspose<strides = [2, 2], auto_pad = \"SAME_UPPER\">(x, up, b8) }",
    "g (float[1,24,5,6] x) => (float[1,8,10,12] y) {"
    " y = ConvTranspose<strides = [2, 2], output_padding = [1, 1], pads = [1, 1, 1, 1]>(x, up) }",
    "g (float[2,24,5,6] x) => (float[2,16,10,12] y) { a = ConvTranspose<strides = [2, 2]>(x, up2, b16)"
    " b = BatchNormalization(a, b16, b16, b16, v16) c = Sigmoid(b) d = Neg(c) e = Add(c, d)"
    " y = Conv<group = 16>(e, depth16) }",
    "g (float[2,24,5,6] x) => (float[2,16,15,12] y) {"
    " y = ConvTranspose<strides = [3, 2], pads = [1, 1, 1, 1], output_padding = [2, 1]>(x, up16, b16) }",
    "g (float[2,24,5,6] x) => (float[2,16,11,12] y) { y = ConvTranspose<strides = [2, 2], dilations = [2, 1],"
    " pads = [1, 0, 1, 1]>(x, up16, b16) }",
    "g (float[2,24,5,6] x) => (float[2,16,5,12] y) {"
    " y = ConvTranspose<strides = [1, 2], pads = [1, 0, 1, 1]>(x, up16) }",
    "g (float[2,24,6] x) => (float[2,20,18] y) { y = ConvTranspose<strides = [3]>(x, up1d) }",
    "g (float[2,24,3,5,6] x) => (float[2,16,3,10,12] y) { a = ConvTranspose<strides = [1, 2, 2]>(x, upplanes, b16)"
    " b = Sigmoid(a) c = ConvTranspose<strides = [1, 2, 2]>(x, upplanes) y = Add(b, c) }",
    "g (float[1,24,3,5,6] x) => (float[1,8,2,10,12] y) {"
    " y = ConvTranspose<strides = [1, 2, 2], pads = [0, 0, 0, 1, 0, 0]>(x, upplanes8, b8) }",
    "g (float[1,24,3,5,6] x) => (float[1,8,2,10,12] y) {"
    " y = ConvTranspose<strides = [1, 2, 2], pads = [1, 0, 0, 0, 0, 0]>(x, upplanes8, b8) }",
    "g (float[1,24,5,6] x) => (float[1,24,8,9] y) {"
    " y = ConvTranspose<group = 4, strides = [2, 2], pads = [2, 2, 1, 2]>(x, upgroups) }",
    "g (float[2,24,3,4,5] x) => (float[2,16,6,8,10] y) { a = ConvTranspose<strides = [2, 2, 2],"
    " pads = [1, 1, 1, 1, 1, 1], output_padding = [1, 1, 1]>(x, upvolumes, b16) y = Relu(a) }",
    "g (float[1,24,3,4,5] x) => (float[1,16,9,4,10] y) {"
    " y = ConvTranspose<strides = [3, 1, 2], pads = [0, 1, 1, 0, 1, 0]>(x, upvolumes) }",
    "g (float[2,24,5,6] x) => (float[2,1,10,12] y) { a = ConvTranspose<strides = [2, 2]>(x, upone) y = Sigmoid(a) }",
]  # fmt: skip


def network(text: str) -> onnx.ModelProto:
    return support.model(
        text, 18, w3=_weight(24, 3, 3, 3), w24=_weight(20, 24, 3, 3), axes=np.array([2, 3]), g=_weight(24, 5),
        depth=_weight(24, 1, 3, 3), p=_weight(24, 24, 1, 1), n=_weight(24), vv=np.abs(_weight(24)) + 1,
        one=_weight(20, 24, 2), three=_weight(20, 24, 3, 3, 3), grouped=_weight(12, 6, 3, 3), up=_weight(24, 8, 3, 3),
        b8=_weight(8), c24=_weight(24, 1, 1), up2=_weight(24, 16, 2, 2), up16=_weight(24, 16, 3, 3), b16=_weight(16),
        v16=np.abs(_weight(16)) + 1, depth16=_weight(16, 1, 1, 1), up1d=_weight(24, 20, 3),
        upgroups=_weight(24, 6, 3, 3), upvolumes=_weight(24, 16, 3, 3, 3), upone=_weight(24, 1, 2, 2),
        upplanes=_weight(24, 16, 1, 2, 2),
        upplanes8=_weight(24, 8, 1, 2, 2), none=np.array([], np.float32), scales=np.array([1, 1, 2, 2], np.float32),
        sizes=np.array([2, 3, 5, 11]), pads=np.array([0, 0, 2, 1, 0, 0, 0, 3]), starts=np.array([1, -4]),
        stops=np.array([99, 4]), steps=np.array([1, 2]), filler=np.float32(2.5),
    )  # fmt: skip


@pytest.mark.parametrize("text", NETWORKS)
def test_operators_on_images(text: str) -> None:
    compare(network(text), tolerance=TOLERANCE)
