"""Branches and loops that become regions or plain nodes, beside ONNX Runtime; and those that stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import graphopt
from graphopt.model.facts import Facts
from graphopt.program.control import without_control_flow
from graphopt.program.subprograms import declare_results, undeclared
from tests import support

BRANCHES = """g (float[3] x, bool c) => (float[3] y) {
    y = If (c) <then_branch = yes () => (float[3] a) { a = Exp(x) }, else_branch = no () => (float[3] b) { b = Neg(x) }>
}"""
FOUND = """g (float[4] x, float[2,5] w) => (int64[n] y, float[2,m] z) {
    first = Slice(x, start, end) s = ReduceSum<keepdims = 0>(first) c = Less(s, nil)
    y, z = If (c) <then_branch = yes () => (int64[0] a, float[2,3] d) { a = Identity(none) d = Identity(w3) },
                   else_branch = no () => (int64[p] b, float[2,5] e) {
        f = NonZero(x) b = Reshape(f, minus_one) e = Exp(w) }>
}"""
COUNTED = """g (float[2] x, bool go) => (float[2] y, float[4,2] z) {
    y, z = Loop (trips, true, x) <body = b (int64 i, bool on, float[2] s) => (bool on_, float[2] s_, float[2] out) {
        k = Cast<to = 1>(i) s_ = Add(s, k) out = Mul(s_, s) on_ = Identity(on)
    }>
}"""
ENDED = """g (float[2] x) => (float[2] y) {
    y = Loop (trips, true, x) <body = b (int64 i, bool on, float[2] s) => (bool on_, float[2] s_) {
        s_ = Add(s, s) m = ReduceMax<keepdims = 0>(s_) on_ = Less(m, limit)
    }>
}"""
SCANNED = """g (float[2] s, float[2,3] x, float[3,2] w) => (float[2] y, float[2,3] z) {
    y, z = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1],
                 scan_output_axes = [1], scan_output_directions = [1],
                 body = b (float[2] p, float[2] r, float[2] t) => (float[2] q, float[2] out) {
        q = Add(p, r) out = Mul(q, t)
    }> (s, x, w)
}"""
GROWING = """g (float[2] x) => (float[10] y) {
    y = Loop (trips, true, x) <body = b (int64 i, bool on, float[k] s) => (bool on_, float[m] s_) {
        s_ = Concat <axis = 0> (s, x) on_ = Identity(on)
    }>
}"""
COUNTING = """g (float[2] x) => (int64 k, float[2] y, float[n,2] z) {
    k, y, z = Loop (, true, zero, x) <body = b (int64 i, bool on, int64 t, float[2] s)
            => (bool on_, int64 t_, float[2] s_, float[2] out) {
        t_ = Add(t, one) on_ = Less(t_, many) s_ = Mul(s, half) out = Add(s_, x)
    }>
}"""
FIXED = """g (float[2,2] x, float[2,2] w) => (float[2,2] y, float[2,2] v) {
    y, v = Loop (trips, true, x, w) <body = b (int64 i, bool on, float[2,2] s, float[2,2] u)
            => (bool on_, float[2,2] s_, float[2,2] u_) {
        e = Exp(u) s_ = MatMul(s, e) u_ = Identity(u) on_ = Identity(on)
    }>
}"""
LARGE = """g (float[3] x, bool c) => (float[3] y) {
    y = If (c) <then_branch = yes () => (float[3] a) {
        p = Exp(x) q = Mul(p, x) r = Softmax(q) s = Add(r, x) t = Mul(s, s) u = Softmax(t) v = Add(u, x) a = Mul(v, p)
    }, else_branch = no () => (float[3] b) { b = Neg(x) }>
}"""
CONSTANTS = {"trips": np.array(4), "true": np.array(True), "limit": np.float32(5),
             "zero": np.array(0), "one": np.array(1), "many": np.array(70), "half": np.float32(0.5)}  # fmt: skip


def left(text: str, **more: np.ndarray) -> list[str]:
    """The operators that are left."""
    model = without_control_flow(ir.from_proto(support.model(text, 18, **more)))
    return [node.op_type for node in model.graph]


def held_to_the_engine(text: str, feeds: dict[str, np.ndarray], **more: np.ndarray) -> None:
    proto = support.model(text, 18, **more)
    program = graphopt.compile(proto, threads=1)
    assert not program.fallback
    wanted = support.session(proto, optimized=True).run(None, feeds)
    for one, other in zip(program.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_run_and_one_is_chosen(condition: bool) -> None:
    feeds = {"x": np.array([1, -2, 3], np.float32), "c": np.array(condition)}
    held_to_the_engine(BRANCHES, feeds)


@pytest.mark.parametrize("first", [-1.0, 0.0, 2.0])
def test_data_decides_how_much_the_branches_give(first: float) -> None:
    """A detector keeps no box where there are none, and else those that it finds."""
    text = FOUND
    more = {"none": np.zeros(0, np.int64), "w3": np.ones((2, 3), np.float32), "minus_one": np.array([-1]),
            "nil": np.float32(0), "start": np.array([0]), "end": np.array([1])}  # fmt: skip
    assert "If" not in left(text, **more)
    weights = np.arange(10, dtype=np.float32).reshape(2, 5) / 10
    held_to_the_engine(text, {"x": np.array([first, 0, 3, 1], np.float32), "w": weights}, **more)


def test_a_known_condition_leaves_one_branch() -> None:
    assert left(BRANCHES.replace(", bool c", ""), c=np.array(False)) == ["Neg", "Identity"]


def test_a_counted_loop_is_a_region() -> None:
    text = COUNTED.replace(", bool go", "").replace("float[4,2] z", "float[n,2] z")
    more = {"trips": CONSTANTS["trips"], "true": CONSTANTS["true"]}
    model = without_control_flow(ir.from_proto(support.model(text, 18, **more)))
    (loop,) = model.graph
    assert [list(output.shape or ()) for output in loop.outputs] == [[2], [4, 2]]
    assert undeclared(model) == 0
    held_to_the_engine(text, {"x": np.array([1, -2], np.float32)}, **more)


def test_a_loop_whose_dims_grow_is_written_out() -> None:
    left_over = left(GROWING, **CONSTANTS)
    assert "Loop" not in left_over and left_over.count("Concat") == 4
    held_to_the_engine(GROWING, {"x": np.array([1, -2], np.float32)}, **CONSTANTS)


@pytest.mark.parametrize("first", [0.1, 1.0, 4.0, 9.0])
def test_a_state_stays_from_where_its_condition_is_false(first: float) -> None:
    held_to_the_engine(ENDED, {"x": np.array([first, -2], np.float32)}, **CONSTANTS)


def test_a_scan_along_other_axes_and_backwards() -> None:
    generator = np.random.default_rng(0)
    shapes = {"s": (2,), "x": (2, 3), "w": (3, 2)}
    held_to_the_engine(SCANNED, {name: generator.random(dims, np.float32) for name, dims in shapes.items()})


def test_the_declared_rows_bound_how_often_a_loop_runs() -> None:
    text = COUNTED.replace("bool go", "int64 trips")
    feeds = {"x": np.array([1, -2], np.float32), "trips": np.array(4)}
    program = graphopt.compile(support.model(text, 18, true=CONSTANTS["true"]), threads=1, feeds=[feeds])
    assert not program.fallback
    state, rows = program.run(None, feeds | {"trips": np.array(2)})
    np.testing.assert_array_equal(state, np.array([2, -1], np.float32))
    np.testing.assert_array_equal(rows, np.array([[1, 4], [2, 2], [0, 0], [0, 0]], np.float32))
    longer = program.run(None, feeds | {"trips": np.array(9)})
    np.testing.assert_array_equal(longer[1], program.run(None, feeds)[1])


def test_a_condition_that_constants_decide_counts_the_iterations() -> None:
    model = without_control_flow(ir.from_proto(support.model(COUNTING, 18, **CONSTANTS)))
    (loop,) = model.graph
    assert [list(output.shape or ()) for output in loop.outputs] == [[], [2], [70, 2]]
    held_to_the_engine(COUNTING, {"x": np.array([1, -2], np.float32)}, **CONSTANTS)


def test_a_state_that_never_changes_is_outside() -> None:
    more = {"trips": CONSTANTS["trips"], "true": CONSTANTS["true"]}
    model = without_control_flow(ir.from_proto(support.model(FIXED, 18, **more)))
    *before, loop = model.graph
    assert [node.op_type for node in before] == ["Identity"]
    assert len(loop.inputs) == 3 and len(loop.outputs) == 1
    generator = np.random.default_rng(1)
    held_to_the_engine(FIXED, {name: generator.random((2, 2), np.float32) for name in "xw"}, **more)


def test_a_large_branch_runs_only_where_it_is_chosen() -> None:
    assert left(LARGE) == ["If"]
    for condition in (True, False):
        held_to_the_engine(LARGE, {"x": np.array([1, -2, 3], np.float32), "c": np.array(condition)})


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (COUNTED, {"trips": np.array(65), "true": np.array(True)}),  # too many copies, and no known number of rows
        (BRANCHES.replace("float[3] b", "float b").replace("Neg(x)", "ReduceSum<keepdims = 0>(x)"), {}),  # other ranks
        (
            BRANCHES.replace("float[3] b", "float[6,6] b")
            .replace("float[3] a", "float[3,3] a")
            .replace("Exp(x)", "Expand(x, nine)")
            .replace("Neg(x)", "Expand(o, more)"),
            {"nine": np.array([3, 3]), "o": np.ones((1, 1), np.float32), "more": np.array([6, 6])},
        ),  # two other dims
        (ENDED.replace("float[2] x", "float[n] x"), CONSTANTS),  # a state of unknown dims
    ],
)
def test_what_stays(text: str, more: dict[str, np.ndarray]) -> None:
    text = text.replace("float[4,2] z", "float[n,2] z").replace("Identity(on)", "Not(go)")
    model = without_control_flow(ir.from_proto(support.model(text, 18, **more)))
    assert [node.op_type for node in model.graph] == [text.split(" = ")[1].split()[0]]


def test_a_loop_of_which_nothing_is_read_declares_nothing() -> None:
    model = ir.from_proto(support.model(ENDED, 18, **CONSTANTS))
    loop = next(node for node in model.graph if node.op_type == "Loop")
    bare = ir.Node("", "Loop", loop.inputs, list(loop.attributes.values()), num_outputs=0)
    declare_results(model, Facts(model), bare, 4, fewer=True)
    assert not bare.outputs


def test_branches_that_are_written_out_share_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first condition is known, the second is what the first node gives, the third depends on data."""
    made: list[Facts] = []

    def counted(model: ir.Model) -> Facts:
        made.append(Facts(model))
        return made[-1]

    monkeypatch.setattr("graphopt.program.control.Facts", counted)
    text = """g (float[3] x, bool c) => (float[3] y) {
        a = If (yes) <then_branch = t1 () => (bool p) { p = Identity(no) },
                      else_branch = e1 () => (bool q) { q = Not(c) }>
        d = If (a) <then_branch = t2 () => (float[3] p) { p = Exp(x) },
                     else_branch = e2 () => (float[3] q) { q = Neg(x) }>
        y = If (c) <then_branch = t3 () => (float[3] p) { p = Add(d, x) }, else_branch = e3 () => (float[3] q) {
            q = Mul(d, x) }>
    }"""  # fmt: skip
    proto = support.model(text, yes=np.array(True), no=np.array(False))
    flat = without_control_flow(ir.serde.deserialize_model(proto))
    assert len(made) == 1
    kinds = [node.op_type for node in flat.graph]
    assert "If" not in kinds and kinds.count("Where") == 2
    for flag in (True, False):
        feed = {"x": np.array([0.5, -1, 2], np.float32), "c": np.array(flag)}
        found = support.session(ir.serde.serialize_model(flat)).run(None, feed)[0]
        np.testing.assert_array_equal(found, support.session(proto).run(None, feed)[0])
