"""Operators in tiles: what a range of the result needs, checked by running the tiles.

Data are small integers, so that sums are exact in any order and every bit must agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from graphopt.memory.tiling.locality import part
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.model.operators.parts import Range
from graphopt.model.save import to_proto
from tests import support
from tests.memory.tiling.tiles import assert_tiles_equal, tiled, weights

ANGLES = "float[1,6,2] c, float[1,6,2] s"


@pytest.mark.parametrize(
    ("dims", "heads", "axis"),
    [
        ([1, 4, 6, 4], 0, 1),
        ([1, 4, 6, 4], 0, 2),
        ([1, 6, 16], 4, 1),
        ([1, 6, 16], 4, 2),
    ],
)
def test_rotations_of_positions_and_heads(dims: list[int], heads: int, axis: int) -> None:
    more = f"<num_heads = {heads}>" if heads else ""
    text = f"g (float{dims} x, {ANGLES}) => (float{dims} y) {{ y = RotaryEmbedding{more}(x, c, s) }}"
    assert_same_by_reference(support.model(text, opset=23), axis)


def assert_same_by_reference(proto: onnx.ModelProto, axis: int) -> None:
    """Two tiles, run by ONNX's own evaluator."""
    done = tiled(load(proto), axis, 2)
    assert done is not None, "it can be tiled"
    draw = np.random.default_rng(0)
    shapes = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in proto.graph.input}
    feed = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    (one,), (other,) = (ReferenceEvaluator(model).run(None, feed) for model in (proto, to_proto(done)))
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(("rank", "shared"), [(4, 8), (4, 4), (3, 8), (3, 2)])
def test_heads_of_attention(rank: int, shared: int) -> None:
    """Heads of queries stay with those of the keys that they share, and with their part of the mask."""
    shapes = [[1, 8, 3, 4], [1, shared, 5, 4], [1, shared, 5, 2]]
    if rank == 3:
        shapes = [[1, rows, heads * size] for _, heads, rows, size in shapes]
    inputs = ", ".join(f"float{one} {name}" for one, name in zip(shapes, "qkv", strict=True))
    made = [1, 8, 3, 2] if rank == 4 else [1, 3, 16]
    counts = f"<q_num_heads = 8, kv_num_heads = {shared}>" if rank == 3 else ""
    text = f"g ({inputs}, float[8,3,5] m) => (float{made} y) {{ y = Attention{counts}(q, k, v, m) }}"
    assert_same_by_reference(support.model(text, opset=23), 1 if rank == 4 else 2)


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    """Size, kernel, stride, dilation, and zeros before and after, such that there is a result."""
    kernel, stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    size = draw(st.integers(4, 20))
    before, after = draw(st.integers(0, kernel - 1)), draw(st.integers(0, kernel - 1))
    assume(size + before + after >= (kernel - 1) * dilation + 1)
    return size, kernel, stride, dilation, before, after


@settings(max_examples=60, deadline=None)
@given(windows(), st.integers(2, 4))
def test_convolution(window: tuple[int, ...], count: int) -> None:
    size, kernel, stride, dilation, before, after = window
    out = (size + before + after - (kernel - 1) * dilation - 1) // stride + 1
    assume(out >= count)
    text = f"""g (float[2,3,{size},5] x) => (float[2,4,{out},5] y) {{
        y = Conv<kernel_shape = [{kernel}, 1], strides = [{stride}, 1], dilations = [{dilation}, 1],
                 pads = [{before}, 0, {after}, 0]>(x, w, b)
    }}"""
    proto = support.model(text, w=weights(4, 3, kernel, 1), b=weights(4))
    assume(tiled(load(proto), 2, count) is not None)  # a tile may see nothing but zeros
    assert_tiles_equal(proto, 2, count)


@settings(max_examples=60, deadline=None)
@given(windows(), st.integers(0, 1), st.integers(2, 4))
def test_transposed_convolution(window: tuple[int, ...], more: int, count: int) -> None:
    size, kernel, stride, dilation, before, after = window
    more = min(more, stride - 1)
    out = stride * (size - 1) + more + (kernel - 1) * dilation + 1 - before - after
    assume(out >= count)
    text = f"""g (float[1,3,{size},4] x) => (float[1,2,{out},4] y) {{
        y = ConvTranspose<kernel_shape = [{kernel}, 1], strides = [{stride}, 1], dilations = [{dilation}, 1],
                          pads = [{before}, 0, {after}, 0], output_padding = [{more}, 0]>(x, w)
    }}"""
    proto = support.model(text, w=weights(3, 2, kernel, 1))
    assert_tiles_equal(proto, 2, count)


