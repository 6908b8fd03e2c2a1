"""Regions of If, Loop and Scan beside ONNX Runtime without optimizations: counts, conditions, rows, nests, threads."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphopt
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Cache
from kernels.target import host
from tests import support

LOOP = """g (float[3,4] x, int64 trips, bool go, float most) => (float[3,4] y, int64 k, float[R,4] z) {
    y, k, z = Loop (trips, go, x, zero) <body = b (int64 i, bool on, float[3,4] s, int64 t)
            => (bool on_, float[3,4] s_, int64 t_, float[4] out) {
        p = MatMul(s, w) h = Softmax(p) s_ = Add(h, x) t_ = Add(t, i)
        out = ReduceSum<keepdims = 0>(s_, axis) m = ReduceMax<keepdims = 0>(s_) on_ = Less(m, most)
    }>
}"""
SCAN = """g (float[2] s, float[A] x, float[3,B] w) => (float[2] y, float[C] z, float[3] r) {
    y, z, r = Scan <num_scan_inputs = 2, scan_input_axes = [AX, BX], scan_input_directions = [AD, BD],
                    scan_output_axes = [CX, 0], scan_output_directions = [CD, ED],
                    body = b (float[2] p, float[2] u, float[B] v) => (float[2] q, float[2] out, float e) {
        h = ReduceMean<keepdims = 0>(v) q = Add(p, u) out = Mul(q, h) e = ReduceSum<keepdims = 0>(out)
    }> (s, x, w)
}"""
NESTED = """g (float[2] x, int64 trips, bool c) => (float[2] y) {
    y = Loop (trips, , x) <body = b (int64 i, bool on, float[2] s) => (bool on_, float[2] s_) {
        rows = Expand(s, dims)
        n, z = Scan <num_scan_inputs = 1, body = inner (float[2] p, float[2] u) => (float[2] q, float[2] out) {
            q = Add(p, u) out = Mul(q, x)
        }> (s, rows)
        o = Cast<to = 9>(i) d = And(o, c)
        s_ = If (d) <then_branch = yes () => (float[2] a) { t = ReduceSum<keepdims = 0>(z, axis) v = Add(t, s)
            w_ = Softmax(v) k = Exp(w_) l = Mul(k, x) m = Tanh(l) r = Add(m, s) a = Div(r, half) },
            else_branch = no () => (float[2] f) { f = Mul(n, half) }>
        on_ = Identity(on)
    }>
}"""


def held_to_the_engine(text: str, feeds: list[dict[str, np.ndarray]], threads: int = 1, **more: np.ndarray) -> None:
    proto = support.model(text, 18, **more)
    onnx.checker.check_model(proto)
    program, engine = graphopt.compile(proto, threads=threads, feeds=feeds[:1]), support.session(proto)
    assert not program.fallback
    for feed in feeds:
        for one, other in zip(program.run(None, feed), engine.run(None, feed), strict=True):
            assert np.shape(one) == np.shape(other)
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_loops_of_any_count_and_condition(rows: int, threads: int) -> None:
    generator = np.random.default_rng(rows)
    more = {"w": generator.random((4, 4), np.float32), "zero": np.array(0), "axis": np.array([0])}
    x = generator.random((3, 4), np.float32)
    feed = {"x": x, "trips": np.array(rows), "go": np.array(True), "most": np.array(9, np.float32)}
    held_to_the_engine(LOOP.replace("R", str(rows), 1), [feed], threads, **more)


ENDS = [(0, True, 9), (7, False, 9), (7, True, 1.2), (3, True, 9), (-2, True, 9)]


@pytest.mark.parametrize(("trips", "go", "most"), ENDS)
def test_states_of_loops_that_end_early(trips: int, go: bool, most: float) -> None:
    generator = np.random.default_rng(0)
    more = {"w": generator.random((4, 4), np.float32), "zero": np.array(0), "axis": np.array([0])}
    text = LOOP.replace(", float[R,4] z)", ")", 1).replace("y, k, z =", "y, k =").replace(", float[4] out)", ")")
    text = text.replace("out = ReduceSum<keepdims = 0>(s_, axis) ", "")
    first = {"x": generator.random((3, 4), np.float32), "trips": np.array(5), "go": np.array(True)}
    first |= {"most": np.array(9, np.float32)}
    other = first | {"trips": np.array(trips), "go": np.array(go), "most": np.array(most, np.float32)}
    held_to_the_engine(text, [first, other], **more)


@settings(max_examples=12, deadline=None)
@given(st.tuples(*[st.integers(0, 1)] * 3), st.tuples(*[st.integers(0, 1)] * 4), st.integers(1, 5))
def test_scans_along_any_axes(axes: tuple[int, ...], turned: tuple[int, ...], width: int) -> None:
    text = SCAN
    for key, number in zip(("AX", "BX", "CX"), (axes[0], 0, axes[2]), strict=True):
        text = text.replace(key, str(number))
    for key, number in zip(("AD", "BD", "CD", "ED"), turned, strict=True):
        text = text.replace(key, str(number))
    text = text.replace("[A]", "[2,3]" if axes[0] else "[3,2]").replace("[C]", "[2,3]" if axes[2] else "[3,2]")
    text = text.replace("B]", f"{width}]")
    generator = np.random.default_rng(width)
    feed = {
        "s": generator.random(2, np.float32), "w": generator.random((3, width), np.float32),
        "x": generator.random((2, 3) if axes[0] else (3, 2), np.float32),
    }  # fmt: skip
    held_to_the_engine(text, [feed])


@pytest.mark.parametrize("condition", [True, False])
def test_control_flow_inside_control_flow(condition: bool) -> None:
    more = {"dims": np.array([3, 2]), "axis": np.array([0]), "half": np.float32(0.5)}
    feed = {"x": np.array([0.3, -0.2], np.float32), "trips": np.array(5), "c": np.array(condition)}
    held_to_the_engine(NESTED, [feed, feed | {"trips": np.array(2)}], **more)


COLLECTED = """g (float[2] x, float most) => (float[2] y, float[n,2] z, float[n] r, float[n,2] e) {
    y, z, r = Loop (many, true, x) <body = b (int64 i, bool on, float[2] s)
            => (bool on_, float[2] s_, float[2] out, float m) {
        s_ = Add(s, one) out = Mul(s_, s) m = ReduceMax<keepdims = 0>(s_) on_ = Less(m, most)
    }>
    e = Exp(z)
}"""


@pytest.mark.parametrize("most", [0.5, 1.5, 3.5, 6.0])
def test_what_a_loop_collects_has_as_many_rows_as_it_ran(most: float) -> None:
    more = {"many": np.array(100), "true": np.array(True), "one": np.float32(1)}
    feed = {"x": np.array([0.3, -0.2], np.float32), "most": np.array(most, np.float32)}
    held_to_the_engine(COLLECTED, [feed, feed | {"most": np.array(4.5, np.float32)}], **more)


def test_a_state_lies_where_it_goes_in_the_end_unless_the_body_reads_there() -> None:
    """Its other place is in the loop's memory; both are there where the result is a cache in an input's memory."""
    text = """g (float[3,400] x, float[3,400] c, int64 trips) => (float[3,400] y) {
        y = Loop (trips, true, x) <body = b (int64 i, bool on, float[3,400] s) => (bool on_, float[3,400] s_) {
            r = Mul(s, half) s_ = Add(r, c) on_ = Identity(on)
        }>
    }"""
    model = ir.from_proto(support.model(text, 18, true=np.array(True), half=np.float32(0.5)))
    for caches, states in ({}, 1), ({"y": Cache("c", (3, 400))}, 2):
        (loop,) = lower(model, host(), caches=caches).regions
        (memory,) = {place.buffer for place in loop.places if place.buffer.role == "temporary"}
        assert memory.size // (4 * 3 * 400) == states
