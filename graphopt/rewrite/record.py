"""What the rewriter writes down: one record per rewrite, one per pass, one per rollback; on request small drawings."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Dot:
    """A node of a sketch."""

    op_type: str
    name: str
    changed: bool  # taken away or put in by the rewrite; else a neighbour


@dataclass(frozen=True, slots=True)
class Sketch:
    """The graph around a rewrite: dots by their positions, and who reads whom."""

    dots: tuple[Dot, ...]
    arrows: tuple[tuple[int, int], ...]  # positions of producer and reader
    left_out: int  # neighbours that are not drawn


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One change of the graph."""

    number: int  # 1 for the first change of the run
    pass_name: str
    rule: str
    site: str  # name of the value at which the rule fired; stable from run to run
    before: tuple[str, ...]  # the nodes that were matched, as "Op 'name'"
    after: tuple[str, ...]  # the nodes put in their place, likewise
    reason: str | None = None  # what the rule says of this one place, beyond what its docstring says of all
    sketches: tuple[Sketch, Sketch] | None = None  # before and after; None where no drawing was asked for


class PassRecord(msgspec.Struct, frozen=True):
    """What one pass did over all rounds."""

    name: str
    rewrites: int
    nodes_before: int
    nodes_after: int
    seconds: float


class Rollback(msgspec.Struct, frozen=True):
    """A rewrite that was taken back, and what it had broken."""

    rule: str
    site: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Why a pass left a node alone."""

    reason: str
    near: bool  # what the pass looks for was there, and a condition refused
