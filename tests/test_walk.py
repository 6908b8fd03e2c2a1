"""Calls go down the floors: from a use case to what it gives no room calls one above it.

Two kinds of functions are handed down as values and called below: rules, which the pipeline gives the driver, and the
listener that hears of progress, here `model.text.silent`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import graphopt
import models
from bench.walk import FLOORS, walk
from tests.test_architecture import ROOMS

HANDED_DOWN = {("rewrite", "passes"), ("libraries", "model")}
USE_CASES: dict[str, Callable[[Path], object]] = {
    "optimize": lambda folder: graphopt.optimize(folder / "m.onnx", memory_budget=1 << 20).save(folder / "o.onnx"),
    "compile": lambda folder: graphopt.compile(folder / "m.onnx", memory_budget=1 << 20).save(folder / "bundle"),
    "memory": lambda folder: graphopt.memory(folder / "m.onnx", tiers="dram+pmem", order="best"),
    "schedule": lambda folder: graphopt.schedule(folder / "m.onnx", device="cpu:2", work=2_000),
    "verify": lambda folder: graphopt.verify(folder / "m.onnx", folder / "m.onnx"),
}


@pytest.mark.parametrize("name", USE_CASES)
def test_no_room_calls_one_above_it(name: str, tmp_path: Path) -> None:
    models.write("mlp_tiny", tmp_path / "m.onnx")
    found = walk(lambda: USE_CASES[name](tmp_path))
    assert {"flows", "model"} <= set(found.rooms) and found.calls > 100
    assert set(found.climbs) <= HANDED_DOWN


def test_a_climb_is_seen() -> None:
    """The rules of a run."""
    found = walk(lambda: graphopt.optimize(models.load("mlp_tiny"), verify=False))
    assert found.climbs["rewrite", "passes"] > 0


def test_the_floors_are_those_of_the_imports() -> None:
    assert FLOORS[1:] == ROOMS