@settings(max_examples=40, deadline=None)
@given(windows(), st.sampled_from(["MaxPool", "AveragePool"]), st.booleans(), st.integers(2, 3))
def test_pools(window: tuple[int, ...], kind: str, counting: bool, count: int) -> None:
    size, kernel, stride, _, before, after = window
    out = (size + before + after - kernel) // stride + 1
    assume(out >= count)
    extra = f", count_include_pad = {int(counting)}" if kind == "AveragePool" else ""
    text = f"""g (float[1,2,{size},3] x) => (float[1,2,{out},3] y) {{
        y = {kind}<kernel_shape = [{kernel}, 1], strides = [{stride}, 1], pads = [{before}, 0, {after}, 0]{extra}>(x)
    }}"""
    proto = support.model(text)
    assume(tiled(load(proto), 2, count) is not None)
    assert_tiles_equal(proto, 2, count)


def test_automatic_padding_is_made_explicit() -> None:
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        out = 5 if mode == "VALID" else 6
        text = f"""g (float[1,3,11,11] x) => (float[1,4,{out},{out}] y) {{
            y = Conv<auto_pad = "{mode}", strides = [2, 2]>(x, w)
        }}"""
        assert_tiles_equal(support.model(text, w=weights(4, 3, 3, 3)), 2, 3)


RESIZES = [
    ("nearest", "asymmetric", "floor", 3), ("nearest", "half_pixel", "round_prefer_floor", 2),
    ("nearest", "half_pixel", "round_prefer_ceil", 3), ("linear", "half_pixel", "floor", 2),
    ("linear", "pytorch_half_pixel", "floor", 4),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "positions", "rounding", "times"), RESIZES)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_enlarging_before_a_convolution(mode: str, positions: str, rounding: str, times: int, count: int) -> None:
    high = 9 * times
    text = f"""g (float[1,2,9,4] x) => (float[1,3,{high},4] y) {{
        e = Resize<mode = "{mode}", coordinate_transformation_mode = "{positions}", nearest_mode = "{rounding}">
            (x, , scales)
        y = Conv<pads = [1, 1, 1, 1]>(e, w)
    }}"""
    scales = np.array([1, 1, times, 1], np.float32)
    assert_tiles_equal(support.model(text, scales=scales, w=weights(3, 2, 3, 3)), 2, count)
    sized = text.replace("(x, , scales)", "(x, , , sizes)")
    sizes = np.array([1, 2, high, 4], np.int64)
    assert_tiles_equal(support.model(sized, sizes=sizes, w=weights(3, 2, 3, 3)), 2, count)


def test_positions_that_a_shift_would_round_otherwise_have_no_part() -> None:
    text = """g (float[1,2,9,4] x) => (float[1,2,27,4] y) {
        y = Resize<mode = "linear">(x, , scales)
    }"""
    assert tiled(load(support.model(text, scales=np.array([1, 1, 3, 1], np.float32))), 2, 3) is None


