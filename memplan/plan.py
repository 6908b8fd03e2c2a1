"""Solutions: offsets in one arena, and the whole plan of a computation over one or several tiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Packing:
    """Offsets by name, in bytes from the start of one arena."""

    offsets: Mapping[str, int]
    arena_size: int  # bytes
    lower_bound: int  # bytes: no packing is smaller
    solver: str
    proved_optimal: bool = False  # by the bound or by an exhausted search
    limited: Literal["work", "time"] | None = None  # what ended the search before it had nothing more to try

    @property
    def fragmentation(self) -> int:
        """Bytes of the arena beyond the lower bound."""
        return self.arena_size - self.lower_bound

    @property
    def gap(self) -> float:
        """How far the arena is above the bound, as a fraction of the bound; 0 for what is proved to be the least."""
        if self.proved_optimal or self.arena_size <= self.lower_bound:
            return 0.0
        return self.fragmentation / self.lower_bound if self.lower_bound else float("inf")


@dataclass(frozen=True, slots=True)
class Stay:
    """A value lies in a tier for a half-open range of steps (positions in a plan's order)."""

    value: str
    tier: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of a value from one tier to another, before the operator at `step` runs or, overlapped, while it does."""

    value: str
    source: str
    target: str
    step: int
    overlapped: bool = False  # False: the operator waits for it; True: it ends before the next operator starts


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What runs in which order, and where every value lies when."""

    order: tuple[str, ...]  # operators; one that stands there again is recomputed
    arenas: Mapping[str, Packing]  # tier -> offsets of what lies there
    time: float  # nanoseconds: of operators, of recomputing, of moves that are waited for
    stays: tuple[Stay, ...] = ()  # empty where there is one tier
    moves: tuple[Move, ...] = ()

    @property
    def recomputed(self) -> tuple[str, ...]:
        """Operators that run again, once for each time, in order."""
        seen: set[str] = set()
        again = []
        for name in self.order:
            if name in seen:
                again.append(name)
            seen.add(name)
        return tuple(again)
