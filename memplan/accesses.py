"""Who reads and writes what in a program whose items run beside each other, and what is known to happen before what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accesses:
    """`reads` and `writes`: item of the program -> names of buffers. `before`: pairs (earlier, later) of items.

    The items stand in an order in which none comes after what it happens before; that it stands earlier says nothing.
    """

    items: tuple[str, ...]
    before: tuple[tuple[str, str], ...]
    reads: Mapping[str, tuple[str, ...]]
    writes: Mapping[str, tuple[str, ...]]
