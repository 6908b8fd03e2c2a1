"""What a profile says, as `--json` prints it. Times in nanoseconds, sizes in bytes; medians of several calls."""

from __future__ import annotations

import msgspec


class StepLine(msgspec.Struct, frozen=True):
    """One run of the program: a kernel, all its blocks."""

    step: int  # its position in the order of one worker
    node: str  # the name of the first node that it computes; empty where none is known, as for a copy
    operators: tuple[str, ...]  # of all nodes that it computes
    kernel: str
    candidate: str  # tile sizes
    blocks: int
    flops: int
    constants: int  # bytes of weights that it reads
    wall: float  # from the begin of its first block to the end of its last one
    work: float  # of all its blocks together
    waited: float  # of all workers together, each from the end of its last block to its first one of this step
    rate: float  # operations a nanosecond of work, that is Gflop/s of a worker
    peak_share: float  # of the measured peak of a worker, 0 to 1


class WorkerLine(msgspec.Struct, frozen=True):
    """One worker's time in a call."""

    worker: int
    blocks: int
    busy: float
    waiting: float  # the rest of the wall, its waits for the begin and the end of the call included


class Blocks(msgspec.Struct, frozen=True):
    """Every block of one call, by columns, in the order in which they began."""

    step: tuple[int, ...]
    worker: tuple[int, ...]
    block: tuple[int, ...]
    begin: tuple[int, ...]  # from the begin of the first one
    end: tuple[int, ...]


class ProfileRecord(msgspec.Struct, frozen=True):
    """Where the time of a program goes."""

    program: str
    workers: int
    rounds: int  # calls that the medians are of
    wall: float  # of a call: from the begin of the first block to the end of the last one
    peak: float  # measured: float32 operations a nanosecond of a worker, where all work at once
    steps: tuple[StepLine, ...]  # in the program's order
    by_worker: tuple[WorkerLine, ...]
    blocks: Blocks  # of the call whose wall is the median
    schema: str = "graphopt.profile/1"
