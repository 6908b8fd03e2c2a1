"""Every rule and pass is named in a test; small graphs in which those fire that the others' tests do not name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt.passes import pipeline
from tests import support

TESTS = Path(__file__).parent.parent
DRAWN = np.random.default_rng(0)
SQUARE = DRAWN.standard_normal((2, 2, 3, 3)).astype(np.float32)
AROUND = np.array([0, 0, 1, 0, 0, 0, 1, 2])
ONE = np.array(1)
TABLE = DRAWN.standard_normal((8, 32)).astype(np.float32)
MATRICES = {name: DRAWN.standard_normal((4, 4)).astype(np.float32) for name in ("q", "k", "v")}
WIDE = {name: DRAWN.standard_normal((512, 64)).astype(np.float32) for name in ("q", "k", "v")}
# Name -> a graph in which it fires, the graph's opset, its constants.
FIRES: dict[str, tuple[str, int, dict[str, np.ndarray]]] = {
    "member-of-construct": (
        """g (float[N,4] x) => (float[N,4] y) {
            a = Neg(x) b = Exp(x) s = SequenceConstruct(a, b) y = SequenceAt(s, one)
        }""",
        17, {"one": ONE},
    ),
    "concat-of-construct": (
        """g (float[N,4] x) => (float[N,8] y) {
            a = Neg(x) s = SequenceConstruct(a, x) y = ConcatFromSequence<axis = 1>(s)
        }""",
        17, {},
    ),
    "move-data-before-dequantizing": (
        """g (float[2,3] x) => (float[2,4] y) {
            d = DequantizeLinear(w, s) e = Reshape(d, to) y = MatMul(x, e)
        }""",
        17, {"w": np.arange(12, dtype=np.int8).reshape(2, 6), "s": np.float32(0.5).reshape(()), "to": np.array([3, 4])},
    ),
    "transpose-into-gemm": (
        "g (float[4,3] p, float[4,5] q, float[5] d) => (float[3,5] y) { t = Transpose(p) y = Gemm(t, q, d) }", 17, {},
    ),
    "pad-into-conv": (
        "g (float[1,2,6,6] x) => (float[A,B,C,D] y) { d = Pad(x, p) y = Conv(d, w) }", 17, {"w": SQUARE, "p": AROUND},
    ),
    "pad-into-average-pool": (
        """g (float[1,2,6,6] x) => (float[A,B,C,D] y) {
            d = Pad(x, p) y = AveragePool<kernel_shape = [3, 3], count_include_pad = 1>(d)
        }""",
        17, {"p": AROUND},
    ),
    "merge-small-projections": (
        "g (float[2,3,4] x) => (float[2,3,4] Q, float[2,3,4] K, float[2,3,4] V) "
        "{ Q = MatMul(x, q) K = MatMul(x, k) V = MatMul(x, v) }",
        17, MATRICES,
    ),
    "merge-projections-of-attention": (
        """g (float[1,128,512] x) => (float[1,128,64] y) {
            Q = MatMul(x, q) K = MatMul(x, k) V = MatMul(x, v) y = Attention<q_num_heads = 2, kv_num_heads = 2>(Q, K, V)
        }""",
        23, WIDE,
    ),
    "merge-equal-contents": (
        """g (float[N,4] x, float[N,8] z, float[1,4] v) => (float[N,4] y, float[N,4] w) {
            s = Shape<start = 0, end = 1>(x) r = Concat<axis = 0>(s, four) y = Expand(v, r)
            t = Shape<start = 0, end = 1>(z) q = Concat<axis = 0>(t, four) e = Exp(v) w = Expand(e, q)
        }""",
        17, {"four": np.array([4])},
    ),
    "write-out-small-splats": (
        """g (float[N,8,32] x) => (float[N,8,32] y) {
            c = ConstantOfShape<value = float[1] {2.0}>(to) a = Max(x, c) b = Add(a, w) d = Exp(b) y = Add(d, v)
        }""",
        17, {"to": np.array([8, 32]), "w": TABLE, "v": TABLE.copy()},  # equal tables pay for what is written out
    ),
    "sum-of-branches": (
        """g (float[1,2,6,6] x) => (float[1,2,6,6] y) {
            s = Conv<pads = [1, 1, 1, 1]>(x, w) t = Mul(x, c) y = Add(s, t)
        }""",
        17, {"w": np.arange(36, dtype=np.float32).reshape(2, 2, 3, 3) / 36, "c": np.float32([2, 3]).reshape(2, 1, 1)},
    ),
    "mish": (
        "g (float[N,3] x) => (float[N,3] y) { e = Exp(x) s = Add(e, one) l = Log(s) t = Tanh(l) y = Mul(t, x) }",
        18, {"one": np.float32(1).reshape(())},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(name: str, fired: set[str]) -> None:
    text, opset, constants = FIRES[name]
    proto = support.model(text, opset, **constants)
    result = graphopt.optimize(proto)
    assert name in fired
    assert result.verification.status == "verified" and not result.rolled_back
    fired.clear()
    graphopt.optimize(proto, skip=[name])
    assert name not in fired


def test_every_rule_and_pass_is_named_in_a_test() -> None:
    """In the code of one, or in the golden operators of a model, which say how often each fired."""
    texts = [node.value for path in TESTS.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
    golden = "\n".join(path.read_text() for path in (TESTS / "golden" / "zoo").glob("*.optimized.txt"))
    named = {*re.findall(r"[a-z][a-z0-9-]+", " ".join(texts)), *re.findall(r"^([a-z0-9-]+) x \d", golden, re.M)}
    passes = (step.name for step in pipeline.every_pass() if not step.rules)
    known = {*(rule.name for rule in pipeline.rules()), *passes}
    assert not known - named
