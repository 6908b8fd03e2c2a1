"""The lines of `graphopt run`."""

from __future__ import annotations

import statistics

from graphopt.flows.records.run import BUNDLE, RunRecord
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen


def print_run(screen: Screen, record: RunRecord) -> None:
    """A line for each output, and how long it took."""
    for output in record.outputs:
        screen.line(f"{output.name}  {output.type} {list(output.shape)}  {output.first}")
    times = record.milliseconds
    middle = f"median {statistics.median(times):.3g} ms, least {min(times):.3g} ms" if len(times) > 1 else (
        f"{times[0]:.3g} ms"
    )  # fmt: skip
    where = "of the bundle" if record.engine == BUNDLE else f"in {record.engine}"
    if record.planned_bytes is not None:
        taken = "" if record.measured_bytes is None else f", the process grew by {binary_size(record.measured_bytes)}"
        screen.line(f"{'memory':<13} {binary_size(record.planned_bytes)} planned{taken}")
    if record.read_bytes:
        screen.line(f"{'read':<13} {binary_size(record.read_bytes)} of weights in each run")
    if record.spilled_bytes:
        screen.line(f"{'spilled':<13} {binary_size(record.spilled_bytes)} to a temporary file and back in each run")
    screen.line(f"{'time':<13} {middle}, {several(len(times), 'run')} {where}")
