"""Kernels to choose from for a piece of work, with times from the device's peak and bandwidth.

One cost model for all policies. What is computed with it is simulated: the constants are round figures for float32
kernels of the usual kind (tiles in registers, operands through shared memory), none was measured on the device at hand.
Times of blocks scale with the shares of the multiprocessor that blocks beside each other take from each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from scheduler.device import WARP, Device
from scheduler.errors import InvalidDevice, InvalidTaskGraph
from scheduler.tasks import Kernel

NUMBER = 4  # bytes: float32
PRODUCT_DEPTH = 8  # shorter sums are bound by memory and need no tiles
PIECES = (1, 2, 4, 8, 16)  # of the depth of a product
SHORTEST_PIECE = 16  # of a sum: shorter ones do not fill the pipeline once
FILLING = 16  # steps of depth that a block's first loads and last stores cost: two stages of eight
# Warps that keep a multiprocessor busy: two for each of its four sub-partitions, as an instruction of a tiled kernel
# takes about four cycles until its result can be used and one warp has independent ones for half of them.
FULL_WARPS = 8
# The second level's cache delivers more than memory: 2155 to 900 GB/s measured on V100 (Jia et al., "Dissecting the
# NVIDIA Volta GPU architecture via microbenchmarking", 2018). The same ratio is taken for other devices.
CACHE_OVER_MEMORY = 2.4
MEMORY_SHARE = 0.85  # of the bandwidth on paper that copies reach
ELEMENTWISE_SHARE = 0.3  # of peak flops that code without tiles reaches: conversions, addresses, functions of numbers
ELEMENTS = (256, 1024, 4096)  # outputs of a block without tiles: 2, 8 or 32 for each thread
ELEMENTWISE_THREADS, ELEMENTWISE_REGISTERS = 128, 32
MOST_BLOCKS = 8  # for each multiprocessor: with more, a block does the work of several instead
MOST_CANDIDATES = 8
SEVERAL = 4  # workers on a multiprocessor
# One core of a CPU: about 3 GHz with two fused multiply-adds of eight numbers each cycle, and what one core draws.
CORE_FLOPS = 6.0e10  # per second, at the half of its peak that tiled kernels reach on any shape
CORE_BANDWIDTH = 1.0e10  # bytes per second
CORE_BLOCKS = (1, 4)  # blocks for each worker, where no number is given
LEAST_CORE_NS = 2000.0  # of a block of a CPU: shorter ones are not worth cutting off


@dataclass(frozen=True, slots=True)
class Work:
    """What a region computes."""

    name: str
    flops: float
    read_bytes: int  # each byte once
    written_bytes: int
    outputs: int  # elements
    depth: int = 1  # length of the sum behind each output; 1 for elementwise
    blocks: int | None = None  # of the only kernel there is, for devices that are CPUs


@dataclass(frozen=True, slots=True)
class _Tile:
    """A square tile of outputs, and what a block that computes it takes."""

    side: int
    threads: int
    registers: int
    shared_memory: int  # bytes: two stages of eight rows and columns, the usual double buffer
    efficiency: float  # share of peak flops: products for each number that is loaded grow with the tile


_TILES = (
    _Tile(16, 64, 40, 2 * 2 * 16 * 8 * NUMBER, 0.3),
    _Tile(32, 64, 72, 2 * 2 * 32 * 8 * NUMBER, 0.5),
    _Tile(64, 128, 96, 2 * 2 * 64 * 8 * NUMBER, 0.7),
    _Tile(128, 256, 128, 2 * 2 * 128 * 8 * NUMBER, 0.85),
)


def candidates(device: Device, work: Work) -> tuple[Kernel, ...]:
    """Kernels for the work, none worse than another in both: from the fastest alone to the least work in all.

    Raises InvalidTaskGraph for work without outputs or with negative figures, InvalidDevice for a GPU whose
    machine file does not tell flops and bandwidth.
    """
    if work.outputs < 1 or work.depth < 1 or min(work.flops, work.read_bytes, work.written_bytes) < 0:
        raise InvalidTaskGraph(
            f"the work '{work.name}' has {work.outputs} outputs of depth {work.depth}, {work.flops:g} flops and "
            f"{work.read_bytes} + {work.written_bytes} bytes: give at least 1 output of depth 1, and nothing negative."
        )
    if not device.is_gpu:
        return _of_cores(device, work)
    if device.peak_flops <= 0 or device.bandwidth <= 0:
        raise InvalidDevice(
            f"device '{device.name}' tells no peak flops or no bandwidth; add them to [target] of its machine file."
        )
    made = _products(device, work) if work.depth >= PRODUCT_DEPTH else _elementwise(device, work)
    return _useful(device, [kernel for kernel in made if device.occupancy(kernel.resources)])


def alone_ns(device: Device, kernel: Kernel) -> float:
    """What the kernel takes with the device to itself, the launch not included: rounds of blocks side by side."""
    most = max(1, min(device.occupancy(kernel.resources), ceil(kernel.blocks / device.multiprocessors)))
    rounds = ceil(kernel.blocks / (most * device.multiprocessors))
    return rounds * (kernel.time(most) + device.block_fixed_ns)


def least_work_ns(device: Device, kernel: Kernel, residents: int | None = None) -> float:
    """Multiprocessor time of all blocks with the number of residents, at most as many as given, that is best for it."""
    most = max(1, device.occupancy(kernel.resources))
    counts = range(1, min(most, max(len(kernel.times), 1), residents or most) + 1)
    return kernel.blocks * min((kernel.time(count) + device.block_fixed_ns) / count for count in counts)


def _products(device: Device, work: Work) -> list[Kernel]:
    made = []
    for tile in _TILES:
        tiles = ceil(work.outputs / tile.side**2)
        for pieces in PIECES:
            # Depth is cut until every multiprocessor has a block where tiles are too few for that, and not further, as
            # in the heuristics of libraries (stream-K, Osama et al. 2023: as many blocks as multiprocessors).
            if pieces > 1 and (work.depth < pieces * SHORTEST_PIECE or tiles * pieces >= 2 * _count(device)):
                continue
            together = ceil(tiles * pieces / (MOST_BLOCKS * _count(device)))  # tiles that one block does in turn
            blocks = ceil(tiles * pieces / together)
            operands = 2 * tile.side * work.depth / pieces * NUMBER * together
            once = (work.read_bytes + work.written_bytes) / blocks
            again = max(0.0, operands - work.read_bytes / blocks)
            if pieces > 1:
                # Each block lays its sums down, and the one that comes last adds up all pieces in a fixed order, so
                # that results repeat. Any may be the last, and what follows waits for it: each is charged for it.
                again += (1 + pieces) * min(tile.side**2, work.outputs) * NUMBER * together
            steps = work.depth / pieces + FILLING
            flops = max(work.flops / blocks * steps * pieces / work.depth,
                        2 * min(tile.side**2, work.outputs) * steps * together)  # fmt: skip
            name = f"tile{tile.side}" + (f"/{pieces}" if pieces > 1 else "")
            times = _times(device, flops / tile.efficiency, once, again, tile.threads, tile.registers,
                           tile.shared_memory)  # fmt: skip
            made.append(Kernel(name, blocks, times, tile.threads, tile.registers, tile.shared_memory))
    return made


def _elementwise(device: Device, work: Work) -> list[Kernel]:
    made = []
    for elements in ELEMENTS:
        blocks = ceil(work.outputs / elements)
        blocks = ceil(blocks / ceil(blocks / (MOST_BLOCKS * _count(device))))
        once = (work.read_bytes + work.written_bytes) / blocks
        times = _times(device, work.flops / blocks / ELEMENTWISE_SHARE, once, 0.0, ELEMENTWISE_THREADS,
                       ELEMENTWISE_REGISTERS, 0)  # fmt: skip
        made.append(Kernel(f"elements{elements}", blocks, times, ELEMENTWISE_THREADS, ELEMENTWISE_REGISTERS))
    return made


def _times(
    device: Device, flops: float, once: float, again: float, threads: int, registers: int, shared_memory: int
) -> tuple[float, ...]:
    """A block's nanoseconds, whole ones, by the number of residents; `once` are bytes of memory, `again` of cache."""
    kernel = Kernel("", 1, (0.0,), threads, registers, shared_memory)
    rate = 1e9 * _count(device)
    compute = flops / device.peak_flops * rate
    memory = (once + again / CACHE_OVER_MEMORY) / (device.bandwidth * MEMORY_SHARE) * rate
    times = []
    for residents in range(1, max(1, device.occupancy(kernel.resources)) + 1):
        busy = min(1.0, residents * ceil(threads / WARP) / FULL_WARPS)
        times.append(float(ceil(max(compute, memory) * residents / busy)))
    while len(times) > 1 and times[-1] == times[-2]:
        times.pop()
    return tuple(times)


