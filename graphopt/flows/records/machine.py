"""How far a machine is from its record, as `graphopt machine --check --json` prints it."""

from __future__ import annotations

import msgspec


class CheckLine(msgspec.Struct, frozen=True):
    """An entry twice; None where it was not measured."""

    name: str
    unit: str
    kept: float | None
    now: float | None
    difference: float | None  # relative to what is kept
    kept_spread: float | None  # of each measure by itself, relative
    now_spread: float | None


class CheckRecord(msgspec.Struct, frozen=True):
    """A record beside what is measured now."""

    cpu: str  # of the record
    measured_cpu: str
    entries: tuple[CheckLine, ...]
    schema: str = "graphopt.machine-check/1"
