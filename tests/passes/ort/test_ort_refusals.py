"""What each condition of the fusions for ONNX Runtime refuses: one graph for each, and the reason that is given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import support
from tests.passes.refusing import pass_refuses, refusal, refuses

WHOLE = {
    "apart": np.array([0, 0, 2, 4]), "wide": np.array([0, 0, 8]), "half": np.float32(0.5).reshape(()),
    "w": np.eye(8, dtype=np.float32), "b": np.arange(8, dtype=np.float32),
}  # fmt: skip
HEADS = """qa = Reshape(x, apart)  q = Transpose<perm = [0, 2, 1, 3]>(qa)
    ka = Reshape(k, apart)  kt = Transpose<perm = [0, 2, 3, 1]>(ka)
    va = Reshape(v, apart)  vh = Transpose<perm = [0, 2, 1, 3]>(va)  """
SCORES = "p = MatMul(q, kt)  "
WEIGHTS = "w0 = Softmax({})  o = MatMul(w0, vh)  ot = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(ot, wide)"
ROWS = "float[N,5,8] x, float[N,5,8] k, float[N,5,8] v"


def graph(body: str, given: str = "float[3,8] x", result: str = "float[A,B] y", opset: int = 17, /,
          **constants: np.ndarray) -> onnx.ModelProto:  # fmt: skip
    """Constants: shapes of two heads of four, a half, a matrix w, a vector b."""
    return support.model(f"g ({given}) => ({result}) {{ {body} }}", opset, **{**WHOLE, **constants})


def attention(middle: str, more: str = "", body: str = HEADS + SCORES, **constants: np.ndarray) -> onnx.ModelProto:
    """Attention of two heads, with `middle` done to the scores p."""
    scores = middle.split(" ")[0] if middle else "p"
    return graph(body + middle + "  " + WEIGHTS.format(scores), ROWS + more, "float[A,B,C] y", 17, **constants)


def split_heads(q: str, kt: str, v: str, result: str = "float[A,B,C] y") -> onnx.ModelProto:
    """Attention of inputs of these dims, as they are."""
    return graph(SCORES + WEIGHTS.format("p"), f"float[{q}] q, float[{kt}] kt, float[{v}] vh", result)


MULTI = "multi-head-attention"
ATTENTION = [
    refusal(MULTI, "heads or their size are not known",
            split_heads("2,H,5,4", "2,H,4,5", "2,H,5,4")),
    refusal(MULTI, "the Transpose does not bring the heads together",
            graph(HEADS + SCORES + WEIGHTS.format("p").replace("0, 2, 1, 3", "0, 1, 3, 2"), ROWS, "float[A,B,C] y")),
    refusal(MULTI, "the heads stay apart",
            graph(HEADS + SCORES + "w0 = Softmax(p)  o = MatMul(w0, vh)  y = Reshape(o, wide)", ROWS,
                  "float[A,B,C] y")),
    refusal(MULTI, "no product with values stands above",
            graph("t = Transpose<perm = [0, 2, 1, 3]>(x)  y = Reshape(t, wide)", "float[2,5,2,4] x", "float[A,B,C] y")),
    refusal(MULTI, "it does not multiply the result of a Softmax",
            graph("o = MatMul(x, z)  t = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(t, wide)",
                  "float[2,2,5,4] x, float[2,2,4,4] z", "float[A,B,C] y")),
    refusal(MULTI, "no product of queries and keys stands under the Softmax",
            graph("w0 = Softmax(x)  o = MatMul(w0, z)  t = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(t, wide)",
                  "float[2,2,5,4] x, float[2,2,4,4] z", "float[A,B,C] y")),
    refusal(MULTI, "the scores are not scaled by a number",
            attention("t = Mul(p, none)", none=np.float32(0).reshape(()))),
    refusal(MULTI, "no operand of the sum comes from a product of queries and keys",
            attention("t = Add(m, m)", ", float[1,1,5,5] m")),
    refusal(MULTI, "queries, keys and values have not four axes", split_heads("2,2,5,4", "2,2,4,5", "2,5,4")),
    refusal(MULTI, "the queries are widened", split_heads("1,2,5,4", "2,2,4,5", "2,2,5,4")),
    refusal(MULTI, "keys or values are widened", split_heads("2,2,5,4", "2,1,4,5", "2,2,5,4")),
    refusal(MULTI, "the mask has not four axes", attention("t = Add(p, m)", ", float[5,5] m")),
    refusal(MULTI, "the mask has not all rows",
            graph(HEADS + SCORES + "t = Add(p, m)  " + WEIGHTS.format("t"),
                  "float[2,R,8] x, float[2,5,8] k, float[2,5,8] v, float[1,1,1,5] m", "float[A,B,C] y")),
    refusal(MULTI, "the new shape has a 0",
            graph(HEADS + SCORES + WEIGHTS.format("p"), ROWS, "float[A,B,C,D] y", 17, wide=np.array([0, 0, 2, 4]))),
]  # fmt: skip

IMAGE = "float[1,2,6,6] x, float[2,2,1,1] c"
PRODUCTS = [
    refusal("fused-matmul", "an operand is a vector",
            graph("t = Transpose(x)  y = MatMul(z, t)", "float[3,8] x, float[8] z", "float[A] y")),
    refusal("scaled-matmul", "what is scaled is no product of matrices", graph("n = Neg(x)  y = Mul(n, half)")),
    refusal("fused-gemm", "before opset 7 Gemm broadcasts by an attribute",
            graph("a = Gemm<broadcast = 1>(x, w, b)  y = Relu(a)", "float[3,8] x", "float[A,B] y", 6)),
    refusal("fused-conv", "no operand of the sum is the result of a Conv alone",
            graph("a = Add(x, x)  y = Relu(a)", IMAGE, "float[A,B,C,D] y")),
    refusal("fused-conv", "before opset 11 the limits are attributes",
            graph("a = Conv(x, c)  y = Clip<min = 0.0, max = 6.0>(a)", IMAGE, "float[A,B,C,D] y", 10)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "proto"), [*ATTENTION, *PRODUCTS])
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)


NORM = "s = Add(x, z)  y = LayerNormalization{}({})"
TWO = "float[3,8] x, float[3,8] z"
ROOT = """s = Add(x, z)  q = Mul(s, {})  v = ReduceMean<axes = [{}]>(q)  e = Add(v, small)  r = Sqrt(e)
    y = Div(s, r)"""
SMALL = np.float32(1e-5)
SKIPS = {
    "it has neither two nor three axes": graph(NORM.format("", "s, b"), "float[8] x, float[8] z", "float[A] y"),
    "it does not compute in float32": graph(NORM.format("<stash_type = 11>", "s, b"), TWO),
    "it is not over the last axis": graph(NORM.format("<axis = 0>", "s, b"), TWO, "float[A,B] y", 17, b=WHOLE["w"][:3]),
    "its mean is wanted": graph("s = Add(x, z)  y, m = LayerNormalization(s, b)", TWO, "float[A,B] y, float[C,D] m"),
    "the length of the last axis is not known": graph(ROOT.format("s", -1), TWO.replace("8", "D"), "float[A,B] y", 17,
                                                      small=SMALL.reshape(())),
    "what is squared is not what is divided": graph(ROOT.format("x", -1), TWO, "float[A,B] y", 17,
                                                    small=SMALL.reshape(())),
    "a constant widens the tensor": graph(ROOT.format("s", -1), TWO, "float[A,B,C] y", 17,
                                          small=SMALL.reshape(1, 1, 1)),
    "the sum belongs to an outer graph": graph(
        """s = Add(x, z)  y = If(c) <then_branch = p () => (float[3,8] t) { t = LayerNormalization(s, b) },
        else_branch = q () => (float[3,8] u) { u = Neg(s) }>""", TWO + ", bool c",
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", SKIPS)
def test_a_sum_before_a_normalization_stays(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_refuses("skip-normalization", reason, SKIPS[reason], monkeypatch)


def test_a_root_mean_square_over_more_than_the_last_axis_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = graph(ROOT.format("s", "0, 1"), TWO, "float[A,B] y", 17, small=SMALL.reshape(()))
    pass_refuses("skip-normalization", "it is not over the last axis", proto, monkeypatch)
