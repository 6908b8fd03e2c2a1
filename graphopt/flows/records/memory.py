"""What a memory report says, as `--json` prints it. Sizes are bytes, times nanoseconds, ranges of steps half open."""

from __future__ import annotations

from typing import Literal

import msgspec


class BufferLine(msgspec.Struct, frozen=True):
    """One value's storage in the arena."""

    name: str
    bytes: int
    padded: int  # bytes that it takes in the arena
    offset: int
    begin: int
    end: int
    dtype: str
    shape: tuple[int, ...]
    producer: str
    users: tuple[str, ...]
    inside: str | None  # the buffer whose bytes it shares: a view, a result in place, a slice
    tier: str | None
    kind: Literal["activation", "output", "scratch"]  # scratch: what a node needs while it runs
    module: str  # of the program that was exported, where the exporter wrote it; else empty
    source: str  # "net.py:12", likewise


class GivenLine(msgspec.Struct, frozen=True):
    """A tensor that is there before the first step and after the last one, outside the arena."""

    name: str
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    users: tuple[str, ...]
    kind: Literal["weight", "input"]
    module: str  # of the first node that reads it
    source: str


class StepLine(msgspec.Struct, frozen=True):
    """One operator in the plan's order."""

    operator: str
    type: str
    live: int  # bytes
    time: float
    again: bool  # computed before, and now again


class LeverLine(msgspec.Struct, frozen=True):
    """What one way of saving memory gives: the arena with it, how much less that is, and whether it is taken."""

    name: str
    arena: int
    saved: int
    extra_time_percent: float
    note: str
    plan: str | None = None  # its name among `plans` of the record, if it is there


class CurvePoint(msgspec.Struct, frozen=True):
    """One plan between memory and time."""

    arena: int
    extra_time_percent: float
    recomputed: int  # operators that run again
    tiled: int  # regions that run in tiles
    plan: str | None = None  # its name among `plans` of the record, if it is there


class TierLine(msgspec.Struct, frozen=True):
    """What lies in one tier."""

    name: str
    capacity: int
    arena: int
    peak: int
    occupancy: tuple[int, ...]  # bytes by step


class MoveLine(msgspec.Struct, frozen=True):
    """One copy between tiers."""

    value: str
    bytes: int
    source: str
    target: str
    step: int
    overlapped: bool


class TierReport(msgspec.Struct, frozen=True):
    """A placement over tiers; times are simulated with the machine's file."""

    machine: str
    mode: str
    time: float
    fast_time: float  # were everything in the fastest tier
    bound: float
    tiers: tuple[TierLine, ...]
    moves: tuple[MoveLine, ...]
    solver: str


class WhatIfLine(msgspec.Struct, frozen=True):
    """The plan's figures for other dims."""

    dims: dict[str, int]
    peak: int
    arena: int


class PlanLine(msgspec.Struct, frozen=True):
    """A plan that was not taken: the order of the file, or another budget."""

    name: str
    peak: int
    lower_bound: int
    arena: int
    fragmentation: int
    peak_step: int
    extra_time_percent: float
    buffers: tuple[BufferLine, ...]
    steps: tuple[StepLine, ...]


class MemoryRecord(msgspec.Struct, frozen=True):
    """A memory plan of one model and what can be said of it."""

    model: str
    dims: dict[str, int]
    order: str  # "given", "best", "recomputing", "in tiles", or both
    peak: int
    lower_bound: int  # of the arena for this order
    order_bound: int  # no order without recomputation needs less; 0: not known
    arena: int
    fragmentation: int
    proved_optimal: bool
    solver: str
    weights: int
    inputs: int
    peak_step: int
    peak_operator: str
    at_peak: tuple[BufferLine, ...]  # live at the peak, largest first; steps are those of all that lies in it
    levers: tuple[LeverLine, ...]
    buffers: tuple[BufferLine, ...]
    steps: tuple[StepLine, ...]
    given: tuple[GivenLine, ...]  # weights and inputs, largest first
    plans: tuple[PlanLine, ...]  # other plans, where plans of memory against time were asked for
    curve: tuple[CurvePoint, ...]
    tiers: TierReport | None
    what_if: tuple[WhatIfLine, ...]
    formula: str | None  # of the peak in the model's dims
    budget: int | None
    extra_time_percent: float  # against the order of the file
    notes: tuple[str, ...]
    schema: str = "graphopt.memory/1"
