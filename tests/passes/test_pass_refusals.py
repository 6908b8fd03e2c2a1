"""What each condition of passes over more than one place refuses: one graph for each, and the reason that is given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import support
from tests.passes.refusing import pass_refuses, refusal, refuses

WHOLE = {
    "w": np.arange(48, dtype=np.float32).reshape(4, 12), "two": np.float32(2).reshape(()),
    "zero": np.array(0), "one": np.array(1), "far": np.array(9),
}  # fmt: skip


def graph(body: str, given: str, result: str, opset: int = 17, /, **constants: np.ndarray) -> onnx.ModelProto:
    """Constants: a matrix w of 4 x 12, the number two, the positions zero, one and far."""
    return support.model(f"g ({given}) => ({result}) {{ {body} }}", opset, **{**WHOLE, **constants})


X = "float[3,4] x"
SEQUENCE = "s = SequenceConstruct(x, x)  "
SHAPES = [
    refusal("member-of-construct", "the position is not a constant",
            graph(SEQUENCE + "y = SequenceAt(s, i)", X + ", int64 i", "float[A,B] y")),
    refusal("member-of-construct", "the position lies outside",
            graph(SEQUENCE + "y = SequenceAt(s, far)", X, "float[A,B] y")),
    refusal("concat-of-construct", "the sequence is not constructed here, or is read elsewhere too",
            graph("s = SplitToSequence(x)  y = ConcatFromSequence<axis = 0>(s)", X, "float[A,B] y")),
    refusal("constant-reshape-target", "allowzero is set and a dimension is zero",
            graph("a = Shape(z)  y = Reshape<allowzero = 1>(x, a)", "float[0,4] x, float[0,4] z", "float[A,B] y")),
    refusal("shape-of-some-dims", "Shape has start and end only since opset 15",
            graph("s = Shape(x)  y = Slice(s, z, o)", X, "int64[A] y", 14, z=np.array([0]), o=np.array([1]))),
    refusal("shape-of-some-dims", "[3, 3] are not consecutive dims of [3, 4]",
            graph("s = Shape(x)  y = Gather(s, z)", X, "int64[A] y", 17, z=np.array([0, 0]))),
    refusal("stack-of-steps", "there is one piece only", graph("y = Concat<axis = 0>(x)", X, "float[A,B] y")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "reason", "proto"), SHAPES)
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)


SPLIT = "a, b, c = Split<axis = 1>(x)  "
THREE = "p = Neg(a)  q = Neg(b)  r = Neg(c)  "
SIX = "float[3,6] x"
OUT = "float[A,B] p, float[C,D] q, float[E,F] r"
CUT = "p = Slice(a, z, o, {0})  q = Slice(b, z, o, {0})  r = Slice(c, z, o, {0})"
ADD = "p = Add(a, {0})  q = Add(b, {1})  r = Add(c, {2})"
OTHER = "d, e, f = Split<axis = {}>({})  "
PIECES = {
    "before opset 7 operands are aligned by attributes": graph(SPLIT + THREE, SIX, OUT, 6),
    "it cuts along the axis of the pieces": graph(SPLIT + CUT.format("one1"), SIX, OUT, 17, z=np.array([0]),
                                                  o=np.array([1]), one1=np.array([1])),
    "the Splits are along other axes": graph(
        SPLIT + OTHER.format(0, "z") + ADD.format("d", "e", "f"), "float[6,6] x, float[6,6] z", OUT,
    ),
    "the pieces differ in size": graph(
        "a, b, c = Split<axis = 1>(x, s)  d, e, f = Split<axis = 1>(z, t)  " + ADD.format("d", "e", "f"),
        "float[3,4] x, float[3,4] z", OUT, 17, s=np.array([1, 1, 2]), t=np.array([2, 1, 1]),
    ),
    "an operand widens the pieces": graph(SPLIT + ADD.format(*["n"] * 3), SIX, OUT.replace("[", "[Z,"), 17,
                                          n=np.ones((2, 1, 1), np.float32)),
    "the operand that all share is computed": graph(SPLIT + ADD.format(*["z"] * 3), SIX + ", float[3,1] z", OUT),
    "the operand differs along the Split's axis": graph(SPLIT + ADD.format(*["n"] * 3), SIX, OUT, 17,
                                                        n=np.ones((1, 2), np.float32)),
    "the other operands are no pieces of one tensor": graph(
        SPLIT + ADD.format("d", "e", "f"), SIX + ", float[3,2] d, float[3,2] e, float[3,2] f", OUT,
    ),
    "the tensors differ in shape": graph(
        SPLIT + OTHER.format(1, "z") + ADD.format("d", "e", "f"), SIX + ", float[1,6] z", OUT,
    ),
    "a reader belongs to another graph": graph(
        SPLIT + """p = Neg(a)  q = Neg(b)  r = If(k) <then_branch = g1 () => (float[3,2] t) { t = Neg(c) },
        else_branch = g2 () => (float[3,2] u) { u = Abs(c) }>""", SIX + ", bool k", OUT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", PIECES)
def test_pieces_stay_apart(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_refuses("batch-pieces", reason, PIECES[reason], monkeypatch)


SHARE = "m = MatMul(x, w)  {}a, b, c = Split<axis = {}>({})  y = Mul(a, two)  z = Neg(y)"
SHARES = {
    "no Split within reach": graph(
        "m = MatMul(x, w)  a, b, c = Split<axis = -1>(m)  t0 = Neg(b)  u0 = Transpose(a)  "
        + "  ".join(f"u{n + 1} = Transpose(u{n})" for n in range(13)) + "  y = Mul(u13, two)  z = Neg(y)", X,
                  "float[A,B] z",
    ),
    "the Reshape cuts the last axis": graph(
        SHARE.format("r = Reshape(m, to)  ", -1, "r"), X, "float[A,B] z", 17, to=np.array([6, 6]),
    ),
    "the Split belongs to an outer graph": graph(
        """m = MatMul(x, w)  a, b, c = Split<axis = -1>(m)  z = If(k) <
        then_branch = g1 () => (float[3,4] t) { s = Mul(a, two)  t = Neg(s) },
        else_branch = g2 () => (float[3,4] u) { u = Neg(x) }>""", X + ", bool k", "float[A,B] z",
    ),
    "the shares are not the weight's columns": graph(
        "m = MatMul(v, x)  a, b, c = Split<axis = -1>(m)  y = Mul(a, two)  z = Neg(y)", "float[4,6] x",
                  "float[A,B] z", 17,
        v=np.ones((3, 4), np.float32) + np.eye(3, 4, dtype=np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", SHARES)
def test_a_number_stays_below_its_split(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_refuses("number-through-split", reason, SHARES[reason], monkeypatch)


AT = "s = SplitToSequence<axis = {}>(x{})  y = SequenceAt(s, zero)"
SEQUENCES = {
    "the axis lies outside the rank": graph(AT.format(5, ""), X, "float[A,B] y"),
    "the number of parts is not known, or very large": graph(AT.format(0, ""), "float[N,4] x", "float[A,B] y"),
    "a size is negative": graph(AT.format(0, ", sizes"), X, "float[A,B] y", 17, sizes=np.array([-1, 4])),
    "an inner graph reads the sequence": graph(
        """s = SplitToSequence(x)  y = If(k) <then_branch = g1 () => (float[1,4] t) { t = SequenceAt(s, zero) },
        else_branch = g2 () => (float[1,4] u) { u = SequenceAt(s, one) }>""", X + ", bool k", "float[A,B] y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", SEQUENCES)
def test_a_sequence_stays(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_refuses("split-into-tensors", reason, SEQUENCES[reason], monkeypatch)
