"""Moves of intermediate results, by the thread that fetches weights: out of the arena into a file, and back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spill:
    """Bytes of the arena that are written to a temporary file of the model's own."""

    offset: int  # in that file
    place: int  # in the arena
    bytes: int
    after: tuple[int, ...] = ()  # runs that have to end before: they write what lies there

    @property
    def writes(self) -> tuple[tuple[int, int], ...]:
        """Places in the arena, and how many bytes are written there: none."""
        return ()


@dataclass(frozen=True, slots=True)
class Reload:
    """Bytes of that file that are read into the arena, where they may lie elsewhere than before."""

    offset: int  # in the file
    place: int  # in the arena
    bytes: int
    told: int  # so many of the list's first ones have to have ended before: among them who wrote these bytes
    after: tuple[int, ...] = ()  # runs that have to end before: they work on what lies there

    @property
    def writes(self) -> tuple[tuple[int, int], ...]:
        """Places in the arena, and how many bytes are written there."""
        return ((self.place, self.bytes),)
