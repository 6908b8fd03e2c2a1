"""Sequences that loops add to become what the loops collect, beside ONNX Runtime; and those that stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import graphopt
from graphopt.model.load import load
from graphopt.program.collected import collected
from tests import support

LOOP = """s = SequenceEmpty () t, v = Loop (, true, zero, s) <body = b (int64 i, bool on, int64 k, seq(float[1,n]) p)
            => (bool on_, int64 k_, seq(float[1,n]) q) {
        k_ = Add(k, one) on_ = Less(k_, four) f = Cast<to = 1>(k) r = Mul(x, f) ROW
    }>"""
ADDED = LOOP.replace("ROW", "q = SequenceInsert(p, r)")
CASES = {
    "joined": f"g (float[1,3] x) => (float[4,3] y) {{ {ADDED} y = ConcatFromSequence<axis = 0> (v) }}",
    "joined along the last": f"g (float[1,3] x) => (float[1,12] y) {{ {ADDED} y = ConcatFromSequence<axis = -1> (v) }}",
    "stacked": f"g (float[1,3] x) => (float[1,4,3] y) {{ {ADDED} y = ConcatFromSequence<axis = 1, new_axis = 1> (v) }}",
    "taken": f"g (float[1,3] x) => (float[1,3] y) {{ {ADDED} y = SequenceAt (v, minus) }}",
}
STAYS = {
    "another place": CASES["joined"].replace("SequenceInsert(p, r)", "SequenceInsert(p, r, zero)"),
    "read elsewhere": CASES["joined"].replace("=> (float[4,3] y)", "=> (float[4,3] y, int64 z)").replace(
        "y = Concat", "z = SequenceLength (v) y = Concat"
    ),
    "read inside": CASES["joined"].replace(
        "r = Mul(x, f)", "c = SequenceLength(p) f2 = Cast<to = 1>(c) r = Mul(x, f2)"),
}  # fmt: skip
WEIGHTS = {"zero": np.array(0), "one": np.array(1), "four": np.array(4), "minus": np.array(-1), "true": np.array(True)}


@pytest.mark.parametrize("name", CASES)
def test_a_sequence_that_a_loop_adds_to_is_what_it_collects(name: str) -> None:
    proto = support.model(CASES[name], **WEIGHTS)
    work = collected(load(proto))
    assert "SequenceInsert" not in support.op_types(ir.to_proto(work))
    feed = {"x": np.array([[1.0, -2.0, 3.0]], np.float32)}
    wanted = support.session(proto, optimized=True).run(None, feed)
    got = support.session(ir.to_proto(work), optimized=True).run(None, feed)
    np.testing.assert_array_equal(got[0], wanted[0])
    program = graphopt.compile(proto, threads=1)
    assert program.fallback == () and program.verification.passed


@pytest.mark.parametrize("name", STAYS)
def test_other_sequences_stay(name: str) -> None:
    model = load(support.model(STAYS[name], **WEIGHTS))
    assert collected(model) is model
