"""Ranges of sizes of operators that are loops of their own, of products of bytes and by codes of few bits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.errors import NotLowered
from graphopt.flows.asked import GROWTH, optimized
from graphopt.model.load import load
from tests import support

_random = np.random.default_rng(0)
BYTES = _random.integers(-128, 128, (16, 24), np.int8)
IN_BITS = "y = com.microsoft.MatMulNBits<K = 32, N = 24, bits = 4, block_size = 16>(x, b, s)"

LOOPS = {
    "dynamic quantization": (
        "g (float[batch,16] x) => (float[batch,24] y) { "
        "q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z) f = Cast<to = 1>(p) y = Mul(f, s) }",
        {"w": BYTES},
    ),
    "dynamic quantization of many elements": (
        "g (float[batch,40,600] x) => (float[batch,40,600] y) { "
        "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }",
        {},
    ),
    "dynamic quantization of a line": (
        "g (float[batch] x) => (float[batch] y) { q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }",
        {},
    ),
    "products of integers": (
        "g (int64[batch,40] x, int32[3,40] z) => (int64[batch,24] y, int32[3,batch] q) { y = MatMul(x, wide) "
        "n = Cast<to = 6>(x) t = Transpose(n) q = MatMul(z, t) }",
        {"wide": _random.integers(-9, 9, (40, 24))},
    ),
    "attention of bytes": (
        "g (uint8[3,batch,40] x) => (uint8[3,batch,batch] p, int32[3,batch,40] y) { t = Transpose<perm = [0, 2, 1]>(x) "
        "p = QLinearMatMul(x, small, mid, t, small, mid, large, mid) y = MatMulInteger(p, x, mid, mid) }",
        {"small": np.float32(0.1), "large": np.float32(30), "mid": np.uint8(120)},
    ),
    "signed bytes, with what was there before": (
        "g (float[batch,40] x, float[batch,24] r) => (float[batch,24] y) { "
        "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, s, z) p = MatMul(d, v) "
        "o = QuantizeLinear(p, s, z) e = DequantizeLinear(o, s, z) h = QuantizeLinear(r, s, z) "
        "k = DequantizeLinear(h, s, z) a = Add(e, k) f = QuantizeLinear(a, s, z) y = DequantizeLinear(f, s, z) }",
        {"w": _random.integers(-9, 9, (40, 24)).astype(np.int8), "s": np.float32(0.05), "z": np.int8(3)},
    ),
    "bytes that lie apart": (
        "g (uint8[batch,16] x, float[batch,24] m) => (float[batch,24] y) { "
        "p = MatMulInteger(x, w) f = Cast<to = 1>(p) y = Add(f, m) }",
        {"w": BYTES},
    ),
    "bytes of both operands": (
        "g (uint8[batch,6,16] a, uint8[batch,16,5] b) => (int32[batch,6,5] y) { y = MatMulInteger(a, b) }",
        {},
    ),
    "rows that lie apart, by one matrix": (
        "g (float[batch,8,5] x) => (float[batch,5,6] y) { t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(t, w) }",
        {"w": _random.random((8, 6), np.float32)},
    ),
    "running sums": (
        "g (float[batch,5] x) => (float[batch,5] y, float[batch,5] z) { y = CumSum(x, across) z = CumSum(x, down) }",
        {"across": np.array(1), "down": np.array(0)},
    ),
    "a matrix for each of many, and a few rows of any number of them": (
        "g (float[batch,2,6,8] x) => (float[batch,2,6,5] y) { "
        "n = Shape<start = 0, end = 1>(x) all = Concat<axis = 0>(n, ones) ws = Expand(w, all) y = MatMul(x, ws) }",
        {"w": _random.random((1, 2, 8, 5), np.float32), "ones": np.array([1, 1, 1])},
    ),
    "places that a constant gives, its first rows and columns": (
        "g (float[batch,9] x) => (float[batch,batch] y) { "
        "n = Shape<start = 0, end = 1>(x) both = Concat<axis = 0>(n, n) some = Slice(places, none, both) "
        "y = GatherElements<axis = 1>(x, some) }",
        {"places": _random.integers(0, 9, (21, 21)), "none": np.array([0, 0])},
    ),
    "the last columns of a constant, and the first rows": (
        "g (float[batch,9] x) => (float[batch,batch] y) { "
        "n = Shape<start = 0, end = 1>(x) from = Sub(many, n) begin = Concat<axis = 0>(none, from) "
        "end = Concat<axis = 0>(n, many) some = Slice(biases, begin, end) t = Transpose(x) p = MatMul(x, t) "
        "y = Add(p, some) }",
        {"biases": _random.random((30, 30), np.float32), "none": np.array([0]), "many": np.array([30])},
    ),
    "one of many": (
        "g (int64[batch] x) => (float[batch,4] y) { y = OneHot(x, depth, values) }",
        {"depth": np.array([4]), "values": np.array([0, 1], np.float32)},
    ),
    "the largest": (
        "g (float[batch,9] x) => (float[batch,3] v, int64[batch,3] i) { v, i = TopK(x, k) }",
        {"k": np.array([3])},
    ),
    "the first of the largest, of rows, of columns and along a free dim": (
        "g (float[batch,9] x) => (float[batch,9] y, float[batch,9] z, float[9,batch] v, float[9,batch] w) { "
        "y = Hardmax(x) z = Hardmax<axis = 0>(x) t = Transpose(x) v = Hardmax(t) w = Hardmax<axis = 0>(t) }",
        {},
    ),
    "the largest along other axes": (
        "g (float[batch,5,20] x) => (float[batch,3,20] v, int64[batch,3,20] i, float[5,3,batch] w, int64[5,3,batch] j) "
        "{ v, i = TopK<axis = 1>(x, k) t = Transpose<perm = [1, 2, 0]>(x) w, j = TopK<axis = 1, largest = 0>(t, k) }",
        {"k": np.array([3])},
    ),
    "short floats": (
        "g (float16[batch,3,8] x) => (float16[batch,3,8] y) { y = LayerNormalization(x, scale) }",
        {"scale": np.ones(8, np.float16)},
    ),
    "frames": (
        "g (float[batch,64,1] x) => (float[batch,7,9,2] y) { y = STFT(x, step, , length) }",
        {"step": np.array(8), "length": np.array(16)},
    ),
    "places along a free dim": (
        "g (float[batch,4] x, int64[batch,4] i) => (float[batch,4] y) { y = GatherElements<axis = 1>(x, i) }",
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(LOOPS))
def test_one_program_of_every_batch(kind: str) -> None:
    text, kept = LOOPS[kind]
    made = graphopt.compile(support.model(text, 18, **kept), dims={"batch": (1, 21)}, threads=1)
    assert not made.fallback and len(made.sizes) == 1
    assert {"batch": 1} in made.verification.sizes and {"batch": 21} in made.verification.sizes


def test_codes_of_few_bits_by_any_number_of_rows() -> None:
    codes = _random.integers(0, 256, (24, 2, 8), np.uint8)
    scales = _random.random((24, 2), np.float32)
    text = f"g (float[batch,32] x) => (float[batch,24] y) {{ {IN_BITS} }}"
    proto = support.model(text, 21, 10, b=codes, s=scales)
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    made = graphopt.compile(proto, dims={"batch": (1, 40)}, threads=1)
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(24, 2, 16).astype(np.float32)
    weights = ((nibbles - 8) * scales[:, :, None]).reshape(24, 32).T
    for batch in (1, 2, 7, 40):
        x = _random.standard_normal((batch, 32)).astype(np.float32)
        np.testing.assert_allclose(made.run(None, {"x": x})[0], x @ weights, rtol=0, atol=32 * 2.0**-20)


def test_frames_of_any_length() -> None:
    """As a speech recognizer has them: how many there are is a quotient of the length."""
    text = """g (float[2,s] x) => (float[2,t,5] y) {
        p = Pad<mode = "reflect">(x, around) f = STFT(p, step, window) e = ReduceSumSquare<keepdims = 0>(f, last)
        y = MatMul(e, bank)
    }"""
    kept = {"step": np.array(6), "window": np.hanning(20).astype(np.float32), "last": np.array([-1]),
            "around": np.array([0, 10, 0, 10]), "bank": _random.random((11, 5), np.float32)}  # fmt: skip
    made = graphopt.compile(support.model(text, 18, **kept), dims={"s": (20, 90)}, threads=1)
    for length in (20, 25, 26, 55, 90):
        x = _random.standard_normal((2, length)).astype(np.float32)
        padded = np.pad(x.astype(float), ((0, 0), (10, 10)), mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, 20, axis=1)[:, ::6] * kept["window"].astype(float)
        exact = np.square(np.abs(np.fft.rfft(frames))) @ kept["bank"].astype(float)
        (mine,) = made.run(None, {"x": x})
        assert mine.shape == exact.shape == (2, length // 6 + 1, 5)
        np.testing.assert_allclose(mine, exact, rtol=2e-6)  # energies are positive: nothing cancels


def test_an_audio_frontend_of_any_length_emphasises_and_masks() -> None:
    """The first difference, of which the first sample is itself, and frames behind a length are zeros."""
    text = """g (float[1,s] x, int64[1] lengths) => (float[1,t,4] y) {
        first = Slice(x, zero, one, one) rest = Slice(x, one, all, one) before = Slice(x, zero, minus, one)
        part = Mul(before, share) less = Sub(rest, part) sharp = Concat<axis = 1>(first, less)
        row = Unsqueeze(sharp, one) frames = Conv<strides = [8]>(row, bank) y0 = Transpose<perm = [0, 2, 1]>(frames)
        d = Shape<start = 1, end = 2>(y0) n = Squeeze(d) places = Range(none, n, single) f = Div(lengths, hop)
        e = Unsqueeze(f, one) kept = Less(places, e) k = Unsqueeze(kept, two) y = Where(k, y0, silence)
    }"""
    bank = _random.standard_normal((4, 1, 16)).astype(np.float32)
    kept = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "minus": np.array([-1]),
            "all": np.array([2**63 - 1]), "share": np.float32(0.75), "bank": bank, "none": np.array(0),
            "single": np.array(1), "hop": np.array(8), "silence": np.float32(0)}  # fmt: skip
    made = graphopt.compile(support.model(text, 18, **kept), dims={"s": (16, 90)}, threads=1)
    for length, used in ((16, 8), (23, 23), (24, 24), (61, 40), (90, 90)):
        x = _random.standard_normal((1, length)).astype(np.float32)
        sharp = np.concatenate([x[0, :1], x[0, 1:] - 0.75 * x[0, :-1]])
        exact = np.lib.stride_tricks.sliding_window_view(sharp, 16)[::8] @ bank[:, 0].T
        exact[used // 8 :] = 0
        (mine,) = made.run(None, {"x": x, "lengths": np.array([used])})
        np.testing.assert_allclose(mine[0], exact, rtol=0, atol=16 * 8 * 2.0**-23)


def test_a_dim_whose_name_is_no_identifier() -> None:
    """As one exporter counts the dims that it knows nothing of; the larger number begins with the smaller one."""
    model = support.model("g (float[n,2,m] x) => (float[n,2,k] y) { y = MaxPool<kernel_shape=[3], strides=[2]>(x) }")
    for axis, name in ((0, "Dim.1"), (2, "Dim.10")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    made = graphopt.compile(model, dims={"Dim.1": (1, 3), "Dim.10": (5, 40)}, threads=1)
    for batch, length in ((1, 5), (2, 12), (3, 40)):
        x = _random.standard_normal((batch, 2, length)).astype(np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(x, 3, axis=2)[:, :, ::2]
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], windows.max(axis=-1))


def test_a_number_that_no_polynomial_gives_is_refused() -> None:
    pool = "MaxPool<kernel_shape = [2], strides = [3], ceil_mode = 1>"
    text = f"g (float[2,3,batch] x) => (float[2,3,half] y) {{ y = {pool}(x) }}"
    words = r"MaxPool y cannot be of any size .*give the sizes that you need one by one"
    with pytest.raises(graphopt.GraphoptError, match=words):
        graphopt.compile(support.model(text, 23, 10), dims={"batch": (2, 9)})


def test_constants_are_written_out_whatever_size_they_have() -> None:
    """Where one size has a constant and another one computes it, equal ones become one at the first alone."""
    text = """g (float[3,700] x) => (float[3,700] y) {
        shape = Shape(x) r = Expand(rows, shape) c = Expand(columns, shape) both = Concat<axis = -1>(r, c)
        i = Reshape(both, pairs) y = GatherND(x, i)
    }"""
    numbers = {"rows": np.arange(3)[:, None], "columns": np.arange(700)[None], "pairs": np.array([3, 700, 2])}
    model = load(support.model(text, 18, **numbers))
    left = [[node.op_type for node in made.graph] for made in (optimized(model), optimized(model, growth=GROWTH))]
    assert left == [["Expand", "Expand", "Concat", "Reshape", "GatherND"], ["GatherND"]]


def test_small_results_keep_the_steps_of_large_ones() -> None:
    """Three products of 21 rows would become one, those of 40 rows would not."""
    products = "a = MatMul(x, u) b = MatMul(x, v) c = MatMul(x, w) m = Mul(a, b) y = Add(m, c)"
    weights = {name: _random.random((16, 64), np.float32) for name in "uvw"}
    text = f"g (float[batch,16] x) => (float[batch,64] y) {{ {products} }}"
    made = graphopt.compile(support.model(text, 18, **weights), dims={"batch": (1, 40)}, threads=1)
    assert {"batch": 40} in made.verification.sizes


BOUNDS = {name: np.array([number], np.int64) for name, number in (
    ("zero", 0), ("three", 3), ("eight", 8), ("axis", 1), ("last", -8), ("less", -3), ("end", 2**63 - 1))}  # fmt: skip
# What a Slice's bounds are, and the least size from which on something is left.
CUTS = {
    "first": ("zero, eight", 1),
    "last": ("last, end", 1),
    "middle": ("three, eight", 4),
    "but_last": ("zero, less", 4),
}


@pytest.mark.parametrize("name", sorted(CUTS))
def test_a_slice_is_clamped_at_sizes_below_its_bounds(name: str) -> None:
    bounds, least = CUTS[name]
    text = f"""g (float[b,s,4] x) => (float[b,t,4] y, float[b,s,t] z) {{
        a = Relu(x) c = Slice(a, {bounds}, axis) y = Exp(c) d = Transpose<perm = [0, 2, 1]>(c) z = MatMul(x, d)
    }}"""
    model = support.model(text, 17, **BOUNDS)
    made, session = graphopt.compile(model, dims={"b": (1, 3), "s": (least, 21)}), support.session(model)
    for sizes in ((2, least), (3, 7), (1, 8), (3, 9), (2, 21)):
        x = np.random.default_rng(0).standard_normal((*sizes, 4), np.float32)
        for mine, its in zip(made.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-5)


def test_an_operator_without_a_kernel_at_any_size_is_named_as_such() -> None:
    text = """g (float[s,4] x) => (float[s,4] y, string[s,4] t) {
        a = Exp(x) y = Relu(a) t = Cast<to = 8>(y)
    }"""
    with pytest.raises(
        NotLowered, match=r"no kernel yet .*so this model has no program for a range of sizes; in Python"
    ):
        graphopt.compile(support.model(text, 17), dims={"s": (1, 21)})


def test_a_slice_that_leaves_nothing_is_named() -> None:
    text = "g (float[2,s,4] x) => (float[2,t,4] y) { a = Relu(x) c = Slice(a, zero, less, axis) y = Exp(c) }"
    with pytest.raises(NotLowered, match="Slice 'c' leaves nothing up to s=3, which a range from 4 on does without"):
        graphopt.compile(support.model(text, 17, **BOUNDS), dims={"s": (1, 21)})


CONTROL = {
    "rows from the last one": """g (float[b,4] h, float[b,s,4] x) => (float[b,4] last, float[s,b,4] y) {
        last, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], body = each
            (float[b,4] a, float[b,4] r) => (float[b,4] c, float[b,4] d) { t = MatMul(a, v) u = Add(t, r) c = Tanh(u)
            d = Mul(c, r) }>(h, x)
    }""",
    "as many trips as rows": """g (float[b,4] h, float[s,4] x) => (float[b,4] last, float[s,b,4] y) {
        shape = Shape(x) n = Gather(shape, none)
        last, y = Loop<body = each (int64 i, bool on, float[b,4] a) => (bool go, float[b,4] c, float[b,4] d) {
            go = Identity(on) r = Gather(x, i) t = MatMul(a, v) u = Add(t, r) c = Tanh(u) d = Mul(c, r) }>(n, , h)
    }""",
    "one of two bodies": """g (float[b,4] h, float[s,4] x) => (float[b,4] last, float[s,4] y) {
        sum = ReduceSum<keepdims = 0>(x) c = Greater(sum, zeros)
        last, y = If(c)<then_branch = yes () => (float[b,4] a, float[s,4] d) {
            t = MatMul(h, v) u = Tanh(t) w = MatMul(u, v) a = Softmax(w) k = MatMul(x, v) d = Softmax(k) },
        else_branch = no () => (float[b,4] a, float[s,4] d) {
            t = MatMul(h, v) a = Softmax(t) k = Tanh(x) l = MatMul(k, v) d = Softmax(l) }>
    }""",
}


@pytest.mark.parametrize("kind", sorted(CONTROL))
def test_control_flow_of_any_size(kind: str) -> None:
    """With an odd and an even number of iterations, for which a state ends in one place or the other.

    The recurrent weights are orthogonal, so that no iteration magnifies the rounding of those before it.
    """
    random = np.random.default_rng(5)
    recurrent = np.linalg.qr(random.standard_normal((4, 4)))[0].astype("f4")
    weights = {"v": recurrent, "none": np.array(0), "zeros": np.float32(0)}
    model = support.model(CONTROL[kind], 17, **weights)
    made, session = graphopt.compile(model, dims={"b": (1, 3), "s": (1, 30)}), support.session(model)
    shapes = {one.name: [str(dim) for dim in one.shape] for one in made.get_inputs()}
    for sizes in ({"b": 1, "s": 1}, {"b": 2, "s": 7}, {"b": 3, "s": 30}, {"b": 3, "s": 12}):
        feeds = {
            name: random.standard_normal([sizes[dim] if dim in sizes else int(dim) for dim in shape]).astype("f4")
            for name, shape in shapes.items()
        }
        for mine, its in zip(made.run(None, feeds), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-5)


NESTED = {
    "a condition in a loop": """g (float[2,4] h, float[s,4] x) => (float[2,4] last, float[s,2,4] y) {
        shape = Shape(x) n = Gather(shape, none)
        last, y = Loop<body = each (int64 i, bool on, float[2,4] a) => (bool go, float[2,4] c, float[2,4] d) {
            go = Identity(on) r = Gather(x, i) sum = ReduceSum<keepdims = 0>(r) more = Greater(sum, zeros)
            c, d = If(more)<then_branch = yes () => (float[2,4] e, float[2,4] f) {
                all = MatMul(x, v) least = ReduceMin<axes = [0]>(all)
                t = MatMul(a, v) u = Add(t, least) e = Tanh(u) k = MatMul(e, v) f = Softmax(k) },
            else_branch = no () => (float[2,4] e, float[2,4] f) {
                t = MatMul(a, v) u = Softmax(t) e = MatMul(u, v) f = Mul(e, r) }> }>(n, , h)
    }""",
    "a loop in a condition": """g (float[2,4] h, float[s,4] x) => (float[2,4] last, float[s,2,4] y) {
        sum = ReduceSum<keepdims = 0>(x) more = Greater(sum, zeros)
        last, y = If(more)<then_branch = yes () => (float[2,4] e, float[s,2,4] f) {
            e, f = Scan<num_scan_inputs = 1, body = each (float[2,4] a, float[4] r) => (float[2,4] c, float[2,4] d) {
                t = MatMul(a, v) u = Add(t, r) c = Tanh(u) d = Mul(c, r) }>(h, x) },
        else_branch = no () => (float[2,4] e, float[s,2,4] f) {
            t = MatMul(h, v) e = Softmax(t) k = Unsqueeze<axes = [1]>(x) l = MatMul(k, v) f = Add(l, e) }>
    }""",
}


@pytest.mark.parametrize("kind", sorted(NESTED))
def test_control_flow_inside_control_flow_of_any_size(kind: str) -> None:
    """Each side of the condition is taken."""
    random = np.random.default_rng(5)
    recurrent = np.linalg.qr(random.standard_normal((4, 4)))[0].astype("f4")
    model = support.model(NESTED[kind], 12, v=recurrent, none=np.array(0), zeros=np.float32(0))
    made, session = graphopt.compile(model, dims={"s": (1, 9)}), support.session(model)
    for rows in (1, 4, 9):
        x = random.standard_normal((rows, 4)).astype("f4")
        for feed in ({"h": x[:1] * np.ones((2, 1), "f4"), "x": x}, {"h": np.ones((2, 4), "f4"), "x": -x}):
            for mine, its in zip(made.run(None, feed), session.run(None, feed), strict=True):
                np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-5)


def test_sizes_at_which_the_model_does_not_run_are_named() -> None:
    """With fewer rows than the other operand has nothing fits."""
    text = """g (float[s,4] x, float[t,4] z) => (float[t,4] y) {
        n = Shape<start = 0, end = 1>(z) a = Slice(x, zero, n, zero) y = Mul(a, z)
    }"""
    said = r"^the model does not run at s=2, t=9: Mul 'y' combines 2x4 and 9x4, .*; give a range that the model takes"
    with pytest.raises(NotLowered, match=said):
        graphopt.compile(support.model(text, 17, zero=np.array([0])), dims={"s": (2, 40), "t": (2, 9)})


def test_dims_that_may_be_equal_are_named() -> None:
    text = "g (float[s,1,4] x, float[t,1,4] z) => (float[r,1,2] y) { a = Mul(x, z) y = MaxPool<kernel_shape = [3]>(a) }"
    with pytest.raises(NotLowered, match=r"or say which are always equal, t=s for example"):
        graphopt.compile(support.model(text, 17), dims={"s": (2, 9), "t": (2, 9)})
    with pytest.raises(NotLowered, match=r"or multiples, .* s=32\*n with n=1\.\.3 for example"):
        graphopt.compile(support.model(text, 17), dims={"s": (20, 99), "t": (20, 99)})


def test_multiples_are_named_where_what_is_halved_is_joined() -> None:
    """A pooling rounds down what a convolution with a border rounds up."""
    text = """g (float[1,2,h,w] x) => (float[1,4,a,b] y) {
        p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(x)
        c = Conv<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(x, k) y = Concat<axis = 1>(p, c)
    }"""
    model = support.model(text, 17, k=np.ones((2, 2, 3, 3), np.float32))
    with pytest.raises(NotLowered, match=r"Concat 'y' joins .*, or multiples, .* h=32\*n with n=1\.\.3 for example"):
        graphopt.compile(model, dims={"h": (20, 100), "w": (20, 60)})
    sizes = {"h": "32*n", "w": "2*m", "n": (1, 2), "m": (10, 30)}
    assert graphopt.compile(model, dims=sizes).get_inputs()[0].shape == [1, 2, "32*n", "2*m"]


def test_dims_that_turn_are_formulas_for_people() -> None:
    model = support.model("g (float[s,4] x) => (float[t,4] y) { y = Slice(x, zero, eight, zero) }", 17, **BOUNDS)
    made = graphopt.compile(model, dims={"s": (1, 21)})
    assert made.get_outputs()[0].shape == ["min(s, 8)", 4]