TWO = "float[4,12] a, float[4,12] b"
# text, axis of the result, initializers
CASES: dict[str, tuple[str, int, dict[str, np.ndarray]]] = {
    "broadcast": (f"g ({TWO}) => (float[4,12] y) {{ c = Add(a, r) y = Mul(c, b) }}", 1, {"r": weights(12)}),
    "broadcast from one": (f"g ({TWO}) => (float[4,12] y) {{ c = Add(a, r) y = Mul(c, b) }}", 0, {"r": weights(1, 12)}),
    "where and clip": (
        f"g ({TWO}) => (float[4,12] y) {{ l = Less(a, b) z = Where(l, a, r) y = Clip(z, low) }}", 1,
        {"r": weights(4, 1), "low": np.float32(-2)},
    ),
    "batch normalization": (
        "g (float[2,3,8,4] x) => (float[2,3,8,4] y) { y = BatchNormalization(x, s, b, m, v) }", 2,
        {"s": weights(3), "b": weights(3), "m": weights(3), "v": np.ones(3, np.float32)},
    ),
    "quantized": (
        "g (float[1,3,8,4] x) => (float[1,3,8,4] y) "
        "{ q = QuantizeLinear<axis = 1>(x, s, z) d = DequantizeLinear<axis = 1>(q, s, z) "
        "r = QuantizeLinear(d, t) y = DequantizeLinear(r, t) }", 2,
        {"t": np.float32(0.25), "s": np.array([0.5, 1, 2], np.float32), "z": np.array([0, 1, 2], np.uint8)},
    ),
    "concatenation": (f"g ({TWO}) => (float[8,12] y) {{ n = Neg(a) y = Concat<axis = 0>(n, b) }}", 1, {}),
    "split": (
        "g (float[4,12] x) => (float[2,12] y) { p, q = Split<axis = 0>(x, parts) y = Sub(p, q) }", 1,
        {"parts": np.array([2, 2])},
    ),
    "transposed": ("g (float[2,3,8] x) => (float[8,2,3] y) { y = Transpose<perm = [2, 0, 1]>(x) }", 0, {}),
    "reversed": ("g (float[6,3,2] x) => (float[2,3,6] y) { y = Transpose(x) }", 2, {}),
    "rows of a product": ("g (float[2,6,5] x) => (float[2,6,7] y) { y = MatMul(x, w) }", 1, {"w": weights(5, 7)}),
    "batches of a product": (
        "g (float[4,6,5] x, float[4,5,3] w) => (float[4,6,3] y) { y = MatMul(x, w) }", 0, {}
    ),
    "scores": (
        "g (float[1,2,8,4] q, float[1,2,4,6] t, float[1,2,6,4] k) => (float[1,2,8,4] y) "
        "{ s = MatMul(q, t) c = Clip(s, low) y = MatMul(c, k) }",
        2,
        {"low": np.float32(-5)},
    ),
    "gemm": ("g (float[8,5] x) => (float[8,3] y) { y = Gemm(x, w, c) }", 0, {"w": weights(5, 3), "c": weights(8, 1)}),
    "gemm of columns": ("g (float[5,8] x) => (float[8,3] y) { y = Gemm<transA = 1>(x, w) }", 0, {"w": weights(5, 3)}),
    "reshaped": (
        "g (float[1,8,6] x) => (float[1,8,2,3] y) { y = Reshape(x, s) }", 1, {"s": np.array([0, 0, 2, -1])}
    ),
    "rows of positions": (
        "g (float[1,24,2] x) => (float[1,24,2] y) { t = Transpose<perm = [0, 2, 1]>(x) "
        "i = Reshape<allowzero = 1>(t, s) c = Conv<pads = [1, 1, 1, 1], group = 2>(i, w) "
        "f = Reshape(c, u) y = Transpose<perm = [0, 2, 1]>(f) }", 1,
        {"s": np.array([1, 2, 8, 3]), "u": np.array([1, 2, 24]), "w": weights(2, 1, 3, 3)},
    ),
    "windows of rows": (
        "g (float[1,12,4] x) => (float[8,3,2] y) { n = Neg(x) v = Reshape(n, s) "
        "t = Transpose<perm = [0, 1, 3, 2, 4]>(v) y = Reshape(t, u) }", 0,
        {"s": np.array([1, 4, 3, 2, 2]), "u": np.array([8, 3, 2])},
    ),
    "positions of both": (
        "g (float[12,4] x) => (float[16,3] y) { n = Neg(x) y = Reshape(n, s) }", 0, {"s": np.array([16, 3])},
    ),
    "columns of a product": ("g (float[2,3,5] x) => (float[2,3,8] y) { y = MatMul(x, w) }", 2, {"w": weights(5, 8)}),
    "columns of a gemm": (
        "g (float[3,5] x) => (float[3,8] y) { y = Gemm<transB = 1>(x, w, c) }", 1, {"w": weights(8, 5), "c": weights(8)}
    ),
    "heads of products": (
        "g (float[1,3,5] x) => (float[1,3,8] y) { p = MatMul(x, w) h = Reshape(p, s) "
        "t = Transpose<perm = [0, 2, 1, 3]>(h) n = Neg(t) b = Transpose<perm = [0, 2, 1, 3]>(n) y = Reshape(b, u) }", 2,
        {"w": weights(5, 8), "s": np.array([1, 3, 4, 2]), "u": np.array([1, 3, 8])},
    ),
    "squeezed": (
        "g (float[1,8,6] x) => (float[8,1,6] y) { z = Squeeze(x, s) y = Unsqueeze(z, t) }", 0,
        {"s": np.array([0]), "t": np.array([1])},
    ),
    "flattened": ("g (float[4,3,2] x) => (float[4,6] y) { y = Flatten(x) }", 0, {}),
    "padded": (
        "g (float[1,2,9,4] x) => (float[1,3,10,4] y) { p = Pad(x, pads) y = Conv(p, w) }", 2,
        {"pads": np.array([0, 0, 1, 1, 0, 0, 2, 1]), "w": weights(3, 2, 3, 3)},
    ),
    "sliced elsewhere": (
        "g (float[6,8] x) => (float[3,8] y) { y = Slice(x, b, e, a, s) }", 1,
        {"b": np.array([0]), "e": np.array([6]), "a": np.array([0]), "s": np.array([2])},
    ),
    "every second from an offset": (
        "g (float[3,12] x) => (float[2,5] y) { n = Neg(x) y = Slice(n, b, e, a, s) }", 1,
        {"b": np.array([-11, 1]), "e": np.array([10, 99]), "a": np.array([1, 0]), "s": np.array([2, 1])},
    ),
    "reduced elsewhere": (
        "g (float[3,8,4] x) => (float[8,4] y) { y = ReduceSum<keepdims = 0>(x, a) }", 0, {"a": np.array([0])}
    ),
    "greatest of each row": ("g (float[8,6] x) => (int64[8] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }", 0, {}),
    "sums of magnitudes": ("g (float[3,8,4] x) => (float[8,4] y) { y = ReduceL1<axes = [0], keepdims = 0>(x) }", 0, {}),
    "running sums of rows": ("g (float[8,6] x) => (float[8,6] y) { y = CumSum(x, a) }", 0, {"a": np.array(1)}),
    "picked from each row": (
        "g (float[8,6] x) => (float[8,6] y) { n = Neg(x) y = GatherElements<axis = 1>(n, i) }", 0,
        {"i": np.tile(np.array([5, 0, 3, 3, 1, 2]), (8, 1))},
    ),
    "one-hot rows": ("g (float[8,6] x) => (float[8,6] y) { y = Hardmax(x) }", 0, {}),
    "global pool": ("g (float[4,3,2,2] x) => (float[4,3,1,1] y) { y = GlobalAveragePool(x) }", 0, {}),
    "gathered": (
        "g (int64[2,8] i) => (float[2,8,3] y) { k = Abs(i) y = Gather(t, k) }", 1, {"t": weights(9, 3)}
    ),
    "residual with a halo": (
        "g (float[1,3,12,5] x) => (float[1,3,12,5] y) "
        "{ a = Relu(x) b = Conv<pads = [1, 1, 1, 1]>(a, w) c = Conv<pads = [1, 1, 1, 1]>(b, w) y = Add(a, c) }", 2,
        {"w": weights(3, 3, 3, 3)},
    ),
    "several results": (
        "g (float[1,3,12,5] x) => (float[1,3,12,5] a, float[1,3,6,5] y) "
        "{ a = Relu(x) b = Conv<pads = [1, 1, 1, 1]>(a, w) "
        "y = MaxPool<kernel_shape = [2, 1], strides = [2, 1]>(b) }", 2,
        {"w": weights(3, 3, 3, 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_tiles_give_the_same_bits(name: str, count: int) -> None:
    text, axis, initializers = CASES[name]
    assert_tiles_equal(support.model(text, **initializers), axis, count)


WHOLE: Sequence[tuple[str, int, dict[str, np.ndarray]]] = [
    ("g (float[4,6] x) => (float[4,6] y) { y = Softmax(x) }", 1, {}),
    ("g (float[4,6] x) => (float[4,6] y) { y = LayerNormalization(x, s) }", 1, {"s": weights(6)}),
    ("g (float[1,4,6,6] x) => (float[1,4,6,6] y) { y = InstanceNormalization(x, s, s) }", 2, {"s": weights(4)}),
    ("g (float[4,6] x) => (float[4,1] y) { y = ReduceMax<axes = [1]>(x) }", 1, {}),
    ("g (float[2,6] x) => (float[4,6] y) { y = Concat<axis = 0>(x, x) }", 0, {}),
    ("g (float[4,6] x) => (float[4,2,3] y) { y = Reshape(x, s) }", 2, {"s": np.array([4, 2, 3])}),
    ("g (float[4,6] x) => (float[0,6] y) { y = Reshape<allowzero = 1>(x, s) }", 1, {"s": np.array([0, 6])}),
    ("g (float[4,6] x) => (float[4,6] y) { y = CumSum(x, a) }", 1, {"a": np.array(1)}),
    ("g (float[4,6] x) => (float[4,6] y) { y = RandomNormalLike(x) }", 1, {}),
    (
        "g (float[4,6] x) => (float[2,6] y) { y = GatherElements<axis = 1>(x, i) }",
        0,
        {"i": np.zeros((2, 6), np.int64)},
    ),
    ("g (float[8,6] x) => (float[8,2] y) { y, i = TopK(x, k) }", 0, {"k": np.array([2])}),
    ("g (float[4,6] x) => (float[4,6] y) { y = BatchNormalization(x, s, s, s, s) }", 1, {"s": weights(6)}),
]


@pytest.mark.parametrize(("text", "axis", "initializers"), WHOLE)
def test_what_needs_the_whole_axis_has_no_part(text: str, axis: int, initializers: dict[str, np.ndarray]) -> None:
    model = load(support.model(text, **initializers))
    assert part(Facts(model), next(iter(model.graph)), Range(axis, 0, 1)) is None


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """Convolutions, pools, enlarging one after the other, with sums and concatenations of what had the size before."""
    size, channels = draw(st.integers(12, 24)), 4
    values = [("x", size)]  # all have 4 channels
    lines: list[str] = []
    for number in range(draw(st.integers(2, 7))):
        source, rows = values[-1]
        kind = draw(st.sampled_from(["conv", "stride", "pool", "up", "relu", "add", "concat"]))
        made = f"v{number}"
        twin = next((name for name, other in values[1:] if other == rows and name != source), None)
        if kind == "stride" and rows >= 6:
            lines.append(f"{made} = Conv<pads = [1, 1, 1, 1], strides = [2, 1]>({source}, w)")
            rows = (rows - 1) // 2 + 1
        elif kind == "pool" and rows >= 6:
            lines.append(f"{made} = MaxPool<kernel_shape = [2, 1], strides = [2, 1]>({source})")
            rows //= 2
        elif kind == "up" and rows <= 24:
            lines.append(f"{made} = ConvTranspose<strides = [2, 1]>({source}, u)")
            rows *= 2
        elif kind == "add" and twin is not None:
            lines.append(f"{made} = Add({source}, {twin})")
        elif kind == "concat" and twin is not None:
            lines.append(f"{made}c = Concat<axis = 1>({source}, {twin}) {made} = Conv({made}c, j)")
        elif kind == "relu":
            lines.append(f"{made} = Clip({source}, low, high)")
        else:
            lines.append(f"{made}s = Conv<pads = [1, 1, 1, 1]>({source}, w) {made} = Clip({made}s, low, high)")
        values.append((made, rows))
    last = values[-1]
    text = (
        f"""g (float[1,{channels},{size},3] x) => (float[1,{channels},{last[1]},3] {last[0]}) {{ {" ".join(lines)} }}"""
    )
    signs = np.sign(weights(channels, 2 * channels, 3, 3))
    return support.model(
        text, w=signs[:, :channels], u=signs[:, :channels, :2, :1], j=signs[:, :, :1, :1], low=np.float32(-50),
        high=np.float32(50),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(networks(), st.integers(2, 3))
def test_networks_with_branches_give_the_same_bits(proto: onnx.ModelProto, count: int) -> None:
    assert_tiles_equal(proto, 2, count)
