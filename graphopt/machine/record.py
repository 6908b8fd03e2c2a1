"""The record of a machine: its entries with their spread, what it was made on, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import msgspec

from graphopt.errors import OptionError
from kernels.measure.entries import ENTRIES, Entry, Reading

SCHEMA = "graphopt.machine/2"
DISK: Mapping[str, Entry] = {
    "disk_read": Entry("disk, read past the system's cache", "bytes/ns", 1e-4, 100, rough=True),
    "disk_write": Entry("disk, written through to it", "bytes/ns", 1e-4, 100, rough=True),
}
ALL = {**ENTRIES, **DISK}
NEEDED = ("clock", "multiply_adds", "memory_read", "memory_write")  # that every machine has
LEVELS = ("l1", "l2", "l3", "memory", "disk")  # nearest first
NEARER = 1.25  # so much faster than a nearer level a farther one may look
DIGITS = 4  # that a figure is kept with


class Key(msgspec.Struct, frozen=True):
    """What a record holds for: the same processor, seen by the same compiler."""

    cpu: str  # as the system names it
    core: str  # as LLVM names it
    caches: tuple[int, int, int]  # bytes of data, nearest first
    llvm: str


class Measured(msgspec.Struct, frozen=True):
    """A figure; what it is stands in `ALL`."""

    value: float
    unit: str
    spread: float  # relative: within so much of it lie nine tenths of its rounds


class MachineRecord(msgspec.Struct, frozen=True):
    """A machine, measured. Entries that it could not be asked for are missing."""

    key: Key
    workers: int  # processors that the measuring process could use
    vector_bytes: int
    memory_bytes: int
    disk_bytes: int  # of the file system that was measured; 0: none was
    entries: dict[str, Measured]
    schema: str = SCHEMA

    def value(self, name: str) -> float | None:
        """An entry's figure; None where it was not measured."""
        return self.entries[name].value if name in self.entries else None

    def by_ns(self, name: str) -> float | None:
        """An entry by nanosecond where it is counted in cycles, at the clock that vectors leave; as it is elsewhere."""
        value = self.value(name)
        if value is None or not ALL[name].by_cycle:
            return value
        clock = self.entries["clock"].value
        return value / clock if ALL[name].is_time else value * clock

    @property
    def core_flops(self) -> float:
        """Float32 operations a second of one core."""
        return 2e9 * (self.by_ns("multiply_adds") or 0.0) * self.vector_bytes / 4

    @property
    def peak_flops(self) -> float:
        """Float32 operations a second of all workers; each of several as one beside a second."""
        return self.workers * self.core_flops * self._share("compute_beside")

    @property
    def bandwidth(self) -> float:
        """Bytes a second that come from memory to all workers, as far as seen: to one core or to two."""
        one = 1e9 * self.entries["memory_read"].value
        return max(one, min(self.workers, 2) * one * self._share("memory_beside"))

    def _share(self, name: str) -> float:
        return min(self.value(name) or 1.0, 1.0)


def measured(readings: Mapping[str, Reading]) -> dict[str, Measured]:
    """Readings with the digits that are kept, in the order of `ALL`."""
    return {
        name: Measured(rounded(readings[name].value), entry.unit, rounded(readings[name].spread))
        for name, entry in ALL.items()
        if name in readings
    }


def rounded(value: float) -> float:
    """A figure with the digits that are kept."""
    return float(f"{value:.{DIGITS}g}")


def check(record: MachineRecord, where: str) -> None:
    """Raise OptionError naming the first entry that no machine has; `where` begins the sentence."""
    for name, one in record.entries.items():
        if name not in ALL:
            raise OptionError(f"{where} has an entry '{name}', which there is not; there are {', '.join(ALL)}.")
        entry = ALL[name]
        if one.unit != entry.unit:
            raise OptionError(f"{where}: '{name}' is told in '{one.unit}'; it is counted in '{entry.unit}'.")
        if not entry.plausible(one.value):
            raise OptionError(
                f"{where}: '{name}' is {one.value:g} {entry.unit}; believed are {entry.least:g} to {entry.most:g}."
            )
        if not 0 <= one.spread < float("inf"):
            raise OptionError(f"{where}: '{name}' has a spread of {one.spread:g}; it is 0 or more.")
    for name in NEEDED:
        if name not in record.entries:
            raise OptionError(f"{where} lacks '{name}'; measure again with graphopt machine --measure.")
    for name in ("workers", "vector_bytes", "memory_bytes"):
        if getattr(record, name) < 1:
            raise OptionError(f"{where}: {name} is {getattr(record, name)}; it is at least 1.")
    for side in ("read", "write"):
        present = [level for level in LEVELS if f"{level}_{side}" in record.entries]
        for near, far in pairwise(present):
            rate, farther = (record.by_ns(f"{level}_{side}") or 0.0 for level in (near, far))
            if farther > NEARER * rate:
                raise OptionError(
                    f"{where}: '{far}_{side}' is {farther:.4g} bytes/ns and faster than '{near}_{side}', which is "
                    f"nearer, with {rate:.4g}; measure again with graphopt machine --measure."
                )
