"""Branches and loops that become plain nodes, beside ONNX Runtime; and those that stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import graphopt
from graphopt.program.control import without_control_flow
from tests import support

BRANCHES = """g (float[3] x, bool c) => (float[3] y) {
    y = If (c) <then_branch = yes () => (float[3] a) { a = Exp(x) }, else_branch = no () => (float[3] b) { b = Neg(x) }>
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
CONSTANTS = {"trips": np.array(4), "true": np.array(True), "limit": np.float32(5)}


def left(text: str, **more: np.ndarray) -> list[str]:
    """The operators that are left."""
    model = without_control_flow(ir.from_proto(support.model(text, 18, **more)))
    return [node.op_type for node in model.graph]


def held_to_the_engine(text: str, feeds: dict[str, np.ndarray], **more: np.ndarray) -> None:
    proto = support.model(text, 18, **more)
    program = graphopt.compile(proto, threads=1)
    assert not program.fallback
    wanted = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    for one, other in zip(program.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_run_and_one_is_chosen(condition: bool) -> None:
    feeds = {"x": np.array([1, -2, 3], np.float32), "c": np.array(condition)}
    held_to_the_engine(BRANCHES, feeds)


def test_a_known_condition_leaves_one_branch() -> None:
    assert left(BRANCHES.replace(", bool c", ""), c=np.array(False)) == ["Neg", "Identity"]


def test_a_counted_loop_is_written_out() -> None:
    text = COUNTED.replace(", bool go", "")
    assert "Loop" not in left(text, trips=CONSTANTS["trips"], true=CONSTANTS["true"])
    feeds = {"x": np.array([1, -2], np.float32)}
    held_to_the_engine(text, feeds, trips=CONSTANTS["trips"], true=CONSTANTS["true"])


@pytest.mark.parametrize("first", [0.1, 1.0, 4.0, 9.0])
def test_a_state_stays_from_where_its_condition_is_false(first: float) -> None:
    held_to_the_engine(ENDED, {"x": np.array([first, -2], np.float32)}, **CONSTANTS)


def test_a_scan_along_other_axes_and_backwards() -> None:
    generator = np.random.default_rng(0)
    shapes = {"s": (2,), "x": (2, 3), "w": (3, 2)}
    held_to_the_engine(SCANNED, {name: generator.random(dims, np.float32) for name, dims in shapes.items()})


def test_the_declared_rows_tell_how_often_a_loop_runs() -> None:
    text = COUNTED.replace("bool go", "int64 trips")
    assert left(text, true=CONSTANTS["true"]).count("Concat") == 1
    assert left(text.replace("float[4,2] z", "float[n,2] z"), true=CONSTANTS["true"]) == ["Loop"]


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (COUNTED.replace(", bool go", ""), {"trips": np.array(65), "true": np.array(True)}),  # too many copies
        (BRANCHES.replace("Exp(x)", "RandomUniformLike(x)"), {}),  # not drawn where the engine does not
        (ENDED.replace("float[2] x", "float[n] x"), CONSTANTS),  # a state of unknown dims
    ],
)
def test_what_stays(text: str, more: dict[str, np.ndarray]) -> None:
    text = text.replace("float[4,2] z", "float[n,2] z")
    model = ir.from_proto(support.model(text, 18, **more))
    assert without_control_flow(model) is model
