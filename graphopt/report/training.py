"""Gradients and training steps as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from graphopt.flows.records.gradient import GradientRecord, StepRecord
from graphopt.model.text import several
from graphopt.report.screen import Screen

SHOWN = 8  # names that are listed one by one


def print_gradient(screen: Screen, record: GradientRecord) -> None:
    """What was added to the model."""
    screen.line(f"{record.input} -> {record.output}", "bold")
    screen.line(f"loss          {record.loss}")
    screen.line(f"gradients     {len(record.gradients):,}, to {record.parameters:,} numbers")
    _listed(screen, (f"{output}" for output in record.gradients.values()), len(record.gradients))
    screen.line(f"nodes         {record.nodes_before:,} -> {record.nodes_after:,}")


def print_step(screen: Screen, record: StepRecord) -> None:
    """What a run takes and gives, beside batches."""
    screen.line(f"{record.input} -> {record.output}", "bold")
    screen.line(f"loss          {record.loss}")
    screen.line(f"optimizer     {record.optimizer}")
    kinds = [kind for *_, kind in record.carried]
    for kind in dict.fromkeys(kinds):
        names = [f"{taken} -> {given}" for taken, given, one in record.carried if one == kind]
        screen.line(f"{kind:<13} {several(len(names), 'value')} carried from run to run")
        _listed(screen, names, len(names))
    carried = {taken for taken, *_ in record.carried}
    batch = [port for port in record.inputs if port.partition(":")[0] not in carried]
    for port in batch:
        screen.line(f"{'input':<13} {port}")
    screen.line(f"nodes         {record.nodes_before:,} -> {record.nodes_after:,}")


def _listed(screen: Screen, names: Iterable[str], number: int) -> None:
    for place, name in zip(count(), names):
        if place == SHOWN:
            screen.small(f"{'':<13} and {number - SHOWN:,} more")
            return
        screen.small(f"{'':<13} {name}")
