"""Attention that appends keys and values to a cache, which the graph returns."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from tests import support
from tests.passes.fusion.attending import attributes, kinds
from tests.passes.refusing import pass_refuses

PAST = "float[2, 4, n, 8] pk, float[2, 4, n, 8] pv"
PRESENT = "float[2, 4, m, 8] nk, float[2, 4, m, 8] nv"
BODY = """nk = Concat <axis = 2> (pk, k) nv = Concat <axis = -2> (pv, v) t = Transpose <perm = [0, 1, 3, 2]> (nk)
    s = MatMul (q, t) p = Softmax (s) y = MatMul (p, nv)"""


def appended(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    """The optimized model, equal with and without a past."""
    proto = support.model(text, 23, 10, **constants)
    result = graphopt.optimize(proto)
    assert result.verification.passed and not result.rolled_back, result.rolled_back
    found = result.to_proto()
    for past in (0, 1, 6):
        support.assert_equal(proto, found, rtol=1e-4, n=past)
    return found


@pytest.mark.fires("attention-with-cache")
def test_keys_and_values_are_appended_by_the_operator() -> None:
    result = appended(
        f"g (float[2, 4, 3, 8] q, float[2, 4, 3, 8] k, float[2, 4, 3, 8] v, {PAST}) => "
        f"(float[2, 4, 3, 8] y, {PRESENT}) {{ {BODY} }}"
    )
    assert kinds(result) == ["Attention"]
    assert [value.name for value in result.graph.output] == ["y", "nk", "nv"]


@pytest.mark.fires("cached-attention-of-three-axes")
def test_heads_are_cut_and_joined_beside_a_cache() -> None:
    text = f"""g (float[2, 3, 32] q3, float[2, 3, 32] k3, float[2, 3, 32] v3, {PAST}) =>
        (float[2, 3, 32] y3, {PRESENT}) {{
        a = Reshape (q3, cut) q = Transpose <perm = [0, 2, 1, 3]> (a)
        b = Reshape (k3, cut) k = Transpose <perm = [0, 2, 1, 3]> (b)
        c = Reshape (v3, cut) v = Transpose <perm = [0, 2, 1, 3]> (c) {BODY}
        d = Transpose <perm = [0, 2, 1, 3]> (y) y3 = Reshape (d, join) }}"""
    result = appended(text, cut=np.array([2, 3, 4, 8]), join=np.array([2, 3, 32]))
    assert kinds(result) == ["Attention"]
    assert attributes(result)["q_num_heads"] == 4


def test_one_token_beside_a_cache() -> None:
    text = f"""g (float[2, 1, 32] q3, float[2, 1, 32] k3, float[2, 1, 32] v3, {PAST}) =>
        (float[2, 1, 32] y3, {PRESENT}) {{ q = Reshape (q3, cut) k = Reshape (k3, cut) v = Reshape (v3, cut) {BODY}
        y3 = Reshape (y, join) }}"""
    result = appended(text, cut=np.array([2, 4, 1, 8]), join=np.array([2, 1, 32]))
    assert kinds(result) == ["Attention"]


def test_a_cache_that_another_operator_reads_stays_outside() -> None:
    result = appended(
        f"g (float[2, 4, 3, 8] q, float[2, 4, 3, 8] k, float[2, 4, 3, 8] v, {PAST}) => "
        f"(float[2, 4, 3, 8] y, {PRESENT}, float[2, 4, m, 8] z) {{ {BODY} z = Relu (nk) }}"
    )
    assert kinds(result).count("Concat") == 2


def test_pieces_of_different_batches_stay() -> None:
    text = f"""g (float[2, 4, 3, 8] q, float[2, 4, 3, 8] k, float[2, 4, 3, 8] v, float[2, 4, 3, 8] pk,
        float[2, 4, 3, 8] pv) => (float[2, 4, 3, 8] y) {{
        {BODY.replace("axis = 2", "axis = 3").replace("axis = -2", "axis = 3")} }}"""
    text = text.replace("s = MatMul (q, t)", "w = Concat <axis = 3> (q, q) s = MatMul (w, t)")
    text = text.replace("(float[2, 4, 3, 8] y)", "(float[2, 4, 3, 16] y)")
    assert kinds(appended(text)).count("Concat") == 3


ONE_STEP = "float[2, 4, 3, 8] q, float[2, 4, 3, 8] k, float[2, 4, 3, 8] v"
APPENDED = "nk = Concat <axis = 2> (pk, k) nv = Concat <axis = 2> (pv, v)"
REFUSALS = {
    "its causal mask begins at the first key": f"""g ({ONE_STEP}, {PAST}) => (float[A, B, C, D] y, {PRESENT}) {{
        {APPENDED} y = Attention <is_causal = 1> (q, nk, nv) }}""",
    "keys and values are not appended to a past": f"""g ({ONE_STEP}) => (float[A, B, C, D] y) {{
        y = Attention (q, k, v) }}""",
    "the past is of another batch, or has other heads": f"""g ({ONE_STEP.replace("[2, 4, 3, 8] q", "[1, 4, 3, 8] q")},
        {PAST}) => (float[A, B, C, D] y, {PRESENT}) {{ {APPENDED} y = Attention (q, nk, nv) }}""",
    "the Concat belongs to an outer graph": f"""g ({ONE_STEP}, {PAST}, bool c) => (float[A, B, C, D] y, {PRESENT}) {{
        {APPENDED} y = If (c) <then_branch = g1 () => (float[2, 4, 3, 8] t) {{ t = Attention (q, nk, nv) }},
        else_branch = g2 () => (float[2, 4, 3, 8] u) {{ u = Neg (q) }}> }}""",
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_is_no_cache_stays(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_refuses("attention-with-cache", reason, support.model(REFUSALS[reason], 23, 10), monkeypatch)
