"""Every form of the operators that have kernels of their own, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.program.regions.running import compare, run_lowered


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4,6,5] x) => (float[4,3,5] y) { y = Gather<axis = 1>(x, rows) }",
        "g (float[4,6,5] x) => (float[4,3,6,5] y) { y = Gather<axis = 0>(x, table) }",
        "g (float[4,5,6] x) => (float[4,5,3] y) { t = Neg(x) y = Gather<axis = -1>(t, rows) }",
        "g (float[6,4,5] x) => (float[4,3,5] y) { t = Transpose<perm = [1, 0, 2]>(x) y = Gather<axis = 1>(t, rows) }",
        "g (float[3,4] x) => (float[2,4] y) { y = GatherElements<axis = 0>(x, places) }",
        "g (float[3,4] x) => (float[2,4] y) { y = GatherElements<axis = 1>(x, places) }",
        "g (float[4,3,5] x) => (float[2,5] y) { y = GatherND(x, pairs) }",
        "g (float[2,4,5] x) => (float[2,5] y) { y = GatherND<batch_dims = 1>(x, singles) }",
        "g (float[3,4] x, float[2,4] u) => (float[3,4] y) { y = ScatterElements<axis = 0>(x, places, u) }",
        "g (float[3,4] x, float[2,4] u) => (float[3,4] y) { y = ScatterElements<reduction = \"add\">(x, twice, u) }",
        "g (float[3,4] x, float[2,4] u) => (float[3,4] y) {"
        " y = ScatterElements<axis = 1, reduction = \"max\">(x, places, u) }",
        "g (float[4,3,5] x, float[2,5] u) => (float[4,3,5] y) { y = ScatterND(x, pairs, u) }",
        "g (float[4,3,5] x, float[2,5] u) => (float[4,3,5] y) { y = ScatterND<reduction = \"mul\">(x, same, u) }",
        "g (float[4,3,5] x, float[2,5] u) => (float[4,3,5] y) { y = ScatterND<reduction = \"min\">(x, pairs, u) }",
        "g (int64[4,6] x) => (int64[4,6] y) { y = CumSum<reverse = 1>(x, one) }",
        "g (float[4,6] x) => (float[4,2] y, int64[4,2] i) { y, i = TopK<largest = 0, axis = -1>(x, two) }",
        "g (float[2,4,6] x) => (float[2,3,6] y, int64[2,3,6] i) { y, i = TopK<axis = 1>(x, three) }",
    ],
)  # fmt: skip
def test_gathers_scatters_sums_and_the_largest(text: str) -> None:
    compare(
        support.model(
            text, 18, rows=np.array([5, 0, -2]), table=np.array([[0, 1, 2], [3, 2, 1], [0, 0, 0], [1, -1, 3]]),
            places=np.array([[0, 2, 1, 0], [2, 1, 0, -1]]), twice=np.array([[0, 2, 1, 0], [0, 1, 1, 2]]),
            pairs=np.array([[3, 1], [0, -1]]), same=np.array([[3, 1], [3, 1]]), singles=np.array([[3], [-4]]),
            one=np.array(1), two=np.array([2]), three=np.array([3]),
        )
    )  # fmt: skip


SLICES = [
    ([0], [3], None, None), ([1], [99], None, None), ([-3], [-1], None, None), ([0], [4], [1], [2]),
    ([-99], [5], [-1], [3]), ([1, 0], [3, 2], [0, 2], [1, 1]), ([2, 0], [5, 4], [-2, -1], None), ([3], [1], [0], None),
]  # fmt: skip


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
def test_slices(starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None) -> None:
    given = {"s": starts, "e": ends, "a": axes, "t": steps}
    names = ", ".join(name if value is not None else "" for name, value in given.items()).rstrip(", ")
    arrays = {name: np.array(value) for name, value in given.items() if value is not None}
    proto = support.model(
        f"g (float[5,6,4] x) => (float[p,q,r] y) {{ z = Slice(x, {names}) y = Neg(z) }}", 18, **arrays
    )
    lowered = lower(ir.from_proto(proto), host())
    x = np.arange(120, dtype=np.float32).reshape(5, 6, 4)
    cut = [slice(None)] * 3
    for start, end, axis, step in zip(starts, ends, axes or range(3), steps or [1] * 3, strict=False):
        cut[axis] = slice(start, end, step)
    (found,) = run_lowered(lowered, {"x": x})
    np.testing.assert_array_equal(found, -x[tuple(cut)])


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("starts", [[0, 0], [1, -3], [2, 1]])
@pytest.mark.parametrize("steps", [[1, 1], [2, 1], [3, 2]])
def test_slices_of_images(blocked: bool, starts: list[int], steps: list[int]) -> None:
    inside = "a = Conv(x, w) b = Relu(a)" if blocked else "b = Relu(x)"
    proto = support.model(
        f"g (float[2,8,6,5] x) => (float[p,q,r,s] y) {{ {inside} y = Slice(b, starts, ends, axes, steps) }}", 18,
        w=_weight(16, 8, 1, 1),
        starts=np.array(starts), ends=np.array([99, 4]), axes=np.array([2, -1]), steps=np.array(steps),
    )  # fmt: skip
    compare(proto)


PADS = {
    "around": ([0, 0, 1, 2, 0, 0, 3, 1], ""), "cut": ([0, 0, -1, 0, 0, 0, 1, -2], ""),
    "cut away on one side": ([0, 0, -2, 3, 0, 0, -2, -1], ""), "channels": ([0, 1, 0, 0, 0, 2, 0, 0], ""),
    "images": ([1, 0, 0, 0, 0, 0, 1, 0], ""), "a number": ([0, 0, 1, 1, 0, 0, 1, 1], ", f"),
}  # fmt: skip


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("name", PADS)
def test_pads(name: str, blocked: bool) -> None:
    pads, filler = PADS[name]
    inside = "a = Conv(x, w) b = Relu(a)" if blocked else "b = Relu(x)"
    proto = support.model(
        f"g (float[2,8,6,5] x) => (float[p,q,r,s] y) {{ {inside} c = Pad(b, pads{filler}) y = Neg(c) }}", 18,
        w=_weight(16, 8, 1, 1), pads=np.array(pads), f=np.float32(1.5),
    )  # fmt: skip
    compare(proto)


def test_pads_of_some_axes_and_of_older_opsets() -> None:
    some = "g (float[2,3,4] x) => (float[p,q,r] y) { y = Pad(x, pads, , axes) }"
    compare(support.model(some, 18, pads=np.array([1, 2, 0, 3]), axes=np.array([-1, 1])))
    old = "g (float[2,3] x) => (float[4,6] y) { y = Pad<pads = [1, 0, 1, 3], value = 2.5>(x) }"
    compare(support.model(old, 10, 4))
    whole = "g (int64[2,3] x) => (int64[4,6] y) { y = Pad(x, pads) }"
    compare(support.model(whole, 13, pads=np.array([1, 0, 1, 3])))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
def test_resizing(mode: str, coordinates: str) -> None:
    attributes = f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}"'
    text = f"g (float[1,3,4,5] x) => (float[1,3,7,8] y) {{ y = Resize<{attributes}>(x, , , sizes) }}"
    compare(support.model(text, 18, sizes=np.array([1, 3, 7, 8])))


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resizing_by_scales(rounding: str) -> None:
    attribute = f'nearest_mode = "{rounding}"'
    text = f"g (float[1,3,4,5] x) => (float[1,3,6,12] y) {{ y = Resize<{attribute}>(x, , scales) }}"
    compare(support.model(text, 18, scales=np.array([1, 1, 1.6, 2.5], np.float32)))
    some = "g (float[1,3,4,5] x) => (float[1,3,6,12] y) { y = Resize<axes = [-1, 2]>(x, , scales) }"
    compare(support.model(some, 18, scales=np.array([2.5, 1.6], np.float32)))


def test_resizing_in_older_opsets() -> None:
    scales = np.array([1, 1, 1.6, 2.5], np.float32)
    compare(support.model("g (float[1,3,4,5] x) => (float[1,3,6,12] y) { y = Resize(x, s) }", 10, s=scales))
    compare(support.model("g (float[1,3,4,5] x) => (float[1,3,6,12] y) { y = Upsample(x, s) }", 9, s=scales))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("given", ["", "b", "b, lengths", "b, lengths, h", ", , h"])
def test_recurrences(kind: str, direction: str, given: str) -> None:
    ways, gates = 2 if direction == "bidirectional" else 1, {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    states = ", y_h, y_c" if kind == "LSTM" else ", y_h"
    result = f"float[3,{ways},2,5] y, float[{ways},2,5] y_h" + (f", float[{ways},2,5] y_c" if kind == "LSTM" else "")
    text = (
        f"g (float[3,2,4] x) => ({result}) {{ y{states} = "
        f'{kind}<hidden_size = 5, direction = "{direction}">(x, w, r{", " if given else ""}{given}) }}'
    )
    arrays = {
        "b": _weight(ways, 2 * gates * 5), "lengths": np.array([3, 2], np.int32), "h": _weight(ways, 2, 5),
    }  # fmt: skip
    proto = support.model(
        text, 14, w=_weight(ways, gates * 5, 4), r=_weight(ways, gates * 5, 5),
        **{name: array for name, array in arrays.items() if name in given.split(", ")},
    )  # fmt: skip
    compare(proto)


def test_peepholes_and_a_reset_after_the_product() -> None:
    text = "g (float[3,2,4] x) => (float[3,1,2,5] y) { y = LSTM<hidden_size = 5>(x, w, r, b, , h, c, p) }"
    compare(
        support.model(
            text, 14, w=_weight(1, 20, 4), r=_weight(1, 20, 5), b=_weight(1, 40), h=_weight(1, 2, 5),
            c=_weight(1, 2, 5) / 2, p=_weight(1, 15),
        )
    )  # fmt: skip
    for bias in ("", ", b"):
        node = f"GRU<hidden_size = 5, linear_before_reset = 1>(x, w, r{bias})"
        text = f"g (float[3,2,4] x) => (float[3,1,2,5] y) {{ y = {node} }}"
        arrays = {"w": _weight(1, 15, 4), "r": _weight(1, 15, 5)} | ({"b": _weight(1, 30)} if bias else {})
        compare(support.model(text, 14, **arrays))


@pytest.mark.parametrize("shape", ["2,5,16", "2,2,5,8"])
@pytest.mark.parametrize("attributes", ["interleaved = 0", "interleaved = 1", "rotary_embedding_dim = 4"])
@pytest.mark.parametrize("places", [True, False])
def test_rotary_embeddings(shape: str, attributes: str, places: bool) -> None:
    heads = ", num_heads = 2" if shape == "2,5,16" else ""
    half = 2 if "dim" in attributes else 4
    angles = _weight(9, half) if places else _weight(2, 5, half)
    arrays = {"c": angles, "s": angles[::-1].copy()}
    if places:
        arrays["p"] = np.array([[0, 1, 2, 3, 8], [4, 4, 5, 6, 7]])
    compare(
        support.model(
            f"g (float[{shape}] x) => (float[{shape}] y) {{"
            f" y = RotaryEmbedding<{attributes}{heads}>(x, c, s{', p' if places else ''}) }}", 23, 10, **arrays,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,4,5,8] q, float[2,2,7,8] k, float[2,2,7,6] v) => (float[2,4,5,6] y) { y = Attention(q, k, v) }",
        "g (float[2,5,4,8] p, float[2,2,7,8] k) => (float[2,4,5,8] y) {"
        " q = Transpose<perm = [0, 2, 1, 3]>(p) y = Attention<is_causal = 1>(q, k, k) }",
        "g (float[2,4,8,5] p, float[2,2,7,8] k) => (float[2,4,5,8] y) {"
        " q = Transpose<perm = [0, 1, 3, 2]>(p) y = Attention(q, k, k) }",
        "g (float[2,4,5,8] q, float[2,2,7,8] k, float[5,7] m) => (float[2,4,5,8] y) { y = Attention(q, k, k, m) }",
        "g (float[2,4,5,8] q, float[2,2,7,8] k, float[2,1,5,7] m) => (float[2,4,5,8] y) { y = Attention(q, k, k, m) }",
        "g (float[2,4,5,8] q, float[2,2,7,8] k, bool[4,5,7] m) => (float[2,4,5,8] y) { y = Attention(q, k, k, m) }",
        "g (float[2,4,5,8] q, float[2,1,7,8] k) => (float[2,4,5,8] y) { y = Attention(q, k, k) }",
        "g (float[2,4,5,8] q, float[2,2,1,8] k, float[5,1] m) => (float[2,4,5,8] y) { y = Attention(q, k, k, m) }",
    ],
)
def test_attention_of_heads_that_stand_apart(text: str) -> None:
    compare(support.model(text, 23, 10))


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        ("g (float[3,4,5] x) => (float[3,4,5] y) { y = Softmax(x) }", 11),
        ("g (float[3,4,5] x) => (float[3,4,5] y) { y = LogSoftmax<axis = 2>(x) }", 11),
        ("g (float[5] x) => (float[5] y) { y = Softmax<axis = 0>(x) }", 11),
        ("g (float[3,4,5] x) => (float[3,4,5] y) { y = Softmax<axis = -2>(x) }", 13),
        ("g (float[3,4,5] x) => (float[3,4,5] y) { y = LayerNormalization<axis = 1>(x, s, t) }", 17),
        ("g (float[3,4,5] x) => (float[3,4,5] y) { y = LayerNormalization<epsilon = 0.1>(x, five) }", 17),
        ("g (float[3,4,5] x) => (float[3,4,5] y) { y = RMSNormalization<axis = -1>(x, five) }", 23),
        ("g (float[3,4,5] x) => (float[3,5] y) { y = ReduceMean<axes = [1], keepdims = 0>(x) }", 13),
        ("g (float[3,4,5] x) => (float[1,1,1] y) { y = ReduceL2(x) }", 13),
        ("g (float[3,4,5] x) => (float[3,4,1] y) { y = ReduceLogSumExp<axes = [-1]>(x) }", 13),
        ("g (float[3,4,5] x) => (float[4] y) { y = ReduceProd<axes = [0, 2], keepdims = 0>(x) }", 13),
        ("g (float[3,4,5] x) => (int64[3,5] y) { y = ArgMin<axis = 1, keepdims = 0>(x) }", 13),
        ("g (float[3,4,5] x) => (int64[3,4,1] y) { a = Sign(x) y = ArgMax<axis = 2, select_last_index = 1>(a) }", 13),
        ("g (float[3,4,5] x) => (float[3,1,5] y) { a = ReduceMin<axes = [1]>(x) y = Abs(a) }", 13),
        ("g (int64[3,4] x) => (int64[3,1] y) { y = ReduceSum(x, one) }", 13),
    ],
)
def test_rows(text: str, opset: int) -> None:
    ten = 10 if opset > 20 else 8
    compare(support.model(text, opset, ten, s=_weight(4, 5), t=_weight(4, 5), five=_weight(5), one=np.array([1])))


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4,5] x, float[3,6] c) => (float[4,6] y) { y = Gemm(x, w56) }",
        "g (float[4,5] x, float[6] c) => (float[4,6] y) { y = Gemm<beta = 0.5>(x, w56, c) }",
        "g (float[4,5] x, float[4,1] c) => (float[4,6] y) { y = Gemm<alpha = 2.0, beta = 0.0>(x, w56, c) }",
        "g (float[5,4] x, float[4,6] c) => (float[4,6] y) { y = Gemm<transA = 1>(x, w56, c) }",
        "g (float[4,5] x) => (float[4,7] y) { y = Gemm<transB = 1>(x, w75) }",
        "g (float[2,3,4,5] x) => (float[2,3,4,6] y) { y = MatMul(x, w56) }",
        "g (float[2,4,5] x, float[1,4,6] z) => (float[2,4,6] y) { p = MatMul(x, w56) y = Add(p, z) }",
        "g (float[2,1,4,5] x, float[3,5,6] z) => (float[2,3,4,6] y) { y = MatMul(x, z) }",
        "g (float[4,2,5] x) => (float[2,4,6] y) { t = Transpose<perm = [1, 0, 2]>(x) y = MatMul(t, w56) }",
        "g (float[2,4,5] x) => (float[2,4,6] y) { p = MatMul(x, w56) q = Mul(p, rows) y = Sub(q, columns) }",
        "g (float[1,1,5] x) => (float[1,1,6] y) { p = MatMul(x, w56) y = Add(p, six) }",
        "g (float[2,4,5] x) => (float[2,4,6] y, float[2,4,6] z) { y = MatMul(x, w56) z = Relu(y) }",
    ],
)
def test_products(text: str) -> None:
    arrays = {
        "w56": _weight(5, 6),
        "w75": _weight(7, 5),
        "rows": _weight(4, 1),
        "columns": _weight(6),
        "six": _weight(6),
    }
    compare(support.model(text, 18, **arrays))


def test_an_initializer_that_is_listed_as_an_input_is_a_constant() -> None:
    proto = support.model("g (float[4,5] x, float[5] w) => (float[4,5] y) { y = Add(x, w) }", 8, 3, w=_weight(5))
    lowered = compare(proto)
    assert [one.name for one in lowered.inputs] == ["x"]


def test_a_result_is_never_nothing() -> None:
    """An output that is an input, and one that is a constant, are copied to the caller's buffers."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[4] y, float[2] z) {'
        " y = Identity(x) z = Constant<value_floats = [1.0, 2.0]>() }"
    )
    first, second = run_lowered(lower(ir.from_proto(proto), host()), {"x": np.arange(4, dtype=np.float32)})
    assert first.tolist() == [0, 1, 2, 3] and second.tolist() == [1, 2]
