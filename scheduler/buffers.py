"""Where the buffers of a program lie in one arena, and which regions touch them: with it reuse of bytes is checked."""

from __future__ import annotations

from typing import Literal

import msgspec

from scheduler.errors import InvalidProgram


class Buffer(msgspec.Struct, frozen=True):
    """Bytes `offset` to `offset + size` of the arena, and the regions that read and write them."""

    name: str
    offset: int
    size: int
    readers: tuple[str, ...]
    writers: tuple[str, ...]


class Buffers(msgspec.Struct, frozen=True):
    """All buffers of a task graph's regions."""

    graph: str  # the name of the task graph
    arena_size: int  # bytes
    buffers: tuple[Buffer, ...]
    schema: Literal["scheduler.buffers/1"] = "scheduler.buffers/1"

    def check(self) -> None:
        """Raises InvalidProgram for a name that is there twice, and for a buffer that lies outside the arena."""
        names: set[str] = set()
        for one in self.buffers:
            if one.name in names:
                raise InvalidProgram(f"two buffers are named '{one.name}'.")
            names.add(one.name)
            if one.size < 0 or one.offset < 0 or one.offset + one.size > self.arena_size:
                raise InvalidProgram(
                    f"buffer '{one.name}' takes {one.size:,} bytes from {one.offset:,} of an arena of "
                    f"{self.arena_size:,}."
                )


def write_buffers(buffers: Buffers) -> bytes:
    """JSON, the same bytes for the same buffers."""
    return msgspec.json.format(msgspec.json.encode(buffers), indent=1) + b"\n"


def read_buffers(data: bytes) -> Buffers:
    """Raises InvalidProgram."""
    try:
        buffers = msgspec.json.decode(data, type=Buffers)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidProgram(f"this names no buffers: {error}.") from error
    buffers.check()
    return buffers
