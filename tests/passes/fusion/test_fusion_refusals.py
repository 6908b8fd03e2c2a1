"""What each condition of the fusions refuses: one graph for each, and the reason that is given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import support
from tests.passes.fusion.attending import FOUR, GUARDED, LOWEST, number, spelled
from tests.passes.refusing import refusal, refuses

PLAIN = "float[2,3] x"


def graph(body: str, given: str = PLAIN, result: str = "float[A,B] y", opset: int = 18, /, **constants: np.ndarray
          ) -> onnx.ModelProto:  # fmt: skip
    """`one` and `zero` are numbers, `wide` is a 1 of three axes."""
    kind = np.float64 if given.startswith("double") else np.float32
    numbers = {"one": number(1, kind), "zero": number(0, kind), "wide": np.ones((1, 1, 1), kind)}
    return support.model(f"g ({given}) => ({result}) {{ {body} }}", opset, **{**numbers, **constants})


DOUBLE = ("double[2,3] x", "double[A,B] y")
THREE = (PLAIN, "float[A,B,C] y")
FLOAT_ONLY = "only float has the operator in runtimes"
EXPONENTIALS = [
    refusal("softplus", FLOAT_ONLY, graph("e = Exp(x)  a = Add(e, one)  y = Log(a)", *DOUBLE)),
    refusal("softplus", "a constant may widen the tensor", graph("e = Exp(x)  a = Add(e, wide)  y = Log(a)", *THREE)),
    refusal("mish", FLOAT_ONLY, graph("s = Softplus(x)  t = Tanh(s)  y = Mul(x, t)", *DOUBLE)),
    refusal("log-softmax", "only float and float16 have the operator in runtimes",
            graph("s = Softmax(x)  y = Log(s)", *DOUBLE)),
    refusal("hard-sigmoid", FLOAT_ONLY, graph("m = Add(x, one)  y = Clip(m, zero, one)", *DOUBLE)),
    refusal("hard-sigmoid", "what is clipped is not a x + b", graph("m = Neg(x)  e = Exp(m)  y = Clip(e, zero, one)")),
    refusal("hard-sigmoid", "a constant may widen the tensor",
            graph("m = Add(x, wide)  y = Clip(m, zero, one)", *THREE)),
    refusal("hard-sigmoid", "the factor is not positive",
            graph("c = Clip(x, zero, one)  y = Mul(c, less)", less=number(-1))),
    refusal("hard-sigmoid", "the limits are not known",
            graph("m = Add(x, one)  y = Clip(m, low, one)", PLAIN + ", float low")),
    refusal("guard-of-softmax", "what may not be a number is no Softmax",
            graph("n = Neg(x)  i = IsNaN(n)  y = Where(i, zero, n)")),
]  # fmt: skip


def blocks(perm: str, source: str, inner: tuple[int, ...], result: tuple[int, ...], kind: str = "float"
           ) -> onnx.ModelProto:  # fmt: skip
    """A Transpose of six axes between two Reshapes."""
    text = f"""g ({kind}[{source}] x) => ({kind}[A,B,C,D] y) {{ r = Reshape(x, inner)
        t = Transpose<perm = [{perm}]>(r)  y = Reshape(t, result) }}"""
    return support.model(text, 17, inner=np.array(inner), result=np.array(result))


INTO_DEPTH, INTO_SPACE = "0, 3, 5, 1, 2, 4", "0, 3, 4, 1, 5, 2"
NO_SQUARE = "the block is not a square of known size"
BLOCKS = [
    refusal("space-to-depth", NO_SQUARE, blocks(INTO_DEPTH, "1,2,6,6", (1, 2, 3, 2, 2, 3), (1, 12, 3, 2))),
    refusal("space-to-depth", "the first Reshape does not only cut rows and columns into blocks",
            blocks(INTO_DEPTH, "1,2,4,6", (1, 2, 3, 2, 2, 2), (1, 8, 3, 2))),
    refusal("space-to-depth", "the last Reshape does not only join the channels",
            blocks(INTO_DEPTH, "1,2,6,4", (1, 2, 3, 2, 2, 2), (1, 8, 2, 3))),
    refusal("depth-to-space", NO_SQUARE, blocks(INTO_SPACE, "1,12,3,2", (1, 2, 3, 2, 3, 2), (1, 2, 6, 6))),
    refusal("depth-to-space", "the first Reshape does not only cut the channels into blocks",
            blocks(INTO_SPACE, "1,8,2,3", (1, 2, 2, 2, 3, 2), (1, 2, 6, 4))),
    refusal("depth-to-space", "the last Reshape does not only join blocks to rows and columns",
            blocks(INTO_SPACE, "1,8,3,2", (1, 2, 2, 2, 3, 2), (1, 2, 4, 6))),
    refusal("depth-to-space", "only float and double have the operator in runtimes",
            blocks(INTO_SPACE, "1,8,3,2", (1, 2, 2, 2, 3, 2), (1, 2, 6, 4), "int32")),
    refusal("depth-to-space", "before opset 5 Reshape has no shape input",
            support.model(f"""g (float[1,8,3,2] x) => (float[1,2,6,4] y) {{ r = Reshape<shape = [1, 2, 2, 2, 3, 2]>(x)
                t = Transpose<perm = [{INTO_SPACE}]>(r)  y = Reshape<shape = [1, 2, 6, 4]>(t) }}""", 4)),
]  # fmt: skip

KEEP = np.tri(3, 5, 2, dtype=bool)
CHOSEN = {"keep": KEEP, "shut": number(-1e9), "two": number(2), "less": number(-2)}
MASK = np.zeros((3, 5), np.float32)
OPEN = ", bool[3, 5] asked, float[2, 4, 3, 5] m"
DARK = np.where(np.tri(3, 5, -1, dtype=bool), 0, -np.inf).astype(np.float32)
DARK[2, 4] = LOWEST


def heads(q: str, k: str, v: str) -> str:
    """The inputs of these dims."""
    return f"float[{q}] q, float[{k}] k, float[{v}] v"


def attention(middle: str, inputs: str = FOUR + OPEN, result: str = "2, 4, 3, 8", **constants: np.ndarray
              ) -> onnx.ModelProto:  # fmt: skip
    """Attention with something done to its scores, and a result of other dims."""
    proto = spelled(middle, inputs=inputs, **{**CHOSEN, **constants})
    sizes = [int(size) for size in result.split(", ")]
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, sizes))
    return proto


SAME = "a = Mul (s, two)"
WIDENED = "the mask widens the scores"
ATTENTION = [
    refusal("attention", "scores are replaced before they are scaled",
            attention("w = Where (keep, s, shut) a = Mul (w, two)")),
    refusal("attention", "the scores are not scaled by a number", attention("a = Mul (s, m)")),
    refusal("attention", "what is bounded is scaled again",
            attention("h = Tanh (s) c = Mul (h, two) a = Mul (c, two)")),
    refusal("attention", "the soft cap is not above 0", attention("h = Tanh (s) a = Mul (h, less)")),
    refusal("attention", "no operand of the sum comes from a product of queries and keys", attention("a = Add (m, m)")),
    refusal("attention", "scores are replaced by more than one number", attention("a = Where (keep, s, m)")),
    refusal("attention", "queries, keys and values have not four axes",
            attention(SAME, heads("2, 4, 3, 8", "2, 4, 5, 8", "4, 5, 8"))),
    refusal("attention", "keys and values have not as many heads",
            attention(SAME, heads("2, 4, 3, 8", "2, 1, 5, 8", "2, 4, 5, 8"))),
    refusal("attention", "the heads of the queries are no multiple of those of the keys",
            attention(SAME, heads("2, 1, 3, 8", "2, 4, 5, 8", "2, 4, 5, 8"))),
    refusal("attention", "a head is empty",
            attention(SAME, heads("2, 4, 3, 8", "2, 4, 5, 8", "2, 4, 5, 0"), "2, 4, 3, 0")),
    refusal("attention", "scores are replaced and a mask is added",
            attention("w = Where (keep, s, shut) a = Add (w, n)", n=MASK)),
    refusal("attention", "it holds both -inf and the lowest number",
            spelled("a = Add (s, m)", end=GUARDED, m=DARK)),
    refusal("attention", "a row may be -inf throughout: NaN here, 0 from the operator",
            attention("a = Where (asked, s, shut)", shut=number(-np.inf))),
    refusal("attention", WIDENED,
            attention("a = Add (s, n)", heads("2, 4, 1, 8", "2, 4, 5, 8", "2, 4, 5, 8"), n=MASK)),
    refusal("attention", WIDENED,
            attention("a = Add (s, n)", heads("1, 4, 3, 8", "1, 4, 5, 8", "1, 4, 5, 8"),
                      n=np.zeros((2, 1, 3, 5), np.float32))),
    refusal("attention", "whether the mask widens the scores is not known",
            attention("z = Concat <axis = 0> (h, h) a = Where (z, s, shut)",
                      heads("2, 4, 3, 8", "2, 4, 5, 8", "2, 4, 5, 8") + ", bool[M, 1, 3, 5] h")),
    refusal("attention", "no product of queries and keys stands under the Softmax", attention("a = Neg (m)")),
    refusal("scale-of-normalization", "LayerNormalization 'n' belongs to an outer graph",
            graph("""n = LayerNormalization(x, c)  y = If(k) <then_branch = g1 () => (float[2,3] t) { t = Mul(n, c) },
                else_branch = g2 () => (float[2,3] u) { u = Neg(x) }>""", PLAIN + ", bool k",
                  c=np.ones(3, np.float32))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "proto"), [*EXPONENTIALS, *BLOCKS, *ATTENTION])
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)
