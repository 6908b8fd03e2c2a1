"""Damaged files through the harness of `bench.mutations`: sixty by a fixed seed, and the harness's own no."""

from __future__ import annotations

import os
import signal

import onnx
import pytest

import graphopt
from bench import mutations
from graphopt.errors import OptionError
from tests import support

SEED, CASES, FLOWS = 7, 60, 6
SOURCES = [
    ("sum", support.model("g (float[2,3] x) => (float[2] y) { a = Exp(x) y = ReduceSum <keepdims = 0> (a, axes) }",
                          axes=onnx.numpy_helper.to_array(onnx.helper.make_tensor("t", 7, [1], [1])))),
    ("choice", support.model(
        """g (bool c, float[2] x) => (float[2] y) {
          y = If (c) <
            then_branch = t () => (float[2] u) { u = Abs(x) },
            else_branch = e () => (float[2] v) { v = Exp(x) }>
        }""")),
    ("loop", support.model(
        """g (float[2] x) => (float[2] y) {
          n = Constant <value_int = 3> ()
          y = Loop (n, , x) <
            body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity(c) w = Neg(v) }>
        }""")),
]  # fmt: skip


def _case(number: int) -> tuple[str, str, bytes]:
    return mutations.damaged(SEED, number, [(name, model.SerializeToString()) for name, model in SOURCES])


def test_a_case_is_the_same_every_time() -> None:
    assert [_case(number) for number in range(CASES)] == [_case(number) for number in range(CASES)]
    assert {kind for _, kind, _ in map(_case, range(CASES))} == set(mutations.DAMAGES)


def test_damaged_files_load_or_are_refused() -> None:
    said = [mutations.examine(_case(number)[2], flows=False) for number in range(CASES)]
    assert set(said) == {"ok", "refused"}


def test_those_that_load_go_through_every_flow() -> None:
    loaded = [number for number in range(CASES) if mutations.examine(_case(number)[2], flows=False) == "ok"]
    for number in loaded[:FLOWS]:
        assert mutations.examine(_case(number)[2], flows=True) in ("ok", "refused"), number


def test_a_fault_of_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: object, **options: object) -> None:
        raise KeyError("z")

    data = SOURCES[0][1].SerializeToString()
    monkeypatch.setattr(graphopt, "schedule", broken)
    assert mutations.examine(data, flows=True).startswith("schedule: KeyError at ")
    monkeypatch.setattr(graphopt, "load", broken)
    assert mutations.examine(data, flows=False).startswith("load: KeyError at ")


def test_a_crash_and_too_much_memory_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "examine", lambda data, flows: os.kill(os.getpid(), signal.SIGKILL))
    assert mutations.run_case(0, "m", "bits", b"", flows=False).said == f"ended by signal {signal.SIGKILL.value}"
    monkeypatch.setattr(mutations, "examine", lambda data, flows: "ok")
    monkeypatch.setattr(mutations, "MOST_MEMORY", 1 << 20)
    assert mutations.run_case(0, "m", "bits", b"", flows=False).said.startswith("took ")


def test_a_model_that_computes_nothing_is_not_scheduled() -> None:
    model = support.model("g (string[2] x) => (string[1,2] y) <int64[1] axes = {0}> { y = Unsqueeze(x, axes) }")
    with pytest.raises(OptionError) as caught:
        graphopt.schedule(model, device="h200")
    assert str(caught.value) == (
        "'model' computes nothing that could be scheduled: its outputs are views of inputs or constants."
    )
