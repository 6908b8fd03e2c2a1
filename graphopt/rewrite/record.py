"""What the rewriter writes down: one record per rewrite, one per pass, one per rollback."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One change of the graph."""

    number: int  # 1 for the first change of the run
    pass_name: str
    rule: str
    site: str  # name of the value at which the rule fired; stable from run to run
    before: tuple[str, ...]  # the nodes that were matched, as "Op 'name'"
    after: tuple[str, ...]  # the nodes put in their place


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did over all rounds."""

    name: str
    rewrites: int
    nodes_before: int
    nodes_after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rewrite that was taken back, and what it had broken."""

    rule: str
    site: str
    reason: str
