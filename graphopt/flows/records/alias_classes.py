"""Buffers that share bytes: which takes them, which lie inside it, and how long the bytes are needed by any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.flows.records.memory import BufferLine


@dataclass(frozen=True, slots=True)
class AliasClass:
    """The buffer that takes the bytes, those inside it, and the steps in which one of them is needed."""

    root: BufferLine
    inside: tuple[BufferLine, ...]
    begin: int
    end: int


def alias_classes(buffers: Sequence[BufferLine]) -> tuple[AliasClass, ...]:
    """The alias classes of an arena in the order of their roots; those of no bytes are left out."""
    by_name = {buffer.name: buffer for buffer in buffers}
    inside: dict[str, list[BufferLine]] = {buffer.name: [] for buffer in buffers}
    for buffer in buffers:
        root = buffer
        while root.inside is not None:
            root = by_name[root.inside]
        if root is not buffer:
            inside[root.name].append(buffer)
    found = []
    for buffer in buffers:
        if buffer.inside is None and buffer.bytes:
            members = (buffer, *inside[buffer.name])
            begin, end = min(one.begin for one in members), max(one.end for one in members)
            found.append(AliasClass(buffer, tuple(inside[buffer.name]), begin, end))
    return tuple(found)
