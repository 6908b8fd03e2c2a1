"""The lines of `graphopt compile`."""

from __future__ import annotations

import io

import pytest

from graphopt.flows.records.compilation import CompileRecord
from graphopt.report.compilation import print_compile
from graphopt.report.screen import Screen


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (
            160 << 20,
            "weights       160 MiB; 45 MiB in the model; kernels keep some in larger forms, fewer with --exact\n",
        ),
        (47 << 20, "weights       47 MiB\n"),
    ],
)
def test_weights_that_are_larger_than_the_models_are_said_to_be(weights: int, said: str) -> None:
    record = CompileRecord(
        "m.onnx", "b", "cpu", "x86-64-v4", 1, 1, weights, 0, 0, 0, 1.0, 0.0, 0.0,
        feeds=1, tolerance={"float32": 3e-5}, model_bytes=45 << 20,
    )  # fmt: skip
    stream = io.StringIO()
    print_compile(Screen(stream), record)
    assert said in stream.getvalue()
    assert "allowed: 3e-05 (float32); beyond that 10 x the model's own rounding\n" in stream.getvalue()


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        (None, "threads       one: several would gain nothing, or --threads 1 was given\n"),
        (3 << 20, "threads       any number, with an arena of 3 MiB for several\n"),
    ],
)
def test_how_many_threads_run_a_bundle(shared: int | None, said: str) -> None:
    record = CompileRecord(
        "m.onnx", "b", "cpu", "x86-64-v4", 1, 1, 1, 0, 0, 0, 1.0, 0.0, 0.0, shared_arena_bytes=shared
    )
    stream = io.StringIO()
    print_compile(Screen(stream), record)
    assert said in stream.getvalue()
