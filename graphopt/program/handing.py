"""What the runs of a program hand on to one another: how many bytes each reads, and which run wrote them."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.program.regions.buffer import Buffer, Place
from graphopt.program.regions.region import Lowered
from kernels.kernel import Kernel


def handed(lowered: Lowered, kernels: Sequence[Kernel]) -> list[list[tuple[int | None, int]]]:
    """By region what it reads in the arena: who wrote it last, and its bytes.

    What several regions wrote parts of, as of a concatenation, is nobody's.
    """
    found: list[list[tuple[int | None, int]]] = []
    writers: dict[Buffer, list[tuple[int, int, int]]] = {}  # the region, and the bytes from where to where
    for number, (region, kernel) in enumerate(zip(lowered.regions, kernels, strict=True)):
        pairs = [
            (operand, place)
            for operand, place in zip(kernel.operands, region.places, strict=True)
            if place.buffer.role == "temporary"
        ]
        read: dict[Place, tuple[int | None, int]] = {}
        for operand, place in pairs:
            if operand.role != "output":
                end = place.offset + operand.bytes
                before = {who for who, low, high in writers.get(place.buffer, ()) if low < end and place.offset < high}
                read[place] = (before.pop() if len(before) == 1 else None, operand.bytes)
        found.append(list(read.values()))
        for operand, place in pairs:
            if operand.role == "output":
                begin, end = place.offset, place.offset + operand.bytes
                kept = [one for one in writers.get(place.buffer, ()) if one[1] < begin or end < one[2]]
                writers[place.buffer] = [*kept, (number, begin, end)]
    return found
