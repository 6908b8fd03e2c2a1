"""What is measured of a processor: the name of each entry, its unit, and between which figures it is believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Unit = Literal["/ns", "/cycle", "bytes/cycle", "cycles", "bytes/ns", "ns", "share"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A figure of a machine; of one core where nothing else is said.

    What the clock decides is counted in cycles: it stays when the clock changes, as it does with what neighbours do.
    """

    text: str  # for people
    unit: Unit
    least: float  # below which a reading is implausible
    most: float
    rough: bool = False  # whether luck makes it better as disturbances make it worse

    @property
    def is_time(self) -> bool:
        """Whether a disturbance makes it larger; a rate becomes smaller."""
        return self.unit in ("ns", "cycles")

    @property
    def by_cycle(self) -> bool:
        """Whether it is counted in cycles of the entry `clock`."""
        return self.unit in ("/cycle", "bytes/cycle", "cycles")

    def plausible(self, value: float) -> bool:
        """Whether a machine may be so."""
        return self.least <= value <= self.most  # false of NaN


ENTRIES: Mapping[str, Entry] = {
    "clock": Entry("cycles, while vectors compute", "/ns", 0.2, 10),
    "multiply_adds": Entry("fused multiply-adds of vectors", "/cycle", 0.1, 16),
    "loads": Entry("vector loads", "/cycle", 0.1, 16),
    "broadcasts": Entry("loads of an element into all lanes", "/cycle", 0.1, 16),
    "tile_products": Entry("products of two tiles of bfloat16 on matrix units", "/cycle", 0.005, 2),
    "dot_products": Entry("dot products of vectors of pairs of bfloat16", "/cycle", 0.1, 16),
    "tile_call": Entry("call of a kernel for a block", "cycles", 0.5, 1e3),
    "l1_read": Entry("first cache, read", "bytes/cycle", 1, 2e3),
    "l1_write": Entry("first cache, written", "bytes/cycle", 1, 2e3),
    "l2_read": Entry("second cache, read", "bytes/cycle", 0.5, 2e3),
    "l2_write": Entry("second cache, written", "bytes/cycle", 0.5, 2e3),
    "l3_read": Entry("last cache, read", "bytes/ns", 0.2, 1e4),
    "l3_write": Entry("last cache, written", "bytes/ns", 0.2, 1e4),
    "memory_read": Entry("memory, read", "bytes/ns", 0.05, 1e4),
    "memory_write": Entry("memory, written", "bytes/ns", 0.05, 1e4),
    "memory_latency": Entry("from a load to its line out of memory", "ns", 5, 1e5),
    "few_near": Entry("weights of a product of few rows, asked into the first cache", "bytes/ns", 0.05, 1e4),
    "few_far": Entry("the same, into the second one", "bytes/ns", 0.05, 1e4),
    "few_half": Entry("the same, half a page ahead", "bytes/ns", 0.05, 1e4),
    "tall_near": Entry("weights of a product of many rows, into the first cache", "bytes/ns", 0.05, 1e4),
    "tall_far": Entry("the same, into the second cache", "bytes/ns", 0.05, 1e4),
    "tall_half": Entry("the same, half a page ahead", "bytes/ns", 0.05, 1e4),
    "other_read": Entry("what another core has just written, read", "bytes/ns", 0.05, 1e4),
    "signal": Entry("from a counter's change to another core's next instruction", "ns", 1, 1e5),
    "wait": Entry("the same from run to run, with the claim of a block", "ns", 1, 1e5),
    "wake": Entry("from a wake to the first instruction of a thread that slept", "ns", 100, 1e7),
    "compute_beside": Entry("of its multiply-adds a core keeps beside one that has them too", "share", 0.05, 1.5),
    "memory_beside": Entry("of its reading of memory a core keeps beside one that reads too", "share", 0.05, 1.5),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure out of several rounds, and within how much of it nine tenths of them lie."""

    value: float
    spread: float  # relative: 0.03 for three per cent


def reading_of(entry: Entry, values: Sequence[float]) -> Reading:
    """The least disturbed of the rounds: the least time, the largest rate.

    The median of what is a ratio of two readings, or rough: a disturbance moves it either way. What is rough changes
    for longer than its rounds take, so that its spread is that of all of them.
    """
    if entry.rough or entry.unit == "share" or entry.by_cycle:
        value = median(values)
    else:
        value = min(values) if entry.is_time else max(values)
    distances = sorted(abs(one - value) for one in values)
    return Reading(value, distances[-1 if entry.rough else 9 * (len(values) - 1) // 10] / value)
