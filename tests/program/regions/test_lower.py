"""Graphs as regions: what is computed together, and that it is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.errors import NotLowered
from graphopt.program.regions.images.batch_norm import without_batch_norm
from graphopt.program.regions.lower import lower
from kernels.target import host, x86_64_v3
from tests import support
from tests.program.regions.running import compare, run_lowered


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(np.float32)


def test_a_layer_is_one_region() -> None:
    proto = support.model(
        """g (float[5,16] x, float[5,8] r) => (float[5,8] y) {
            p = MatMul(x, w) q = Add(p, b) s = Relu(q) y = Add(s, r)
        }""",
        18, w=_weight(16, 8), b=_weight(8),
    )  # fmt: skip
    lowered = compare(proto)
    assert len(lowered.regions) == 1 and not lowered.temporaries
    compare(proto, target=x86_64_v3())


def test_a_gate_that_is_read_twice_stays_in_its_region() -> None:
    proto = support.model(
        "g (float[3,4,16] x) => (float[3,4,8] y) { p = MatMul(x, w) s = Sigmoid(p) y = Mul(p, s) }",
        18,
        w=_weight(16, 8),
    )
    assert len(compare(proto).regions) == 1


def test_of_two_products_that_are_added_the_later_one_adds() -> None:
    proto = support.model(
        "g (float[5,16] x) => (float[5,8] y) { p = MatMul(x, w) q = MatMul(x, v) a = Tanh(p) y = Mul(a, q) }",
        18, w=_weight(16, 8), v=_weight(16, 8),
    )  # fmt: skip
    assert [len(region.nodes) for region in compare(proto).regions] == [1, 3]


CHAINS = [
    "g (float[5,6] x) => (float[5,6] y) { a = Exp(x) b = Mul(a, x) c = Clip(b, l, h) y = Erf(c) }",
    "g (float[2,1,3] x, float[4,1] z) => (float[2,4,3] y) { y = Sub(x, z) }",
    "g (float[5,6] x) => (float[5,6] y) { a = Softmax(x) y = Mul(a, h) }",
    "g (float[5,6,3] x) => (float[5,6,3] y) { y = Softmax<axis = 1>(x) }",
    "g (float[5,6] x) => (float[5,6] y) { y = LogSoftmax<axis = 0>(x) }",
    "g (float[5,6] x) => (float[5,6] y) { n = LayerNormalization(x, s, v) y = Relu(n) }",
    "g (float[5,6] x) => (float[5,1] y) { a = ReduceMean(x, axes) y = Sqrt(a) }",
    "g (float[5,6] x) => (float[5] y) { y = ReduceMax<keepdims = 0>(x, axes) }",
    "g (float[5,6] x) => (float[5,1] y) { a = Abs(x) r = ReduceLogSum(a, axes) y = Neg(r) }",
    "g (float[5,6] x) => (float[30] y) { t = Transpose(x) y = Reshape(t, flat) }",
    "g (float[5,6] x) => (float[6,5] y) { y = Transpose(x) }",
    "g (float[5,6] x) => (int64[5,1] y) { y = ArgMax<axis = 1>(x) }",
    "g (float[5,6] x) => (float[5,6] y) { a, b = Split<axis = 1, num_outputs = 2>(x) y = Concat<axis = 1>(b, a) }",
    "g (float[5,6] x) => (float[3,6] y) { y = Gather(x, pick) }",
    "g (float[5,6] x) => (float[5,6] y) { y = Identity(x) }",
    "g (float[5,6] x) => (float[2,6] y) { a = Slice(x, one, three, zero) y = Neg(a) }",
    "g (float[5,6] x, bool[5,6] c) => (float[5,6] y) { a = Neg(x) y = Where(c, a, x) }",
    "g (float[5,6] x) => (int64[5,6] y) { a = Cast<to = 7>(x) y = Mod(a, two) }",
    "g (float[2,5,6] x, float[2,6,4] z) => (float[2,5,4] y) { y = MatMul(x, z) }",
    "g (float[2,3,5,6] x) => (float[2,3,5,5] y) { t = Transpose<perm = [0, 1, 3, 2]>(x) y = MatMul(x, t) }",
    "g (float[5,6] x) => (float[6,3] y) { y = Gemm<transA = 1, transB = 1, alpha = 0.5, beta = 2.0>(x, g5, g3) }",
    "g (float[2,5,6] x, float[1,5,4] z) => (float[2,5,4] y) { p = MatMul(x, m) y = Add(p, z) }",
]


def chain_model(text: str) -> onnx.ModelProto:
    return support.model(
        text, 18, l=np.float32(-1), h=np.float32(2), s=_weight(6), v=_weight(6), axes=np.array([1]),
        flat=np.array([30]), one=np.array([1]), three=np.array([3]), zero=np.array([0]), two=np.array(3),
        g5=_weight(3, 5), g3=_weight(6, 3), m=_weight(6, 4), pick=np.array([4, 0, -1]),
    )  # fmt: skip


@pytest.mark.parametrize("text", CHAINS)
def test_single_operators_and_small_chains(text: str) -> None:
    compare(chain_model(text))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64", "uint32"])
def test_every_bit_is_turned(kind: str) -> None:
    text = f"g ({kind}[5,6] x) => ({kind}[5,6] y) {{ a = BitwiseNot(x) y = BitwiseAnd(a, x) }}"
    assert len(compare(support.model(text, 18)).regions) == 1


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("attributes", ["", "<exclusive = 1>", "<reverse = 1>", "<exclusive = 1, reverse = 1>"])
def test_running_sums(attributes: str, axis: int) -> None:
    text = f"g (float[3,5,7] x) => (float[3,5,7] y) {{ t = Abs(x) y = CumSum{attributes}(t, a) }}"
    compare(support.model(text, 18, a=np.array(axis)))


@pytest.mark.parametrize(("attributes", "shape"), [("", "4,6,3"), ("<axis = 1>", "4,3,9"), ("<largest = 0>", "4,6,3")])
def test_the_largest_and_where_they_are(attributes: str, shape: str) -> None:
    text = f"g (float[4,6,9] x) => (float[{shape}] y, int64[{shape}] i) {{ t = Neg(x) y, i = TopK{attributes}(t, k) }}"
    compare(support.model(text, 18, k=np.array([3])))


@pytest.mark.parametrize(
    "attributes", ["num_heads = 2", "num_heads = 2, interleaved = 1", "num_heads = 2, rotary_embedding_dim = 4"]
)
def test_rotary_embedding(attributes: str) -> None:
    half = 2 if "dim" in attributes else 4
    proto = support.model(
        f"g (float[2,5,16] x) => (float[2,5,16] y) {{ y = RotaryEmbedding<{attributes}>(x, c, s, p) }}", 23, 10,
        c=_weight(9, half), s=_weight(9, half), p=np.array([[0, 1, 2, 3, 8], [4, 4, 5, 6, 7]]),
    )  # fmt: skip
    compare(proto)


@pytest.mark.parametrize("attributes", ["", "is_causal = 1", "softcap = 2.0", "scale = 0.3"])
def test_attention(attributes: str) -> None:
    given = ", ".join(one for one in ("q_num_heads = 4, kv_num_heads = 2", attributes) if one)
    proto = support.model(
        f"""g (float[2,5,16] q, float[2,7,8] k, float[2,7,8] v) => (float[2,5,16] y) {{
            y = Attention<{given}>(q, k, v)
        }}""",
        23, 10,
    )  # fmt: skip
    assert len(compare(proto).regions) == 1


@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        (np.tri(3, 8, 5, dtype=np.bool_), True),
        (np.where(np.tri(3, 8, 5), 0, -1e38).astype(np.float32).reshape(1, 1, 3, 8), True),
        (np.where(np.tri(3, 8, 5), 0, -10).astype(np.float32), False),
        (np.tri(3, 8, 4, dtype=np.bool_), False),
        (np.tri(3, 8, 6, dtype=np.bool_), False),
        (np.where(np.tri(3, 8, 5), 0.5, -1e38).astype(np.float32), False),
    ],
)
def test_a_mask_that_begins_behind_the_past_is_the_kernel_s_own(mask: np.ndarray, causal: bool) -> None:
    heads = "float[1,2,3,8] q, float[1,2,3,8] k, float[1,2,3,8] v, float[1,2,5,8] pk, float[1,2,5,8] pv"
    text = f"g ({heads}) => (float[1,2,3,8] y) {{ y, nk, nv = Attention(q, k, v, mask, pk, pv) }}"
    lowered = compare(support.model(text, 23, mask=mask))
    (problem,) = (one for template, one in lowered.problems.values() if template.name == "attention")
    assert (problem.causal, problem.mask is None) == (causal, causal)


@pytest.mark.parametrize("shape", [[10, 20, 31], [7], [10, 20, 30, 2]])
def test_a_reshape_that_cannot_be_is_refused(shape: list[int]) -> None:
    text = "g (float[10,20,30] x) => (float[a] y) { z = Reshape(x, s) y = Relu(z) }"
    proto, wanted = support.model(text, 18, s=np.array(shape)), ", ".join(map(str, shape))
    with pytest.raises(NotLowered, match=rf"Reshape 'z' makes \[{wanted}\] of \[10, 20, 30\], which has another"):
        lower(ir.from_proto(proto), host())


def test_a_batch_normalization_of_an_unknown_type_stays() -> None:
    """A value without a type, behind an operator that nobody knows."""
    text = "g (float[2,3,4] x) => (float[2,3,4] y) { a = other.Bar(x) y = BatchNormalization(a, s, s, s, s) }"
    left = without_batch_norm(ir.from_proto(support.model(text, 15, s=np.ones(3, np.float32))))
    assert [node.op_type for node in left.graph] == ["Bar", "BatchNormalization"]


def test_outputs_tell_how_many_numbers_a_range_has() -> None:
    proto = support.model(
        """g (float n) => (float[6] y) {
            zero = Constant<value_float = 0.0>() one = Constant<value_float = 1.0>()
            r = Range(zero, n, one) a = Mul(r, n) b = Cos(a) y = Add(b, r)
        }""", 18,
    )  # fmt: skip
    (got,) = run_lowered(lower(ir.from_proto(proto), host()), {"n": np.array(6, np.float32)})
    np.testing.assert_allclose(got, np.cos(np.arange(6) * 6.0) + np.arange(6), rtol=1e-5)
    free = support.model("g (float[n] x) => (float[6] y) { y = Relu(x) }", 18)
    with pytest.raises(NotLowered, match="the dims of 'x' are not all numbers"):
        lower(ir.from_proto(free), host())


def test_what_has_no_kernel_is_named() -> None:
    proto = support.model("g (float[5] x, int64[2] e) => (float[m,n] y) { y = Expand(x, e) }", 18)
    with pytest.raises(NotLowered, match="the dims of 'y' are not all numbers"):
        lower(ir.from_proto(proto), host())
    free = support.model("g (float[n,6] x) => (float[n,6] y) { y = Relu(x) }", 18)
    with pytest.raises(
        NotLowered, match=r"the dims of 'x' are not all numbers: give 'n' a value, dims=\{'n': 1\} for example"
    ):
        lower(ir.from_proto(free), host())


SKIP = """g (float[1,8,16] x, float[16,16] w) => (float[1,4,16] y, float[1,4,16] z) {
    a = Softmax<axis = 1>(x) p, q = Split<axis = 1>(a, sizes) b = MatMul(p, w) c = Add(b, p)
    %s
    y = Sub(c0, c) z = Mul(q, c0)
}"""


def test_parts_that_are_read_at_different_times_lie_apart_where_memory_is_tight() -> None:
    """As the gradient of a skip connection, for which all that is computed with it would be held."""

    def parts(layers: int, *, tight: bool) -> list[int]:
        chain = [f"c{at} = MatMul(c{at + 1}, w)" for at in reversed(range(layers))]
        text = SKIP % " ".join(chain).replace(f"c{layers},", "c,")
        proto = support.model(text, 20, sizes=np.array([4, 4]))
        lowered = lower(ir.from_proto(proto), host(), tight=tight)
        feeds = {"x": np.ones((1, 8, 16), np.float32), "w": np.eye(16, dtype=np.float32)}
        np.testing.assert_allclose(run_lowered(lowered, feeds)[1], np.full((1, 4, 16), 2 / 64), rtol=1e-5)
        return [one.size for one in lowered.temporaries if one.purpose == "part"]

    assert parts(24, tight=True) == [4 * 4 * 16, 4 * 4 * 16]
    assert parts(24, tight=False) == parts(4, tight=True) == []


def test_weights_that_outgrow_a_cache_when_they_are_packed_are_chosen_for_where_they_lie() -> None:
    """Points of taps are four times the bytes; the program then reads its weights from memory, where taps are few."""
    stored = 4 * (9 * 128 * 128 + 8 * 128)
    proto = support.model(
        """g (float[1,8,6,6] x) => (float[1,128,3,3] y) {
            e = Conv(x, u) h = Conv<pads = [1, 1, 1, 1]>(e, w) y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(h)
        }""",
        18, u=_weight(128, 8, 1, 1), w=_weight(128, 128, 3, 3) / 30,
    )  # fmt: skip
    near = replace(host(), l2=stored // 2)
    far, held = (lower(ir.from_proto(proto), replace(near, l3=size)) for size in (3 * stored // 2, 8 * stored))
    assert held.target.constants == stored
    assert far.target.constants == sum(buffer.size for buffer in far.constants) != stored
