"""What `graphopt bench` measured, as `--json` prints it."""

from __future__ import annotations

import msgspec

from graphopt.program.deploy.benchmark import Comparison


class BenchRecord(msgspec.Struct, frozen=True):
    """One model beside one peer; times in milliseconds, medians."""

    model: str
    threads: int
    precision: str  # of ours
    comparison: Comparison


class BenchFile(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    results: tuple[BenchRecord, ...]
    schema: str = "graphopt.bench/1"
