"""Queries, keys and values on four axes: products, a Softmax and what stands between become Attention."""

from __future__ import annotations

import numpy as np
import pytest

from tests import support
from tests.passes.fusion.attending import FOUR, RESULT, attributes, fused, kinds, number, spelled


def test_a_scale_after_the_product() -> None:
    result = fused(spelled("a = Mul (s, c)", c=number(0.25)))
    assert kinds(result) == ["Attention"]
    assert attributes(result) == {"scale": pytest.approx(0.25)}


def test_a_division_by_the_root() -> None:
    result = fused(spelled("a = Div (s, c)", c=number(8**0.5)))
    assert attributes(result) == {"scale": pytest.approx(8**-0.5)}


def test_no_scale_is_a_scale_of_one() -> None:
    result = fused(spelled("a = Identity (s)"))
    assert attributes(result) == {"scale": 1.0}


def test_half_of_the_scale_on_queries_and_on_keys() -> None:
    text = f"""g ({FOUR}) => ({RESULT}) {{ t = Transpose <perm = [0, 1, 3, 2]> (k) a = Mul (q, c) b = Mul (t, c)
        s = MatMul (a, b) p = Softmax (s) y = MatMul (p, v) }}"""
    result = fused(support.model(text, 23, 10, c=number(0.5)))
    assert kinds(result) == ["Attention"]
    assert attributes(result)["scale"] == pytest.approx(0.25)


def test_keys_that_come_transposed_are_turned_back() -> None:
    text = f"""g (float[2, 4, 3, 8] q, float[2, 4, 8, 5] t, float[2, 4, 5, 8] v) => ({RESULT}) {{
        s = MatMul (q, t) p = Softmax (s) y = MatMul (p, v) }}"""
    assert kinds(fused(support.model(text, 23, 10))) == ["Transpose", "Attention"]


def test_keys_through_merged_heads() -> None:
    text = f"""g ({FOUR}) => ({RESULT}) {{ a = Reshape (k, merged) b = Transpose <perm = [0, 2, 1]> (a)
        t = Reshape (b, parted) s = MatMul (q, t) p = Softmax (s) y = MatMul (p, v) }}"""
    proto = support.model(text, 23, 10, merged=np.array([-1, 5, 8]), parted=np.array([2, 4, 8, 5]))
    assert kinds(fused(proto)) == ["Attention"]


def test_a_soft_cap_before_the_mask() -> None:
    proto = spelled("d = Div (s, c) h = Tanh (d) b = Mul (h, c) a = Add (b, m)", c=number(2.0),
                    m=np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5))  # fmt: skip
    result = fused(proto)
    assert kinds(result) == ["Attention"]
    assert attributes(result) == {"scale": pytest.approx(1.0), "softcap": pytest.approx(2.0)}


def test_a_scale_behind_the_mask_would_scale_the_mask_too() -> None:
    proto = spelled("b = Add (s, m) a = Mul (b, c)", c=number(0.25), m=np.ones((3, 5), np.float32))
    assert "Attention" not in kinds(fused(proto))


def test_scores_that_are_read_elsewhere_stay() -> None:
    text = f"""g ({FOUR}) => ({RESULT}, float[2, 4, 3, 5] p) {{ t = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul (q, t) p = Softmax (s) y = MatMul (p, v) }}"""
    assert "Attention" not in kinds(fused(support.model(text, 23, 10)))


def test_a_softmax_over_the_queries_is_something_else() -> None:
    proto = spelled("a = Identity (s)", end="p = Softmax <axis = 2> (a) y = MatMul (p, v)")
    assert "Attention" not in kinds(fused(proto))


def test_doubles_stay() -> None:
    proto = spelled("a = Identity (s)", inputs=FOUR.replace("float", "double"))
    proto.graph.output[0].type.tensor_type.elem_type = 11
    assert "Attention" not in kinds(fused(proto))


def test_before_opset_23_there_is_no_such_operator() -> None:
    assert "Attention" not in kinds(fused(spelled("a = Identity (s)", opset=22)))


def test_one_batch_of_keys_for_all_queries_stays() -> None:
    proto = spelled("a = Identity (s)", inputs=FOUR.replace("float[2, 4, 5, 8] k", "float[1, 4, 5, 8] k"))
    assert "Attention" not in kinds(fused(proto))


def test_half_precision_stays() -> None:
    proto = spelled("a = Identity (s)", inputs=FOUR.replace("float", "float16"))
    proto.graph.output[0].type.tensor_type.elem_type = 10
    assert "Attention" not in kinds(fused(proto, rtol=2e-3))  # two roundings of float16


# -- heads that are shared --------------------------------------------------------------------------------------------


def shared(times: int, other: int) -> list[str]:
    """Keys repeated `times` for each head, values `other` times."""
    text = f"""g (float[2, 4, 3, 8] q, float[2, {4 // times}, 5, 8] a, float[2, {4 // other}, 5, 8] b) => ({RESULT}) {{
        c = Unsqueeze (a, two) d = Expand (c, wide_k) k = Reshape (d, four)
        e = Unsqueeze (b, two) f = Expand (e, wide_v) v = Reshape (f, four)
        t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, t) p = Softmax (s) y = MatMul (p, v) }}"""
    proto = support.model(
        text, 23, 10, two=np.array([2]), four=np.array([2, 4, 5, 8]),
        wide_k=np.array([2, 4 // times, times, 5, 8]), wide_v=np.array([2, 4 // other, other, 5, 8]),
    )  # fmt: skip
    return kinds(fused(proto))


@pytest.mark.fires("attention-with-shared-heads")
def test_heads_of_keys_and_values_that_serve_several_queries() -> None:
    assert shared(2, 2) == ["Attention"]
    assert shared(4, 4) == ["Attention"]


def test_keys_and_values_that_are_repeated_differently_stay_repeated() -> None:
    assert "Expand" in shared(2, 4)
