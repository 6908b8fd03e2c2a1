"""A step in float64 takes and gives float32 where its inputs and outputs are large, and computes what it did."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest

import graphopt
from graphopt.check import edges
from graphopt.check.double import Double, in_double
from graphopt.check.runner import Workplace
from tests import support

TEXT = """g (float[64, 64] w, float[64] x, float r) => (float[64, 64] next, float[64] y) {
    a = Mul(w, r)
    next = Sub(w, a)
    y = MatMul(next, x)
}"""


def results(most: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[object], frozenset[str]]:
    monkeypatch.setattr(edges, "LARGE", 1024)
    monkeypatch.setattr(edges, "FROM", most)
    model = graphopt.load(support.model(TEXT))
    rng = np.random.default_rng(0)
    feed: dict[str, object] = {
        "w": rng.standard_normal((64, 64), np.float32), "x": rng.standard_normal(64, np.float32),
        "r": np.array(0.1, np.float32),
    }  # fmt: skip
    like = [np.zeros((64, 64), np.float32), np.zeros(64, np.float32)]
    with Workplace() as workplace:
        double = Double(workplace, model, 10**9)
        return double.run(feed, like), double._narrow


def test_casts_inside_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    (some, narrow), (others, none) = results(1024, monkeypatch), results(1 << 30, monkeypatch)
    assert narrow == {"w"} and not none
    for one, other in zip(some, others, strict=True):
        assert np.asarray(one).dtype == np.float32
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_the_model_keeps_its_names_and_takes_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "LARGE", 1024)
    monkeypatch.setattr(edges, "FROM", 0)
    model = graphopt.load(support.model(TEXT))
    wide = in_double(model)
    assert wide is not None
    kinds = {value.name or "": value.dtype for value in (*model.graph.inputs, *model.graph.outputs) if value.dtype}
    assert edges.cast_edges(wide, kinds) == {"w"}
    names = {value.name: value.dtype and value.dtype.name for value in (*wide.graph.inputs, *wide.graph.outputs)}
    assert names == {"w": "FLOAT", "x": "DOUBLE", "r": "DOUBLE", "next": "FLOAT", "y": "DOUBLE"}
    assert [node.op_type for node in wide.graph] == ["Cast", "Mul", "Sub", "Cast", "MatMul"]


def test_what_a_model_has_a_default_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "LARGE", 1024)
    monkeypatch.setattr(edges, "FROM", 0)
    proto = support.model(TEXT)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w"))
    model = graphopt.load(proto)
    wide = in_double(model)
    assert wide is not None
    kinds = {value.name or "": value.dtype for value in model.graph.inputs if value.dtype}
    assert edges.cast_edges(wide, kinds) == frozenset()


def test_an_input_that_nothing_reads_is_not_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of a step's squares has all of its state as inputs."""
    monkeypatch.setattr(edges, "LARGE", 1024)
    monkeypatch.setattr(edges, "FROM", 0)
    text = "g (float[64, 64] w, float[64, 64] m, float[4] v) => (float[64, 64] y) { y = Neg(w) }"
    wide = in_double(graphopt.load(support.model(text)))
    assert wide is not None
    kinds = {value.name or "": onnx_ir.DataType.FLOAT for value in wide.graph.inputs}
    assert edges.cast_edges(wide, kinds) == {"w", "m"}
    assert [value.dtype for value in wide.graph.inputs] == [
        onnx_ir.DataType.FLOAT, onnx_ir.DataType.FLOAT, onnx_ir.DataType.DOUBLE,
    ]  # fmt: skip
