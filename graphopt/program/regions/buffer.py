"""Storage that regions work on: buffers, and places in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from memplan.lifetimes import free_name

Role = Literal["input", "output", "constant", "temporary", "sizes"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes with one lifetime. `id` and `run` tell the buffers of a program apart; what they are called is for people.

    A buffer has no layout of its own: values of several layouts may lie in one, as the parts of a concatenation do.
    """

    id: int
    role: Role
    size: int  # bytes
    purpose: str  # such as "value", or "dense" for a row-major copy of one
    value: str  # the name of the model's value that it is for
    argument: int | None = None  # the position among the program's inputs or outputs; None for other roles
    run: int = 1  # from 2 on: written by so manieth a run of one region

    @property
    def name(self) -> str:
        """Purpose and value, with the number of the run where there are several."""
        return f"{self.purpose}:{self.value}" + (f"#{self.run}" if self.run > 1 else "")


@dataclass(frozen=True, slots=True)
class Place:
    """A start inside a buffer."""

    buffer: Buffer
    offset: int = 0  # bytes


def distinct_names(buffers: Iterable[Buffer]) -> dict[Buffer, str]:
    """A name for each buffer, in their order: its own, or one close to it where another buffer has that name."""
    names: dict[Buffer, str] = {}
    taken: set[str] = set()
    for buffer in buffers:
        if buffer not in names:
            names[buffer] = free_name(buffer.name, taken)
            taken.add(names[buffer])
    return names
