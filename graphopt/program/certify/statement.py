"""What is proved, as numbers: runs with the bytes that they touch, and the order in which workers claim them.

The same runs are there three times: on buffers that share no bytes, as the manifest states them; at the places where
one worker finds them; and at those where several do. The first is what the program means, the others what it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.errors import BundleError

ROOMS = ("arena", "weights", "input", "output", "sizes")


class Refused(BundleError):
    """A bundle that is not proved; the message names the run, the bytes and what is missing."""


@dataclass(frozen=True, slots=True)
class Room:
    """One piece of memory: the arena, the weights, an input, an output; or one buffer, where each has its own."""

    kind: str  # one of ROOMS, or "buffer"
    number: int = 0

    def __str__(self) -> str:
        return f"the {self.kind}" if self.kind in ("arena", "weights", "sizes") else f"{self.kind} {self.number}"


@dataclass(frozen=True, slots=True)
class Touch:
    """An operand of a run: bytes [begin, end) of a room, from its first to its last element.

    An operand may have gaps between its elements, as one part of a concatenation has. Hence bytes that are written may
    keep their earlier value: for all proofs a run that writes bytes also needs what was there.
    """

    room: Room
    begin: int
    end: int
    written: bool

    def __str__(self) -> str:
        return f"bytes {self.begin:,} to {self.end:,} of {self.room}"


Runs = tuple[tuple[Touch, ...], ...]  # by run in the order of one worker, then by operand


@dataclass(frozen=True, slots=True)
class Several:
    """What several workers execute: at each row of their table one run, which is claimed after its waits."""

    order: tuple[int, ...]  # by row: the run
    waits: tuple[tuple[int, ...], ...]  # by row: the rows whose blocks must have ended; one more for the end of a call
    runs: Runs
    arena_bytes: int
    follows: frozenset[int] = frozenset()  # rows whose worker is that of the row before, after all blocks of that one


@dataclass(frozen=True, slots=True)
class Statement:
    """All that a proof reads."""

    names: tuple[str, ...]  # by run: its kernel, for messages
    meant: Runs  # every buffer apart
    alone: Runs
    sizes: dict[Room, int]  # bytes of all rooms but the arena of several workers
    outputs: tuple[int, ...]  # bytes of each output
    buffers: tuple[tuple[int, int, int, int], ...]  # offset, bytes, first run, run after the last, as one worker's plan
    several: Several | None
    carried: frozenset[int] = frozenset()  # outputs in the memory of inputs: they hold what the caller gave at first

    def named(self, run: int) -> str:
        """A run as messages call it."""
        return f"run {run} ('{self.names[run]}')" if run < len(self.names) else "the caller"
