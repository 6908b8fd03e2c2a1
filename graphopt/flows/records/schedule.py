"""What a schedule report says, as `--json` prints it. Times in nanoseconds, simulated or measured; sizes in bytes."""

from __future__ import annotations

import msgspec


class PolicyLine(msgspec.Struct, frozen=True):
    """One policy's makespan."""

    policy: str
    makespan: float
    ratio: float  # of one launch per region to this one: above 1 it is faster
    measured: float | None = None  # by the clock, on this machine's cores; None: not measured


class BoundLine(msgspec.Struct, frozen=True):
    """A lower bound of the makespan, and how far the schedule is above it."""

    name: str
    time: float
    gap_percent: float


class StallLine(msgspec.Struct, frozen=True):
    """Time that workers spent without running a block, of all workers together. With `busy` it is all their time."""

    cause: str
    time: float
    share_percent: float  # of workers times makespan


class RegionLine(msgspec.Struct, frozen=True):
    """What the blocks of one region do, all together."""

    region: str
    operator: str  # of its first node
    blocks: int
    time: float  # of all blocks
    start: float  # of the first block
    end: float  # of the last one


class SpanLine(msgspec.Struct, frozen=True):
    """Blocks of one region that a worker runs one after the other."""

    multiprocessor: int
    worker: int
    region: str
    blocks: int
    start: float
    end: float


class WayLine(msgspec.Struct, frozen=True):
    """One way to plan schedule and memory together."""

    way: str  # "forbid" reuse that needs waits, or "wait" for it; or how long a dead buffer's bytes are left alone
    makespan: float
    arena: int
    added_waits: int
    taken: bool


class ScheduleRecord(msgspec.Struct, frozen=True):
    """A schedule of one model on one device."""

    model: str
    device: str
    regions: int
    lowered: bool  # regions are those of lowering; else nodes, joined where they work in place
    policy: str  # the one taken
    makespan: float
    policies: tuple[PolicyLine, ...]
    bounds: tuple[BoundLine, ...]
    launches: int
    waits: int
    gpu: bool  # blocks of several workers share a multiprocessor; else each multiprocessor is one worker
    workers: int  # of the launch that has most of them, and at least one for each multiprocessor
    busy: float  # of all workers together: running blocks
    utilisation: tuple[float, ...]  # by multiprocessor, 0 to 1
    stalls: tuple[StallLine, ...]
    ways: tuple[WayLine, ...]
    ran: tuple[RegionLine, ...]  # in the order of their start; regions that run as one kernel are one
    spans: tuple[SpanLine, ...]
    program: str  # as text
    notes: tuple[str, ...]
    schema: str = "graphopt.schedule/1"

    @property
    def is_measured(self) -> bool:
        """Whether programs were run on this machine."""
        return any(line.measured is not None for line in self.policies)
