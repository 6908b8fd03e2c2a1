"""Sequences that are built only to be taken apart become tensors."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.passes import sequences
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests.support import assert_equal, model, op_types

WEIGHTS = {
    "zero": np.array(0), "one": np.array(1), "last": np.array(-1), "two": np.array(2), "sizes": np.array([1, 3]),
    "far": np.array(7),
}  # fmt: skip
IO = "g (float[N,4] x) => (float[N,A] y, float[N,B] z)"
BOTH = "y = SequenceAt(s, zero) z = SequenceAt(s, last)"


def run(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    steps = [Pass("rules", 1, sequences.RULES), Pass("split", 1, run=sequences.split_into_tensors)]
    run_passes(Editor(copy), steps)
    result = ir.to_proto(copy)
    onnx.checker.check_model(result)
    return result


FIRES = {
    "pieces of one size": (f"{IO} {{ s = SplitToSequence<axis = 1>(x, two) {BOTH} }}", ["Split"]),
    "a shorter last piece": (f"{IO} {{ s = SplitToSequence<axis = -1>(x, three) {BOTH} }}", ["Split"]),
    "listed sizes": (f"{IO} {{ s = SplitToSequence<axis = 1>(x, sizes) {BOTH} }}", ["Split"]),
    "listed sizes of an axis of unknown length": (
        "g (float[4,N] x) => (float[1,N] y, float[3,N] z) { s = SplitToSequence<axis = 0>(x, sizes) "
        f"{BOTH} }}", ["Split"],
    ),
    "single elements": (f"{IO} {{ s = SplitToSequence<axis = 1>(x) {BOTH} }}", ["Split"]),
    "single elements without the axis": (
        "g (float[N,4] x) => (float[N] y, float[N] z) { s = SplitToSequence<axis = 1, keepdims = 0>(x) "
        f"{BOTH} }}", ["Gather", "Gather"],
    ),
    "a part read twice": (
        "g (float[N,4] x) => (float[N,2] y) { s = SplitToSequence<axis = 1>(x, two) a = SequenceAt(s, one) "
        "b = SequenceAt(s, last) y = Add(a, b) }", ["Split", "Add"],
    ),
    "a constructed sequence": (
        "g (float[N,4] x) => (float[N,4] y) { a = Neg(x) b = Exp(x) s = SequenceConstruct(a, b) "
        "y = SequenceAt(s, one) }", ["Exp"],
    ),
    "a joined sequence": (
        "g (float[N,4] x) => (float[N,8] y) { a = Neg(x) s = SequenceConstruct(a, x) "
        "y = ConcatFromSequence<axis = 1>(s) }", ["Neg", "Concat"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("name", FIRES)
def test_becomes_tensors(name: str, opset: int) -> None:
    text, expected = FIRES[name]
    proto = model(text, opset, **WEIGHTS, three=np.array(3))
    result = run(proto)
    kept = [kind for kind in op_types(result) if kind != "Neg" or "Neg" in expected]  # clean-up has its own pass
    assert kept == expected
    assert_equal(proto, result, rtol=0, atol=0, N=4)


STAYS = {
    "a position that is an input": (
        "g (float[N,4] x, int64 i) => (float[N,2] y) { s = SplitToSequence<axis = 1>(x, two) y = SequenceAt(s, i) }"
    ),
    "a position outside": (
        f"{IO} {{ s = SplitToSequence<axis = 1>(x, two) y = SequenceAt(s, zero) z = SequenceAt(s, far) }}"
    ),
    "an axis of unknown length": (
        f"g (float[N,4] x) => (float[A,4] y, float[B,4] z) {{ s = SplitToSequence<axis = 0>(x, two) {BOTH} }}"
    ),
    "a sequence that is a result": (
        "g (float[N,4] x) => (float[N,2] y, seq(float[N,2]) s) { s = SplitToSequence<axis = 1>(x, two) "
        "y = SequenceAt(s, zero) }"
    ),
    "a sequence whose length is asked": (
        "g (float[N,4] x) => (float[N,2] y, int64 n) { s = SplitToSequence<axis = 1>(x, two) "
        "y = SequenceAt(s, zero) n = SequenceLength(s) }"
    ),
    "one part under two names": (
        "g (float[N,4] x) => (float[N,2] y, float[N,2] z) { s = SplitToSequence<axis = 1>(x, two) "
        "y = SequenceAt(s, one) z = SequenceAt(s, last) }"
    ),
    "a stacked sequence": (
        "g (float[N,4] x) => (float[N,2,4] y) { a = Neg(x) s = SequenceConstruct(a, x) "
        "y = ConcatFromSequence<axis = 1, new_axis = 1>(s) }"
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_near_misses_stay(name: str) -> None:
    proto = model(STAYS[name], 17, **WEIGHTS)
    assert op_types(run(proto)) == op_types(proto)
