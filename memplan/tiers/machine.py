"""Machines: tiers of memory from the fastest to the slowest, and how fast bytes are copied between them.

One TOML file describes a machine:

    name = "dram+pmem"
    [target]
    peak_flops = 3.0e12            # per second; what builders of problems turn flops into nanoseconds with
    [[memory.tier]]                # fastest first
    name = "dram"
    capacity = "192GiB"            # or a number of bytes
    read_bandwidth = 1.0e11        # bytes per second
    write_bandwidth = 8.0e10
    latency_ns = 90
    [[memory.link]]                # one for each direction in which values may be moved
    from = "pmem"
    to = "dram"
    sync_bandwidth = 2.9e10        # bytes per second, while no operator runs
    async_bandwidth = 2.0e9        # beside a running operator
"""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from memplan.errors import MemplanError

PRESETS = Path(__file__).parent / "presets"
UNITS: dict[str, int] = {"": 1, "B": 1} | {
    f"{letter}{word}": base**power
    for word, base in (("B", 1000), ("iB", 1024))
    for power, letter in enumerate("KMGT", 1)
}


class InvalidMachine(MemplanError):
    """A machine file that cannot be used; the message names the file, the entry and its fault."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A memory: how much it holds, and how fast operators read and write it."""

    name: str
    capacity: int  # bytes
    read_bandwidth: float  # bytes per second
    write_bandwidth: float
    latency: float = 0.0  # nanoseconds; told, not part of the cost model: values are read and written as a whole


@dataclass(frozen=True, slots=True)
class Link:
    """How fast a value is copied from one tier to another, in bytes per second."""

    source: str
    target: str
    sync_bandwidth: float  # while no operator runs
    async_bandwidth: float | None = None  # beside an operator; None: there is no such copy


@dataclass(frozen=True, slots=True)
class Machine:
    """Tiers, fastest first, and the links between them; values are moved only where there is a link."""

    name: str
    tiers: tuple[Tier, ...]
    links: tuple[Link, ...] = ()
    peak_flops: float | None = None  # per second; None: not told

    def __post_init__(self) -> None:
        names = [tier.name for tier in self.tiers]
        if not names:
            raise InvalidMachine(f"machine '{self.name}' has no tier of memory.")
        for tier in self.tiers:
            if names.count(tier.name) > 1:
                raise InvalidMachine(f"machine '{self.name}' has two tiers named '{tier.name}'.")
            if tier.capacity < 0:
                raise InvalidMachine(f"tier '{tier.name}' holds {tier.capacity} bytes; a capacity is not negative.")
            for rate in (tier.read_bandwidth, tier.write_bandwidth):
                if not (rate > 0 and math.isfinite(rate)):
                    raise InvalidMachine(f"tier '{tier.name}' has a bandwidth of {rate} bytes/s; it must be positive.")
        self._check_order()
        pairs = [(link.source, link.target) for link in self.links]
        for link in self.links:
            for end in (link.source, link.target):
                if end not in names:
                    raise InvalidMachine(f"a link names the tier '{end}'; there are {', '.join(names)}.")
            if link.source == link.target or pairs.count((link.source, link.target)) > 1:
                raise InvalidMachine(f"the link from '{link.source}' to '{link.target}' is there twice or to itself.")
            for speed in (link.sync_bandwidth, link.async_bandwidth):
                if speed is not None and not (speed > 0 and math.isfinite(speed)):
                    raise InvalidMachine(
                        f"the link from '{link.source}' to '{link.target}' copies {speed} bytes/s; it must be positive."
                    )

    def _check_order(self) -> None:
        for fast, slow in zip(self.tiers, self.tiers[1:], strict=False):
            if fast.read_bandwidth < slow.read_bandwidth or fast.write_bandwidth < slow.write_bandwidth:
                raise InvalidMachine(
                    f"tier '{slow.name}' is faster than '{fast.name}', which stands before it: the fastest comes first."
                )

    def tier(self, name: str) -> Tier:
        """The tier of that name; raises InvalidMachine where there is none."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise InvalidMachine(f"machine '{self.name}' has no tier '{name}', only {self._names()}.")

    def link(self, source: str, target: str) -> Link | None:
        """The link between two tiers, or None."""
        return next((one for one in self.links if (one.source, one.target) == (source, target)), None)

    def with_capacity(self, tier: str, capacity: int) -> Machine:
        """The same machine with another capacity (bytes) of one tier."""
        self.tier(tier)
        tiers = (replace(one, capacity=capacity) if one.name == tier else one for one in self.tiers)
        return replace(self, tiers=tuple(tiers))

    def _names(self) -> str:
        return ", ".join(tier.name for tier in self.tiers)


class TierTable(msgspec.Struct, frozen=True):
    """`[[memory.tier]]`."""

    name: str
    capacity: int | str
    read_bandwidth: float
    write_bandwidth: float
    latency_ns: float = 0.0


class LinkTable(msgspec.Struct, frozen=True):
    """`[[memory.link]]`."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    sync_bandwidth: float
    async_bandwidth: float | None = None


class MemoryTable(msgspec.Struct, frozen=True):
    """`[memory]`."""

    tier: tuple[TierTable, ...]
    link: tuple[LinkTable, ...] = ()


class TargetTable(msgspec.Struct, frozen=True):
    """`[target]`; what else a machine file says there is for others."""

    peak_flops: float | None = None


class MachineTable(msgspec.Struct, frozen=True):
    """A machine file."""

    memory: MemoryTable
    name: str = "machine"
    target: TargetTable = TargetTable()

    def machine(self) -> Machine:
        """The machine that the tables describe; raises InvalidMachine."""
        tiers = tuple(
            Tier(one.name, parse_bytes(one.capacity), one.read_bandwidth, one.write_bandwidth, one.latency_ns)
            for one in self.memory.tier
        )
        links = tuple(Link(one.source, one.target, one.sync_bandwidth, one.async_bandwidth) for one in self.memory.link)
        return Machine(self.name, tiers, links, self.target.peak_flops)


def presets() -> tuple[str, ...]:
    """The names of the machines that come with memplan."""
    return tuple(sorted(file.stem for file in PRESETS.glob("*.toml")))


def machine(source: str | Path) -> Machine:
    """A machine by the name of a preset or from a TOML file; raises InvalidMachine."""
    file = PRESETS / f"{source}.toml" if str(source) in presets() else Path(source)
    try:
        tables = tomllib.loads(file.read_text())
    except OSError:
        raise InvalidMachine(
            f"'{source}' is neither a file that can be read nor one of the machines {', '.join(presets())}."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidMachine(f"the machine file '{source}' is no TOML: {error}.") from None
    try:
        return msgspec.convert(tables, MachineTable).machine()
    except msgspec.ValidationError as error:
        raise InvalidMachine(f"the machine file '{source}': {error}.") from None


def parse_bytes(text: int | str) -> int:
    """A number of bytes from "192GiB", "1.5 GB" or a plain number; raises InvalidMachine."""
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = {name.lower(): size for name, size in UNITS.items()}.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise InvalidMachine(f"'{text}' is no number of bytes, such as 4096, 192GiB or 1.5GB.")
    return round(float(found[1]) * unit)
