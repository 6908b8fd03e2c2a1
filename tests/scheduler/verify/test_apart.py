"""A checker is another person: what checks imports nothing of what makes programs, nor of the other checkers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPILING = "scheduler.compiling"  # how functions are compiled; nothing of schedules
RECORDS = {
    COMPILING,
    "scheduler.buffers",
    "scheduler.device",
    "scheduler.errors",
    "scheduler.program",
    "scheduler.tasks",
}
VERIFY = {
    f"scheduler.verify.{name}" for name in ("form", "needs", "pinned", "program", "resources", "ticketed", "withheld")
}
SIMULATION = {f"scheduler.simulation.{name}" for name in ("arrays", "pinned", "ticketed")}


def imported(file: str) -> set[str]:
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def of_scheduler(file: str) -> set[str]:
    return {name for name in imported(file) if name.startswith("scheduler")}


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [("verify", RECORDS | VERIFY), ("simulation", RECORDS | SIMULATION)],
)
def test_each_checker_stands_on_records_and_itself(folder: str, allowed: set[str]) -> None:
    files = sorted((ROOT / "scheduler" / folder).glob("*.py"))
    assert len(files) >= 4
    for file in files:
        assert of_scheduler(str(file.relative_to(ROOT))) <= allowed, file.name


def test_the_simulator_and_the_bulk_verifier_too() -> None:
    assert of_scheduler("scheduler/simulate.py") <= RECORDS | SIMULATION
    assert of_scheduler("scheduler/verify/bulk.py") == {COMPILING}


def test_brute_force_takes_the_arrays_and_nothing_else() -> None:
    assert of_scheduler("bench/scheduling/brute.py") == {"scheduler.verify.bulk"}
