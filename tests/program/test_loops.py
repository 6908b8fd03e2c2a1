"""Loops that end by several conditions, by a count of a run, and whose states change their dims."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import NotLowered
from graphopt.flows.asked import optimized
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.model.trips import Ending, ended
from tests import support

# Ends after three iterations, or before, by a number that a run gives; the count is what exporters write for none.
TWO = """g (float[3] x, int64 n) => (float[k,3] z) {
    first = Less(zero, n)
    y, z = Loop(many, first, x) <body = b (int64 i, bool c, float[3] v) => (bool go, float[3] w, float[3] q) {
        w = Mul(v, v) q = Identity(w) j = Add(i, one) a = Less(j, three) d = Less(j, n) go = And(a, d) }> }"""
# A count of a run, and a condition that ends it after four iterations at the latest.
COUNTED = """g (float[3] x, int64 n) => (float[k,3] z) {
    y, z = Loop(n, on, x) <body = b (int64 i, bool c, float[3] v) => (bool go, float[3] w, float[3] q) {
        w = Mul(v, v) q = Identity(w) go = Less(i, three) }> }"""
# What is kept of an index grows where it is not the one to leave out; behind it the mean of the rows that it names.
KEPT = """g (float[5,2] table, int64[3] names) => (float[2] y) {
    kept = Loop(three, on, nothing) <body = b (int64 i, bool c, int64[k] so) => (bool go, int64[m] more) {
        go = Identity(c) name = Gather(names, i) same = Equal(name, two) other = Not(same)
        more = If(other) <then_branch = t () => (int64[p] u) { place = Reshape(i, flat) u = Concat<axis=0>(so, place) },
                          else_branch = e () => (int64[q] v) { v = Identity(so) }> }>
    rows = Gather(table, kept) y = ReduceMean<axes=[0], keepdims=0>(rows)
}"""
NUMBERS = {
    "zero": np.array(0), "one": np.array(1), "two": np.array(2), "three": np.array(3), "many": np.array(2**63 - 1),
    "on": np.array(True), "nothing": np.zeros(0, np.int64), "flat": np.array([-1]),
}  # fmt: skip
X = np.array([1.1, 0.9, 1.2], np.float32)


def _model(text: str) -> onnx.ModelProto:
    return support.model(text, 17, **NUMBERS)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_loop_ends_by_whichever_condition_is_false_first(count: int, rows: int) -> None:
    made = graphopt.compile(_model(TWO), threads=1)
    assert not made.fallback
    (found,) = made.run(None, {"x": X, "n": np.array(count)})
    np.testing.assert_allclose(found, [X.astype("f8") ** 2 ** (row + 1) for row in range(rows)], rtol=8 * 2.0**-23)


@pytest.mark.parametrize(("text", "ending"), [(TWO, Ending(3, False)), (COUNTED, Ending(4, True))])
def test_when_a_loop_ends_at_the_latest(text: str, ending: Ending) -> None:
    model = load(_model(text))
    loop = next(node for node in model.graph if node.op_type == "Loop")
    assert ended(Facts(model), loop, loop.attributes["body"].as_graph(), 64) == ending


def test_a_count_that_a_run_gives_may_end_a_loop_before_its_condition() -> None:
    with pytest.raises(NotLowered, match="has no kernel yet"):
        graphopt.compile(_model(COUNTED), threads=1)


def test_a_body_whose_state_changes_its_dims_is_not_made_for_the_first_ones() -> None:
    """Of nothing and a place the first iteration makes the place alone, the later ones more."""
    model = _model(KEPT)
    table, names = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([4, 2, 1])
    made = ir.to_proto(optimized(load(model)))
    (found,) = support.session(made).run(None, {"table": table, "names": names})
    np.testing.assert_array_equal(found, table[[0, 2]].mean(axis=0))


def test_parts_of_what_is_empty_lie_anywhere() -> None:
    made = graphopt.compile(
        support.model("""g (float[5,0,3] x) => (float[0,3] a, float[0,3] b) {
            p = Slice(x, zero, one, zero) a = Squeeze(p, zero) q = Slice(x, three, four, zero) b = Squeeze(q, zero)
        }""", 17, zero=np.array([0]), one=np.array([1]), three=np.array([3]), four=np.array([4])),
        threads=1,
    )  # fmt: skip
    assert [one.shape for one in made.run(None, {"x": np.zeros((5, 0, 3), np.float32)})] == [(0, 3), (0, 3)]
