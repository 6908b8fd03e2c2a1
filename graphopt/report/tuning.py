"""The table of `graphopt tune`."""

from __future__ import annotations

from graphopt.flows.records.tuning import TuningRecord
from graphopt.report.screen import Screen, Table


def print_tuning(screen: Screen, record: TuningRecord) -> None:
    """A line for each template."""
    if not record.templates:
        screen.line(f"no kernel was measured on {record.cpu} yet; graphopt compile does, or compile --tune 60")
        return
    table = Table(record.cpu, "kernels", "measured", "changed")
    for line in record.templates:
        table.add(line.template, f"{line.kernels:,}", f"{line.measured:,}", f"{line.changed:,}")
    screen.table(table)
    screen.line(f"{'kept':<13} in {record.file}")
