"""The problem: buffers with sizes and lifetimes, to be placed in one arena."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.errors import MemplanError


class InvalidProblem(MemplanError):
    """A buffer that no plan could place."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage that is needed in the half-open range of steps [begin, end)."""

    name: str
    size: int  # bytes
    begin: int
    end: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InvalidProblem(f"buffer '{self.name}' has {self.size} bytes; a size is not negative.")
        if self.end <= self.begin:
            raise InvalidProblem(f"buffer '{self.name}' lives from step {self.begin} to before {self.end}: never.")


@dataclass(frozen=True, slots=True)
class MemoryProblem:
    """Buffers for one arena; every offset is a multiple of `alignment` bytes."""

    buffers: tuple[Buffer, ...]
    alignment: int = 64

    def __post_init__(self) -> None:
        if self.alignment < 1:
            raise InvalidProblem(f"an alignment of {self.alignment} bytes is no alignment.")
        seen: set[str] = set()
        for buffer in self.buffers:
            if buffer.name in seen:
                raise InvalidProblem(f"two buffers are named '{buffer.name}'.")
            seen.add(buffer.name)

    def aligned(self, size: int) -> int:
        """A size, rounded up to the alignment: what a buffer takes from the arena."""
        return -(-size // self.alignment) * self.alignment
