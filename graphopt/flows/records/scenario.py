"""What `graphopt bench --scenario` measured, as `--json` prints it."""

from __future__ import annotations

import msgspec

from graphopt.program.deploy.serving import Scenario


class ServedLine(msgspec.Struct, frozen=True):
    """One runtime. Milliseconds of a query by percentile, or queries a second; what does not belong to it is None."""

    name: str
    precision: str
    p50: float | None
    p90: float | None
    p99: float | None
    rate: float | None
    memory: int  # bytes at the peak, beyond those of the interpreter and its libraries
    ratio: float | None  # of its time to ours, the median of pairs of readings; None for ours
    low: float | None  # of the 95 % bootstrap interval
    high: float | None


class ScenarioRecord(msgspec.Struct, frozen=True):
    """Runtimes that served one model by turns."""

    model: str
    scenario: Scenario
    threads: int
    queries: int  # of each
    lines: tuple[ServedLine, ...]
    loadgen: str | None = None  # what LoadGen said of our program; None: it was not asked
    schema: str = "graphopt.scenario/1"
