"""Heads that are cut from one axis and joined again: Attention on three axes does that itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import support
from tests.passes.fusion.attending import attributes, fused, kinds
from tests.passes.refusing import refusal, refuses

CUT = """a = Reshape (q, cut_q) q4 = Transpose <perm = [0, 2, 1, 3]> (a)
    b = Reshape (k, cut_k) k4 = Transpose <perm = [0, 2, 3, 1]> (b)
    c = Reshape (v, cut_k) v4 = Transpose <perm = [0, 2, 1, 3]> (c)
    s = MatMul (q4, k4) p = Softmax (s) o = MatMul (p, v4) t = Transpose <perm = [0, 2, 1, 3]> (o)"""
CONSTANTS = {"cut_q": np.array([2, 3, 4, 8]), "cut_k": np.array([2, 5, 4, 8]), "join": np.array([2, 3, 32])}
INPUTS = "float[2, 3, 32] q, float[2, 5, 32] k, float[2, 5, 32] v"


def proto(result: str = "float[2, 3, 32] y", inputs: str = INPUTS, **constants: np.ndarray) -> onnx.ModelProto:
    """Four heads of eight, three queries, five keys."""
    text = f"g ({inputs}) => ({result}) {{ {CUT} y = Reshape (t, join) }}"
    return support.model(text, 23, 10, **{**CONSTANTS, **constants})


def test_cutting_and_joining_disappear() -> None:
    result = fused(proto())
    assert kinds(result) == ["Attention"]
    assert (attributes(result)["q_num_heads"], attributes(result)["kv_num_heads"]) == (4, 4)


@pytest.mark.fires("attention-of-three-axes")
def test_a_result_that_is_also_flattened_keeps_one_reshape() -> None:
    assert kinds(fused(proto("float[6, 32] y", join=np.array([-1, 32])))) == ["Attention", "Reshape"]


def test_any_batch_and_any_length() -> None:
    result = fused(
        proto(
            "float[b, n, 32] y", "float[b, n, 32] q, float[b, m, 32] k, float[b, m, 32] v",
            cut_q=np.array([0, 0, 4, 8]), cut_k=np.array([0, 0, -1, 8]), join=np.array([0, 0, -1]),
        ), b=2, n=3, m=5,
    )  # fmt: skip
    assert kinds(result) == ["Attention"]


def test_rows_of_all_samples_in_one_matrix_are_parted_without_heads() -> None:
    result = fused(proto(inputs="float[6, 32] q, float[10, 32] k, float[2, 5, 32] v"))
    assert kinds(result) == ["Reshape", "Reshape", "Attention"]


def test_one_query_needs_no_transpose() -> None:
    text = """g (float[2, 1, 32] q, float[2, 1, 32] k, float[2, 1, 32] v) => (float[2, 1, 32] y) {
        q4 = Reshape (q, cut) k4 = Reshape (k, cut) v4 = Reshape (v, cut) t = Transpose <perm = [0, 1, 3, 2]> (k4)
        s = MatMul (q4, t) p = Softmax (s) o = MatMul (p, v4) y = Reshape (o, join) }"""
    result = fused(support.model(text, 23, 10, cut=np.array([2, 4, 1, 8]), join=np.array([2, 1, 32])))
    assert kinds(result) == ["Attention"]


def test_heads_that_do_not_come_from_one_axis_stay() -> None:
    text = f"""g (float[2, 4, 3, 8] q4, {INPUTS.split(", ", 3)[3]}) => (float[2, 3, 32] y) {{
        {CUT.split(chr(10), 1)[1]} y = Reshape (t, join) }}"""
    assert kinds(fused(support.model(text, 23, 10, **CONSTANTS))).count("Transpose") == 3


def test_heads_that_end_in_another_order_stay() -> None:
    text = f"g ({INPUTS}) => (float[2, 3, 32] y) {{ {CUT} y = Reshape (o, join) }}"
    assert "q_num_heads" not in attributes(fused(support.model(text, 23, 10, **CONSTANTS)))


def test_queries_keys_and_values_from_one_packed_tensor() -> None:
    text = """g (float[2, 3, 96] x) => (float[2, 3, 32] y) { a = Reshape (x, cut)
        b = Transpose <perm = [2, 0, 3, 1, 4]> (a) q = Gather (b, zero) k = Gather (b, one) v = Gather (b, two)
        t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, t) p = Softmax (s) o = MatMul (p, v)
        w = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape (w, join) }"""
    proto = support.model(
        text, 23, 10, cut=np.array([2, 3, 3, 4, 8]), join=np.array([2, 3, 32]),
        zero=np.array(0), one=np.array(1), two=np.array(-1),
    )  # fmt: skip
    assert kinds(fused(proto)) == ["Split", "Split", "Split", "Attention"]  # which are then merged


# -- what each condition refuses --------------------------------------------------------------------------------------

FOUR_AXES = "float[2, 4, 3, 8] q, float[2, 4, 3, 8] k, float[2, 4, 3, 8] v"
SOME_HEADS = FOUR_AXES.replace("2, 4", "2, H")
TURN = "t = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape (t, join)"


def four(inputs: str, after: str, result: str = "float[A, B, C] y", cache: str = "") -> onnx.ModelProto:
    """The operator on four axes, and a cache where `cache` are its dims."""
    past = f", float[{cache}] pk, float[{cache}] pv" if cache else ""
    attention = "o, nk, nv = Attention (q, k, v, , pk, pv)" if cache else "o = Attention (q, k, v)"
    text = f"g ({inputs}{past}) => ({result}) {{ {attention} {after} }}"
    return support.model(text, 23, 10, join=np.array([2, 3, -1]))


def turned(heads: str) -> onnx.ModelProto:
    """Queries that are cut from one axis, keys that come with so many heads and are turned by their places."""
    text = f"""g (float[2, 3, 32] x, float[2, {heads}, 3, 8] k, float[2, 3, 4] c, float[2, 3, 4] s)
        => (float[2, 3, 32] y) {{ a = Reshape (x, cut) q = Transpose <perm = [0, 2, 1, 3]> (a)
        r = RotaryEmbedding (k, c, s) o = Attention (q, r, k) {TURN} }}"""
    return support.model(text, 23, 10, cut=np.array([2, 3, 4, 8]), join=np.array([2, 3, 32]))


REFUSALS = [
    refusal("attention-of-three-axes", "the number and size of the heads are not known", four(SOME_HEADS, TURN)),
    refusal("attention-of-three-axes", "the heads of 'q' are not cut from one axis", four(FOUR_AXES, TURN)),
    refusal("cached-attention-of-three-axes", "the heads are not joined again",
            four(FOUR_AXES, "y = Neg (o)", "float[A, B, C, D] y", "2, 4, 6, 8")),
    refusal("cached-attention-of-three-axes", "the number of heads is not known",
            four(SOME_HEADS, TURN, cache="2, H, 6, 8")),
    refusal("attention-of-three-axes", "the number of heads is not known", turned("H")),
    refusal("attention-of-three-axes", "the heads of 'k' are not cut from one axis", turned("4")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "graph"), REFUSALS)
def test_it_says_which_condition_refuses(rule: str, reason: str, graph: onnx.ModelProto) -> None:
    refuses(rule, reason, graph)
