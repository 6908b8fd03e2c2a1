"""The solution: an offset for every buffer, the arena that they need, and the bound to compare it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets by name, in bytes from the start of the arena."""

    offsets: Mapping[str, int]
    arena_size: int  # bytes
    lower_bound: int  # bytes: the live peak
    solver: str

    @property
    def fragmentation(self) -> int:
        """Bytes of the arena beyond the lower bound."""
        return self.arena_size - self.lower_bound
