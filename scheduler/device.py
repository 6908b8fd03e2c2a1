"""Devices: multiprocessors with their limits, and how many blocks of a kernel are resident on one of them.

A device is read from the `[target]` and `[device]` tables of a machine file. Where those tell no compute capability it
is a CPU, of which only the number of its workers has to be told; `cpu:N` is N workers. A worker holds one block at a
time.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from scheduler.errors import InvalidDevice

PRESETS = Path(__file__).parent / "devices"
WARP = 32  # threads
SUB_PARTITIONS = 4  # of a multiprocessor: registers are given out by one of them
REGISTER_UNIT = 256  # registers are given to a warp in multiples of this
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
STATIC_SHARED = 48 << 10  # bytes a block may have without asking for more
CPU = "cpu"  # a name of all cores of this process; with a number of so many
NO_GPU = (0, 0)  # in place of a compute capability
NAMED_BARRIERS = 64  # of a multiprocessor, from compute capability 9.0 on


@dataclass(frozen=True, slots=True)
class Resources:
    """What one block takes of its multiprocessor."""

    threads: int
    registers: int = 0  # per thread, as the assembler reports them
    shared_memory: int = 0  # bytes, static and dynamic
    opt_in: bool = False  # whether more dynamic shared memory than the default was asked for
    barriers: int = 1  # named barriers


@dataclass(frozen=True, slots=True)
class Device:
    """Limits are per multiprocessor where nothing else is said; times in nanoseconds, sizes in bytes."""

    name: str
    multiprocessors: int
    max_threads: int
    max_warps: int
    max_blocks: int
    registers: int
    shared_memory: int
    shared_memory_per_block: int  # with opt-in
    shared_memory_reserved: int  # by the driver, for each block
    shared_memory_granularity: int
    launch_ns: float = 0.0  # of one kernel
    signal_ns: float = 0.0  # from the end of a block until another worker that waits for it can see it
    wait_ns: float = 0.0  # of each wait besides, whether what it waits for has ended long ago or not
    block_fixed_ns: float = 0.0  # start and end of a block
    peak_flops: float = 0.0  # of the whole device, per second; 0: not told
    bandwidth: float = 0.0  # of device memory, bytes per second; 0: not told
    compute_capability: tuple[int, int] = NO_GPU

    def __post_init__(self) -> None:
        if self.multiprocessors < 1:
            raise InvalidDevice(
                f"device '{self.name}' has {self.multiprocessors} multiprocessors; it needs at least one."
            )
        for limit in ("max_threads", "max_warps", "max_blocks", "registers", "shared_memory"):
            if getattr(self, limit) < 0:
                raise InvalidDevice(
                    f"device '{self.name}': {limit} is {getattr(self, limit)}; a limit is not negative."
                )
        for time in ("launch_ns", "signal_ns", "wait_ns", "block_fixed_ns"):
            if not 0 <= getattr(self, time) < inf:
                raise InvalidDevice(
                    f"device '{self.name}': {time} is {getattr(self, time)}; a time is nanoseconds, 0 or more."
                )

    @property
    def is_gpu(self) -> bool:
        """Whether blocks share a multiprocessor and its limits count."""
        return self.compute_capability != NO_GPU

    def occupancy(self, block: Resources) -> int:
        """Resident blocks per multiprocessor; 0 where not even one fits.

        Source: the rules of NVIDIA's cuda_occupancy.h (CUDA 13) for compute capabilities 7.0 to 9.0.
        """
        if not self.is_gpu:
            return self.max_blocks
        return int(min(self._by_threads(block), self._by_registers(block), self._by_shared(block), self.max_blocks,
                       self._by_barriers(block)))  # fmt: skip

    def resident(self, block: Resources) -> int:
        """Blocks that are resident on the whole device at once."""
        return self.occupancy(block) * self.multiprocessors

    def _by_threads(self, block: Resources) -> float:
        if block.threads > MAX_THREADS_PER_BLOCK:
            return 0
        return self.max_warps // _warps(block)

    def _by_registers(self, block: Resources) -> float:
        warps = _warps(block)
        per_warp = _up(block.registers * WARP, REGISTER_UNIT)
        if block.registers > MAX_REGISTERS_PER_THREAD + 1 or per_warp * _up(warps, SUB_PARTITIONS) > self.registers:
            return 0
        if per_warp == 0:
            return inf
        return SUB_PARTITIONS * (self.registers // SUB_PARTITIONS // per_warp) // warps

    def _by_shared(self, block: Resources) -> float:
        taken = _up(block.shared_memory + self.shared_memory_reserved, self.shared_memory_granularity)
        allowed = self.shared_memory_per_block if block.opt_in else STATIC_SHARED
        if taken > allowed + self.shared_memory_reserved:
            return 0
        return inf if taken == 0 else self.shared_memory // taken

    def _by_barriers(self, block: Resources) -> float:
        return NAMED_BARRIERS // block.barriers if self.compute_capability >= (9, 0) and block.barriers else inf


def _warps(block: Resources) -> int:
    return -(-max(block.threads, 1) // WARP)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class _Target(msgspec.Struct, frozen=True):
    peak_flops: float = 0.0
    bandwidth: float = 0.0
    compute_capability: str = "0.0"


class _Costs(msgspec.Struct, frozen=True):
    multiprocessors: int
    launch_ns: float = 0.0
    signal_ns: float = 0.0
    wait_ns: float = 0.0
    block_fixed_ns: float = 0.0


class _Limits(_Costs, frozen=True, kw_only=True):
    max_threads: int
    max_warps: int
    max_blocks: int
    registers: int
    shared_memory: int
    shared_memory_per_block: int
    shared_memory_reserved: int
    shared_memory_granularity: int


class _File(msgspec.Struct, frozen=True):
    name: str
    device: dict[str, Any]  # _Costs of a CPU, _Limits of a GPU
    target: _Target = _Target()


def cpu(workers: int) -> Device:
    """Workers that run one block after the other: no limits but their number, signals and waits at round figures."""
    if workers < 1:
        raise InvalidDevice(f"a CPU with {workers} workers runs nothing; give at least one, cpu:1.")
    return Device(f"cpu:{workers}", workers, 1 << 30, 1 << 25, 1, 0, 0, 0, 0, 1, signal_ns=100.0, wait_ns=20.0)


def device(source: str | Path) -> Device:
    """`cpu:N`, `cpu` for the cores of this process, a preset's name, or a machine file; raises InvalidDevice."""
    text = str(source)
    if text == CPU:
        return cpu(len(os.sched_getaffinity(0)))
    if text.startswith(f"{CPU}:"):
        number = text.removeprefix(f"{CPU}:")
        if not number.lstrip("-").isdigit():
            raise InvalidDevice(f"'{text}' is no device: write cpu:2 for two workers.")
        return cpu(int(number))
    path = PRESETS / f"{text}.toml" if text in presets() else Path(text)
    try:
        tables = tomllib.loads(path.read_text())
    except OSError:
        known = ", ".join((*presets(), CPU, f"{CPU}:N"))
        raise InvalidDevice(
            f"there is no device '{text}'; known are {known}, or a TOML file (docs/scheduling.md says how)."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidDevice(f"the machine file '{text}' is no TOML: {error}.") from None
    try:
        read = msgspec.convert(tables, _File, strict=False)
        major, _, minor = read.target.compute_capability.partition(".")
        capability = (int(major), int(minor or 0))
        table = read.device
        if capability == NO_GPU:
            table = asdict(cpu(1)) | msgspec.structs.asdict(msgspec.convert(table, _Costs, strict=False))
        limits = msgspec.convert(table, _Limits, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidDevice(f"the machine file '{text}': {error}.") from None
    return Device(
        read.name, **msgspec.structs.asdict(limits), peak_flops=read.target.peak_flops, bandwidth=read.target.bandwidth,
        compute_capability=capability,
    )  # fmt: skip


def presets() -> tuple[str, ...]:
    """Names of the machine files that come with the package."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))
