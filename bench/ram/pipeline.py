"""The optimum of a run whose weights are read while it computes; nothing in here knows graphopt.

A run uses *panels* of weights one after the other, each for some nanoseconds of kernels. Some are resident. The others
are read in the order of use, one after another, at one bandwidth; a panel takes its space from the begin of its read to
the end of its use, and computing begins with an empty buffer. For given residents reading as early as there is space is
best: reads and uses have one order, so that no later read can profit from an earlier one's delay.

Which panels should be resident is searched for among equal ones, by dynamic programming: with `r` of the first `j`
resident and space without end, the reader is done at a time that depends on `j - r` alone, and the least time at which
the kernels are done is known from that for `j - 1`. That time is a bound of any run. Residents for a buffer of some
panels are chosen in the same way, with the ends of the last panels kept beside each time, for several sizes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

BUFFERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # panels of buffer that are tried


@dataclass(frozen=True, slots=True)
class Panel:
    """Bytes of weights, and how long the kernels compute with them, in nanoseconds."""

    bytes: int
    work: float


@dataclass(frozen=True, slots=True)
class Optimum:
    """The shortest run that was found, and the time that none can be below, both in nanoseconds."""

    time: float
    bound: float
    resident: frozenset[int]  # panels by their place in the order of use


def duration(panels: Sequence[Panel], bandwidth: float, memory: int, resident: Collection[int] = ()) -> float | None:
    """Nanoseconds of a run with these residents; None where they, or a panel beside them, do not fit in the memory.

    `bandwidth` is in bytes a nanosecond, `memory` in bytes of residents and buffer together.
    """
    kept = set(resident)
    space = memory - sum(panels[place].bytes for place in kept)
    streamed = [panel.bytes for place, panel in enumerate(panels) if place not in kept]
    if space < max(streamed, default=0):
        return None
    reader = kernels = 0.0
    held: list[tuple[int, float]] = []  # bytes and end of use of what was read, in order
    first, taken = 0, 0  # of `held`: the first that is still counted, and bytes of those from there on
    for place, panel in enumerate(panels):
        if place not in kept:
            while taken + panel.bytes > space:
                size, until = held[first]
                reader, taken, first = max(reader, until), taken - size, first + 1
            reader += panel.bytes / bandwidth
            kernels = max(kernels, reader)
        kernels += panel.work
        if place not in kept:
            held.append((panel.bytes, kernels))
            taken += panel.bytes
    return kernels


def cut(steps: Sequence[Panel], size: int) -> tuple[float, list[Panel]]:
    """Steps of a program as panels of `size` bytes, and the nanoseconds before the first.

    A step's work is spread over its bytes; that of a step without any comes with the panel before it. The last panel is
    as large as the others, though less of it may be used.
    """
    panels: list[float] = []
    lead, filled = 0.0, size  # bytes that the last panel has
    for step in steps:
        if not step.bytes:
            if panels:
                panels[-1] += step.work
            else:
                lead += step.work
        left = step.bytes
        while left:
            if filled == size:
                panels.append(0.0)
                filled = 0
            part = min(left, size - filled)
            panels[-1] += step.work * part / step.bytes
            filled, left = filled + part, left - part
    return lead, [Panel(size, work) for work in panels]


def optimum(panels: Sequence[Panel], bandwidth: float, memory: int) -> Optimum | None:
    """The least time with the best residents, of panels of one size; None where not even one fits in the memory."""
    if not panels:
        return Optimum(0.0, 0.0, frozenset())
    size, count = panels[0].bytes, len(panels)
    if any(panel.bytes != size for panel in panels):
        raise ValueError("residents are chosen among panels of one size; cut them alike first")
    work = np.array([panel.work for panel in panels])
    slots, read = memory // size, size / bandwidth
    if slots >= count:
        return Optimum(float(work.sum()), float(work.sum()), frozenset(range(count)))
    if slots < 1:
        return None
    best: tuple[float, frozenset[int]] | None = None
    for buffer in sorted({min(one, slots) for one in BUFFERS}):
        for resident in (_chosen(work, read, buffer, slots - buffer), _spread(count, slots - buffer)):
            taken = duration(panels, bandwidth, memory, resident)
            if taken is not None and (best is None or taken < best[0]):
                best = (taken, resident)
    assert best is not None
    return Optimum(best[0], _bound(work, read, slots), best[1])


def _chosen(work: np.ndarray, read: float, buffer: int, most: int) -> frozenset[int]:
    """Residents, at most so many, with a buffer of so many panels: for each number the way that is ahead at each panel.

    A way that is behind at one panel and ahead later is lost: this finds good residents, and not always the best.
    """
    ends, reader = np.where(np.arange(most + 1) == 0, 0.0, np.inf), np.zeros(most + 1)
    used = np.zeros((most + 1, buffer))  # when the kernels are done with the panels that were read last, oldest first
    kept = np.zeros((len(work), most + 1), bool)
    for place, one in enumerate(work):
        arrived = np.maximum(reader, used[:, 0]) + read
        streamed, stays = np.maximum(ends, arrived), np.concatenate([[np.inf], ends[:-1]])
        stay = kept[place] = stays < streamed
        ends = np.where(stay, stays, streamed) + one
        reader = np.where(stay, np.roll(reader, 1), arrived)
        later = np.column_stack([used[:, 1:], ends])
        used = np.where(stay[:, None], np.roll(used, 1, axis=0), later)
    count, found = int(ends.argmin()), []
    for place in range(len(work) - 1, -1, -1):
        if kept[place, count]:
            found.append(place)
            count -= 1
    return frozenset(found)


def _spread(count: int, most: int) -> frozenset[int]:
    """So many residents, as even as can be."""
    return frozenset(place * count // most for place in range(most))


def _bound(work: np.ndarray, read: float, slots: int) -> float:
    """A time that no run with so many panels of memory is below.

    With `r` residents among the first `j` panels the last of these arrives after `j - r` reads at the earliest. And
    when the kernels are done with a panel, at most `slots` of those behind it are in memory: others are read later.
    """
    residents = np.arange(slots)
    ends = np.where(residents == 0, 0.0, np.inf)
    floor = 0.0  # the greatest end of a panel, less the reads up to it
    for place, one in enumerate(work):
        streamed = np.maximum(ends, np.maximum(place + 1 - residents, 0) * read)
        stays = np.concatenate([[np.inf], ends[:-1]])
        ends = np.maximum(np.minimum(stays, streamed), floor + (place + 1 - slots) * read) + one
        floor = max(floor, float(ends.min()) - (place + 1) * read)
    return float(ends.min())
