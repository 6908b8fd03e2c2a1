"""What is measured of a processor: the name of each entry, its unit, and between which figures it is believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["/ns", "bytes/ns", "ns"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A figure of a machine; of one core where nothing else is said."""

    text: str  # for people
    unit: Unit
    least: float  # below which a reading is implausible
    most: float

    @property
    def is_time(self) -> bool:
        """Whether a disturbance makes it larger; a rate becomes smaller."""
        return self.unit == "ns"

    def plausible(self, value: float) -> bool:
        """Whether a machine may be so."""
        return self.least <= value <= self.most  # false of NaN


ENTRIES: Mapping[str, Entry] = {
    "clock": Entry("cycles, while vectors compute", "/ns", 0.2, 10),
    "multiply_adds": Entry("fused multiply-adds of vectors", "/ns", 0.1, 100),
    "loads": Entry("vector loads", "/ns", 0.1, 100),
    "broadcasts": Entry("elements into all lanes, for a multiply-add", "/ns", 0.1, 100),
    "tile_call": Entry("call of a kernel for a block", "ns", 0.1, 1e3),
    "l1_read": Entry("first cache, read", "bytes/ns", 1, 1e4),
    "l1_write": Entry("first cache, written", "bytes/ns", 1, 1e4),
    "l2_read": Entry("second cache, read", "bytes/ns", 0.5, 1e4),
    "l2_write": Entry("second cache, written", "bytes/ns", 0.5, 1e4),
    "l3_read": Entry("last cache, read", "bytes/ns", 0.2, 1e4),
    "l3_write": Entry("last cache, written", "bytes/ns", 0.2, 1e4),
    "memory_read": Entry("memory, read", "bytes/ns", 0.05, 1e4),
    "memory_write": Entry("memory, written", "bytes/ns", 0.05, 1e4),
    "signal": Entry("from a counter's change to another core's next instruction", "ns", 1, 1e5),
    "wait": Entry("the same from run to run, with the claim of a block", "ns", 1, 1e5),
    "wake": Entry("from a wake to the first instruction of a thread that slept", "ns", 100, 1e7),
    "multiply_adds_beside": Entry("multiply-adds while another core has them too", "/ns", 0.05, 100),
    "memory_read_beside": Entry("memory, read while another core reads it too", "bytes/ns", 0.02, 1e4),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The best of several rounds, and within how much of it three quarters of them lie."""

    value: float
    spread: float  # relative: 0.03 for three per cent


def best_of(entry: Entry, values: Sequence[float]) -> Reading:
    """The least disturbed of the rounds: the least time, the largest rate."""
    ordered = sorted(values, reverse=not entry.is_time)
    best = ordered[0]
    return Reading(best, abs(ordered[3 * (len(ordered) - 1) // 4] - best) / best)
