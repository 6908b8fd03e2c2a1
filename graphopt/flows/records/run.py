"""What `graphopt run` gave, as `--json` prints it."""

from __future__ import annotations

import msgspec

BUNDLE = "bundle"  # the engine of programs that `graphopt compile` wrote


class OutputLine(msgspec.Struct, frozen=True):
    """One output."""

    name: str
    type: str
    shape: tuple[int, ...]
    first: str  # its first elements


class RunRecord(msgspec.Struct, frozen=True):
    """Runs of one program on the same inputs."""

    program: str
    engine: str  # BUNDLE, or the name and version of a runtime
    outputs: tuple[OutputLine, ...]
    milliseconds: tuple[float, ...]  # wall time of each run
    planned_bytes: int | None = None  # that a process takes for the program, of a bundle within a budget
    measured_bytes: int | None = None  # by which this process grew at the most, in creation and runs
    read_bytes: int | None = None  # of weights that each run reads, of a bundle within a budget
    spilled_bytes: int | None = None  # that each run writes to a temporary file and reads back
    schema: str = "graphopt.run/1"