def _useful(device: Device, made: list[Kernel]) -> tuple[Kernel, ...]:
    """Those that no other beats both alone and in the work they make, evenly thinned out, and one small one."""
    ranked = sorted(
        made, key=lambda kernel: (alone_ns(device, kernel), least_work_ns(device, kernel), kernel.blocks, kernel.name)
    )
    kept: list[Kernel] = []
    for kernel in ranked:
        if not kept or least_work_ns(device, kernel) < least_work_ns(device, kept[-1]):
            kept.append(kernel)
    most = MOST_CANDIDATES - 1
    if len(kept) > most:
        step = (len(kept) - 1) / (most - 1)
        kept = [kept[round(number * step)] for number in range(most)]
    # One of them leaves room for several workers on a multiprocessor, whatever else runs in the same launch.
    small = [kernel for kernel in ranked if device.occupancy(kernel.resources) >= SEVERAL]
    if small and not any(kernel in small for kernel in kept):
        kept.append(min(small, key=lambda kernel: least_work_ns(device, kernel)))
        kept.sort(key=lambda kernel: alone_ns(device, kernel))
    return tuple(kept)


def _of_cores(device: Device, work: Work) -> tuple[Kernel, ...]:
    """Tasks of one core each; memory is shared by the workers."""
    flops = device.peak_flops / device.multiprocessors if device.peak_flops else CORE_FLOPS
    bandwidth = device.bandwidth / device.multiprocessors if device.bandwidth else CORE_BANDWIDTH
    whole = max(work.flops / flops, (work.read_bytes + work.written_bytes) / bandwidth) * 1e9
    if work.blocks is not None:
        counts = [max(1, work.blocks)]
    else:
        most = max(1, min(work.outputs, int(whole / LEAST_CORE_NS)))
        counts = [1, *(min(most, each * device.multiprocessors) for each in CORE_BLOCKS)]
    return tuple(Kernel(f"blocks{count}", count, (float(ceil(whole / count)),)) for count in sorted(set(counts))[::-1])


def _count(device: Device) -> int:
    return device.multiprocessors
