"""The packing problem: buffers with sizes and lifetimes, to be placed in one arena."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from memplan.errors import MemplanError


class InvalidProblem(MemplanError):
    """A problem that means nothing: the message names the buffer, value or operator and its fault."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A place inside another buffer: a view, a slice of a concatenation, or a result that replaces its operand."""

    of: str  # the buffer that this one lies in
    at: int = 0  # bytes from that buffer's start
    overwrites: bool = False  # an in-place result: what stood there is gone from `begin` on


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage that is needed in the half-open range of steps [begin, end).

    A buffer with an alias takes no bytes of its own; it keeps those of the buffer that it lies in needed.
    """

    name: str
    size: int  # bytes
    begin: int
    end: int
    alignment: int | None = None  # bytes; None: the problem's
    offset: int | None = None  # bytes; None: free to be placed
    gaps: tuple[tuple[int, int], ...] = ()  # half-open ranges of steps inside the life in which the bytes are free
    layout: str | None = None  # bytes with a layout are reused only by a buffer of that layout, exactly there
    alias: Alias | None = None
    value: str | None = None  # what it holds, where it was made for a graph; None: a workspace, or nobody knows

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InvalidProblem(f"buffer '{self.name}' has {self.size} bytes; a size is not negative.")
        if self.end <= self.begin:
            raise InvalidProblem(f"buffer '{self.name}' lives from step {self.begin} to before {self.end}: never.")
        if self.alignment is not None and self.alignment < 1:
            raise InvalidProblem(f"buffer '{self.name}': an alignment of {self.alignment} bytes is no alignment.")
        if self.offset is not None and self.offset < 0:
            raise InvalidProblem(f"buffer '{self.name}' is pinned to {self.offset}; an offset is not negative.")
        last = self.begin
        for begin, end in self.gaps:
            if not (last <= begin < end <= self.end) or (begin, end) == (self.begin, self.end):
                raise InvalidProblem(f"buffer '{self.name}': the gap [{begin}, {end}) is not inside its life.")
            last = end

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The half-open ranges of steps in which the bytes are needed: the life without its gaps."""
        found, last = [], self.begin
        for begin, end in self.gaps:
            if begin > last:
                found.append((last, begin))
            last = end
        if last < self.end:
            found.append((last, self.end))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class MemoryProblem:
    """Buffers for one arena; every offset is a multiple of `alignment` bytes, or of the buffer's own."""

    buffers: tuple[Buffer, ...]
    alignment: int = 64
    capacity: int | None = None  # bytes; None: the least arena is asked for

    def __post_init__(self) -> None:
        if self.alignment < 1:
            raise InvalidProblem(f"an alignment of {self.alignment} bytes is no alignment.")
        if self.capacity is not None and self.capacity < 0:
            raise InvalidProblem(f"a capacity of {self.capacity} bytes is no capacity.")
        known: dict[str, Buffer] = {}
        for buffer in self.buffers:
            if buffer.name in known:
                raise InvalidProblem(f"two buffers are named '{buffer.name}'.")
            known[buffer.name] = buffer
        for buffer in self.buffers:
            self._check_alias(buffer, known)
            if buffer.offset is not None and buffer.offset % self.alignment_of(buffer):
                raise InvalidProblem(
                    f"buffer '{buffer.name}' is pinned to {buffer.offset}, no multiple of {self.alignment_of(buffer)}."
                )

    def _check_alias(self, buffer: Buffer, known: dict[str, Buffer]) -> None:
        seen, one = {buffer.name}, buffer
        while one.alias is not None:
            other = known.get(one.alias.of)
            if other is None:
                raise InvalidProblem(f"buffer '{one.name}' lies in '{one.alias.of}', which is not there.")
            if one.alias.at < 0 or one.alias.at + one.size > other.size:
                raise InvalidProblem(
                    f"buffer '{one.name}' ({one.size} bytes at {one.alias.at}) does not lie within '{other.name}' "
                    f"({other.size} bytes)."
                )
            if other.name in seen:
                raise InvalidProblem(f"buffer '{buffer.name}' lies in itself, through '{one.name}'.")
            seen.add(other.name)
            one = other
        if buffer.alias is not None and (buffer.offset is not None or buffer.gaps or buffer.layout is not None):
            raise InvalidProblem(f"buffer '{buffer.name}' lies in another: offset, gaps and layout are that one's.")

    def alignment_of(self, buffer: Buffer) -> int:
        """What the buffer's offset is a multiple of, in bytes. An alias is where it is."""
        if buffer.alias is not None:
            return 1
        return self.alignment if buffer.alignment is None else buffer.alignment

    @property
    def granularity(self) -> int:
        """What every offset is a multiple of, in bytes; sizes count rounded up to it."""
        own = {buffer.alignment for buffer in self.buffers if buffer.alignment is not None and buffer.alias is None}
        return math.gcd(self.alignment, *own)

    def aligned(self, size: int) -> int:
        """A size, rounded up to the problem's alignment."""
        return -(-size // self.alignment) * self.alignment

    def with_capacity(self, capacity: int | None) -> MemoryProblem:
        """The same buffers under another capacity."""
        return replace(self, capacity=capacity)
