"""Recurrent layers whose steps several workers share: when, and that they are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.program.regions import recurrent
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.program.gpu.test_recurrent import layer


def kernels(proto: onnx.ModelProto) -> list[str]:
    return [region.kernel.name for region in lower(ir.from_proto(proto), host()).regions]


def test_long_steps_of_one_sequence_are_shared_and_short_ones_are_not() -> None:
    shared = kernels(layer("GRU", (5, 1, 8, 192), "forward", ("y",), linear_before_reset=1))
    assert len(shared) == 1 + 5 and len(set(shared)) == 2
    cases: tuple[tuple[tuple[int, int, int, int], str, dict[str, Any]], ...] = (
        ((5, 1, 8, 64), "forward", {"linear_before_reset": 1}),  # so little that two workers would only wait
        ((5, 1, 8, 192), "forward", {"linear_before_reset": 0}),  # the second product waits for the first
        ((5, 64, 8, 192), "forward", {"linear_before_reset": 1}),  # the batch is enough to share
        ((5, 1, 8, 192), "bidirectional", {"linear_before_reset": 1}),  # so are two directions
        ((1, 1, 8, 192), "forward", {"linear_before_reset": 1}),
    )
    for dims, direction, more in cases:
        assert len(kernels(layer("GRU", dims, direction, ("y",), **more))) == 2


@pytest.mark.parametrize(
    ("cell", "direction", "results", "more"),
    [
        ("LSTM", "forward", ("y", "y_h", "y_c"), {}),
        ("LSTM", "reverse", ("y_c",), {"peepholes": True, "states": True}),
        ("GRU", "forward", ("y", "y_h"), {"linear_before_reset": 1}),
        ("RNN", "reverse", ("y_h",), {"activations": ["Relu"]}),
    ],
)
def test_shared_steps_are_equal(
    monkeypatch: pytest.MonkeyPatch, cell: str, direction: str, results: tuple[str, ...], more: dict[str, Any]
) -> None:
    monkeypatch.setattr(recurrent, "LONG_STEP", 0)
    proto = layer(cell, (6, 1, 5, 37), direction, results, **more)
    compiled = graphopt.compile(proto, threads=2)
    assert len(compiled.linked.listing.runs) > 6
    feeds = {"x": np.random.default_rng(0).standard_normal((6, 1, 5)).astype(np.float32)}
    expected = support.session(proto, optimized=True).run(None, feeds)
    for found, want in zip(compiled.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(found, want, rtol=0, atol=2e-6 * max(1.0, float(np.abs(want).max())))


def test_steps_that_are_long_at_some_sizes_of_a_range_are_shared_at_none() -> None:
    proto = layer("LSTM", (3, 1, 8, 128), "forward", ("y",))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[-2].dim_param = "batch"
    assert (
        kernels(layer("LSTM", (3, 1, 8, 128), "forward", ("y",)))[1:]
        != kernels(layer("LSTM", (3, 2, 8, 128), "forward", ("y",)))[1:]
    )
    compiled = graphopt.compile(proto, dims={"batch": (1, 2)}, threads=1)
    for batch in (1, 2):
        feeds = {"x": np.random.default_rng(0).standard_normal((3, batch, 8)).astype(np.float32)}
        (expected,) = support.session(proto).run(None, feeds)
        (found,) = compiled.run(None, feeds)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
