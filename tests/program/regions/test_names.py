"""Values may have any names: a program of hostile ones is the program of plain ones, places and all."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphopt
from graphopt.program.listing import link
from graphopt.program.order import in_best_order
from graphopt.program.regions.lower import lower
from kernels.target import named
from tests import support

SUFFIXES = ("dense", "blocked", "blocks", "0", "16", "gates", "r", "w", "bias", "zero", "@1", "#2", "angles0")
TEXT = """g (float[1,3,8,8] x) => (float[1,8,8,8] y, float[1,8,64] z) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1]>(b, v)
    d = Add(c, b)
    e = Reshape(d, s)
    f = Transpose<perm = [0, 2, 1]>(e)
    h = Softmax<axis = 1>(f)
    z = Transpose<perm = [0, 2, 1]>(h)
    y = Sigmoid(d)
}"""


def _model(names: dict[str, str]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    proto = support.model(
        TEXT,
        w=rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        v=rng.standard_normal((8, 8, 3, 3)).astype(np.float32),
        s=np.array([1, 8, 64]),
    )
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*proto.graph.initializer, *proto.graph.value_info):
        value.name = names.get(value.name, value.name)
    return proto


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64"])
def test_derived_names_meet_no_value(suffix: str, target: str) -> None:
    """Each value is called after another one, with what lowering or planning might put behind it."""
    chain = ["a", "b", "c", "d", "e", "f", "h", "w", "v", "s"]
    names, before = {}, "x"
    for name in chain:
        before = names[name] = f"{before}:{suffix}" if suffix.isalnum() else f"{before}{suffix}"
    plain, hostile = (link(lower(graphopt.load(_model(one)), named(target)), "m") for one in ({}, names))  # type: ignore[arg-type]
    for one in ("runs", "arena_bytes", "weights_bytes", "scratch_bytes"):
        assert getattr(hostile.listing, one) == getattr(plain.listing, one)
    np.testing.assert_array_equal(hostile.weights, plain.weights)


NAMES = st.text("ab@#:/[] '", min_size=1, max_size=6)


@settings(max_examples=8, deadline=None)
@given(st.lists(NAMES, min_size=10, max_size=10, unique=True))
def test_plans_schedules_and_programs_are_those_of_plain_names(drawn: list[str]) -> None:
    """Whatever the values inside are called, and whatever their names' order in the alphabet."""
    hostile = _model(dict(zip(["a", "b", "c", "d", "e", "f", "h", "w", "v", "s"], drawn, strict=True)))
    assert _all(hostile) == _of_plain_names()


@cache
def _of_plain_names() -> object:
    return _all(_model({}))


def _all(proto: onnx.ModelProto) -> object:
    return _program(proto), _plan(proto), _schedule(proto)


def _program(proto: onnx.ModelProto) -> object:
    linked = link(in_best_order(lower(graphopt.load(proto), named("x86-64-v3"))), "m")
    return linked.listing.runs, linked.listing.arena_bytes, linked.weights.tobytes()


def _plan(proto: onnx.ModelProto) -> object:
    record = graphopt.memory(proto, order="best").record
    lines = [(line.bytes, line.offset, line.begin, line.end) for line in record.buffers]
    return record.peak, record.arena, lines, [step.live for step in record.steps]


def _schedule(proto: onnx.ModelProto) -> object:
    record = graphopt.schedule(proto, device="cpu:2", work=2_000, measure=False).record
    spans = [(span.multiprocessor, span.worker, span.blocks, span.start, span.end) for span in record.spans]
    return record.makespan, record.waits, [(way.way, way.arena) for way in record.ways], spans
