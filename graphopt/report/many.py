"""One table of what became of the models of a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from graphopt.flows.records.many import ManyRecord, Result
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen, Table


def _compiled(one: dict[str, Any]) -> str:
    return f"weights {binary_size(one['weights_bytes'])}, arena {binary_size(one['arena_bytes'])}"


# What a command tells of a model in one cell, by the schema of its record.
FIGURES: dict[str, Callable[[dict[str, Any]], str]] = {
    "graphopt.optimize/1": lambda one: f"{one['nodes_before']:,} -> {one['nodes_after']:,} nodes",
    "graphopt.memory/1": lambda one: f"arena {binary_size(one['arena'])}",
    "graphopt.compile/1": _compiled,
    "graphopt.verify/1": lambda one: "equal" if one["equal"] else "different",
}


def figure(result: Result) -> str:
    """What there is to tell in one cell: the command's figure, or why there is none."""
    if result.record is None:
        return result.error or ""
    return FIGURES[str(result.record["schema"])](result.record)


def print_many(screen: Screen, record: ManyRecord) -> None:
    """A row for each model, and how many there are of each kind."""
    table = Table("model", "result", "tries", "seconds", "", left=(0, 1, 4))
    for result in record.results:
        table.add(result.model, result.status, str(result.tries), f"{result.seconds:.1f}", figure(result))
    screen.table(table)
    kinds = Counter(result.status for result in record.results)
    said = ", ".join(f"{count} {status}" for status, count in kinds.items())
    before = f", {record.taken_over} of them by an earlier run" if record.taken_over else ""
    screen.line(f"{'models':<13} {several(len(record.results), 'model')}: {said}{before}")
