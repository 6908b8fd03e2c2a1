"""Kernels to choose from for a piece of work, with times from the device's peak and bandwidth.

One cost model for all policies. What is computed with it is simulated: kernels are those that libraries have for
float32 (tiles in registers, operands through shared memory), figures are published ones, and none was measured on the
device at hand. Times of blocks scale with the shares of the multiprocessor that blocks beside each other take from each
other. What a block takes does not depend on what runs on other multiprocessors: each has an even share of the caches'
and the memory's bandwidth.

Products of matrices have all kernels, and their depth is cut among blocks where there are few (cuBLAS does:
splitKreduce_kernel in profiles). Convolutions have those of convolutions: CUTLASS's tiles and cuDNN's, which are the
same and larger than cuBLAS's smallest, and their depth is not cut. CUTLASS could, but cuDNN's float32 forward kernels
in profiles of Volta do not (volta_scudnn_128x64_relu_interior_nn_v1 and its like; splitK is in names of weight
gradients' only). Published times decide: Inception-V3 of one image on V100 takes 5.2 ms with TensorRT and 6.5 with
cuDNN (Ding et al., "IOS: inter-operator scheduler for CNN acceleration", MLSys 2021); one launch for each region takes
4.7 ms with these kernels, 4.0 if convolutions of 1 x 1 had cuBLAS's, and 1.6 if all had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import msgspec
import numpy as np
from numpy.typing import NDArray

from scheduler.device import WARP, Device
from scheduler.errors import InvalidDevice, InvalidTaskGraph
from scheduler.tasks import Kernel

Floats = NDArray[np.float64]
NUMBER = 4  # bytes: float32
PRODUCT_DEPTH = 8  # shorter sums are bound by memory and need no tiles
PIECES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)  # of the depth of a product
STAGE = 8  # depth of what is loaded at once, as in CUTLASS's float32 kernels
FILLING = 2  # stages that a block's first loads and last stores cost, and the fewest that are worth a block
# Steps that adding up each slice of a block but one costs: the tile is written and read, 32 numbers a cycle, where a
# step of depth takes it over 128 lanes (Hopper; over 64, on Volta, it is half as many).
SLICED = 8
# Warps that keep a multiprocessor busy. Without tiles two for each of its four sub-partitions, as one has too few loads
# under way. With tiles one: its 32 or 64 sums are independent, and four of them hide what an instruction takes (Volkov,
# "Better performance at lower occupancy", GTC 2010; four cycles on Volta: Jia et al., below). But nothing runs then
# while it waits at the barrier of each stage: to store, to wait and to load again is 75 cycles, of 600 to 1,100.
SUB_PARTITIONS, FULL_WARPS = 4, 8
BEHIND_BARRIERS = 0.9  # what one warp for each sub-partition reaches
MEMORY_SHARE = 0.85  # of the bandwidth on paper that copies reach
ELEMENTWISE_SHARE = 0.3  # of peak flops that code without tiles reaches: conversions, addresses, functions of numbers
ELEMENTS = (256, 1024, 4096)  # outputs of a block without tiles: 2, 8 or 32 for each thread
ELEMENTWISE_THREADS, ELEMENTWISE_REGISTERS = 128, 32
MOST_BLOCKS = 8  # for each multiprocessor: with more, a block does the work of several instead
MOST_CANDIDATES = 12
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
    rows: int | None = None  # of a product's outputs, with `columns`; None: about as many as columns
    columns: int | None = None
    convolution: bool = False  # a product that libraries have kernels of their own for
    recent_bytes: int = 0  # of those read: what regions shortly before wrote, so that it may lie in the cache
    blocks: int | None = None  # of the only kernel there is, for devices that are CPUs


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile of outputs, and what a block that computes it takes: kernels of the libraries for float32.

    Unsliced ones are CUTLASS's (generator.py, GenerateSM50_Simt: tiles, stages of depth 8, warps), each thread with
    8 x 8 sums. In sliced ones (CUTLASS, efficient_gemm.md: sliced-K) two or four groups of threads have every second
    or fourth stage of the depth, and their sums are added up through shared memory in the end: cuDNN's
    volta_scudnn_128x64_sliced1x2, cuBLAS's volta_sgemm_64x32_sliced1x4 and _32x32_sliced1x4, the latter two with 4 x 8
    sums a thread (82 registers of the first in a profile), and the other tiles with as many slices as make 256 threads.
    cuBLAS's are for products only.
    """

    rows: int
    columns: int
    threads: int
    registers: int
    sums: tuple[int, int]  # of a thread
    slices: int = 1
    products_only: bool = False

    @property
    def name(self) -> str:
        """As kernels are called after it."""
        return f"tile{self.rows}x{self.columns}" + (f"s{self.slices}" if self.slices > 1 else "")

    @property
    def shared_memory(self) -> int:
        """Bytes: two stages of rows and columns for each slice, the usual double buffer."""
        return 2 * STAGE * self.slices * (self.rows + self.columns) * NUMBER

    @property
    def efficiency(self) -> float:
        """The share of peak flops: of instructions issued for a step of depth those that multiply and add.

        A thread loads its operands from shared memory four numbers at a time, brings its share of the tile's there,
        number by number, as those of a convolution are gathered and odd rows do not begin where four can be loaded, and
        counts and waits about once each step. 0.90 for 128 x 128: cuBLAS reaches 14 of V100's 15.7 Tflop/s.
        """
        products = self.sums[0] * self.sums[1]
        loads = sum(self.sums) / 4
        copies = 2 * (self.rows + self.columns) * self.slices / self.threads
        return products / (products + loads + copies + 1)


_TILES = (
    _Tile(128, 128, 256, 128, (8, 8)),
    _Tile(128, 64, 128, 128, (8, 8)),
    _Tile(128, 64, 256, 128, (8, 8), 2),
    _Tile(64, 128, 128, 128, (8, 8)),
    _Tile(64, 128, 256, 128, (8, 8), 2),
    _Tile(64, 64, 64, 128, (8, 8)),
    _Tile(64, 64, 256, 128, (8, 8), 4),
    _Tile(128, 32, 64, 128, (8, 8)),
    _Tile(128, 32, 256, 128, (8, 8), 4),
    _Tile(32, 128, 64, 128, (8, 8)),
    _Tile(32, 128, 256, 128, (8, 8), 4),
    _Tile(64, 32, 256, 82, (4, 8), 4, products_only=True),
    _Tile(32, 64, 256, 82, (4, 8), 4, products_only=True),
    _Tile(32, 32, 128, 82, (4, 8), 4, products_only=True),
)


def _name(tile: _Tile, pieces: int) -> str:
    """The name of a kernel with this tile whose depth is cut into so many pieces."""
    return tile.name + (f"/{pieces}" if pieces > 1 else "")


_NAMED = {_name(tile, pieces): (tile, pieces) for tile in _TILES for pieces in PIECES}


@dataclass(frozen=True, slots=True)
class _Cache:
    """The second level's cache of the devices from a compute capability on.

    Bandwidth: 2155 GB/s measured on V100 (Jia et al., "Dissecting the NVIDIA Volta GPU architecture via
    microbenchmarking", 2018), 69 % of the 2048 bytes a cycle on paper; of the 5120 of later ones as much is taken. A
    multiprocessor by itself takes up to 64 bytes a cycle (NVIDIA A100 whitepaper).
    """

    capability: tuple[int, int]
    size: int  # bytes
    bandwidth: float  # bytes per second, of all multiprocessors together
    one: float  # of one multiprocessor by itself


_CACHES = (
    _Cache((7, 0), 6 << 20, 2.155e12, 9.8e10),
    _Cache((8, 0), 40 << 20, 5.0e12, 9.0e10),
    _Cache((9, 0), 50 << 20, 6.2e12, 1.12e11),
)
IN_CACHE = 0.5  # of the cache is what a region may touch to find what was just written: others run before and beside it


def candidates(device: Device, work: Work) -> tuple[Kernel, ...]:
    """Kernels for the work, from the fastest alone on; none is worse than another in all that `_useful` looks at.

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


def block_rows(work: Work, kernel: Kernel) -> tuple[Floats, Floats]:
    """Where the rows of each block of the work's kernel begin and end, as fractions of all rows.

    Outputs lie row by row. Blocks without tiles are even ranges of them; those with tiles take all tiles of some rows,
    column by column, before those of the next, and the pieces of a tile's depth one after the other.
    """
    number = np.arange(kernel.blocks)
    if kernel.name not in _NAMED:
        return number / kernel.blocks, (number + 1) / kernel.blocks
    tile, pieces = _NAMED[kernel.name]
    rows, columns = _sides(work)
    across = ceil(columns / tile.columns) * pieces
    parts = ceil(rows / tile.rows) * across
    together = ceil(parts / kernel.blocks)
    last = np.minimum((number + 1) * together, parts) - 1
    return number * together // across * tile.rows / rows, np.minimum((last // across + 1) * tile.rows / rows, 1.0)


def least_work_ns(device: Device, kernel: Kernel, residents: int | None = None) -> float:
    """Multiprocessor time of all blocks with the number of residents, at most as many as given, that is best for it."""
    most = max(1, device.occupancy(kernel.resources))
    counts = range(1, min(most, max(len(kernel.times), 1), residents or most) + 1)
    return kernel.blocks * min((kernel.time(count) + device.block_fixed_ns) / count for count in counts)


def _products(device: Device, work: Work) -> list[Kernel]:
    made = []
    cache = _cache(device)
    rows, columns = _sides(work)
    kept = _recent(device, work)
    for tile in _TILES:
        tiles = ceil(rows / tile.rows) * ceil(columns / tile.columns)
        size = tile.rows * tile.columns * NUMBER
        stage = STAGE * tile.slices
        if work.convolution and tile.products_only:
            continue
        for pieces in PIECES:
            # Depth is cut until every multiprocessor has a block where tiles are too few for that, and not further, as
            # in the heuristics of libraries (stream-K, Osama et al. 2023: as many blocks as multiprocessors).
            if pieces > 1 and (
                work.convolution or work.depth < pieces * FILLING * stage or tiles * pieces >= 2 * _count(device)
            ):
                continue
            together = ceil(tiles * pieces / (MOST_BLOCKS * _count(device)))  # tiles that one block does in turn
            blocks = ceil(tiles * pieces / together)
            memory = (work.read_bytes - kept + work.written_bytes) / blocks
            operands = (tile.rows + tile.columns) * work.depth / pieces * NUMBER * together
            moved = max(operands, work.read_bytes / blocks) + work.written_bytes / blocks
            if pieces > 1:
                # As in stream-K's fixup, each block lays its sums down, and the one that comes last adds up those of
                # all in a fixed order, so that results repeat. Any may be the last, and what follows waits for it:
                # each is charged for it. As then one of `pieces` reads what all wrote, it has the others' share of the
                # cache's bandwidth too, up to what one multiprocessor can take.
                alone = cache.one / cache.bandwidth * _count(device)
                moved += (1 + max(1 - 1 / pieces, (pieces - 1) / alone)) * size * together
            steps = ceil(work.depth / pieces / stage) * stage + FILLING * stage + (tile.slices - 1) * SLICED
            flops = 2 * tile.rows * tile.columns * steps * together
            kernel = Kernel(_name(tile, pieces), blocks, (0.0,), tile.threads, tile.registers, tile.shared_memory)
            made.append(
                _timed(
                    device,
                    kernel,
                    flops / tile.efficiency,
                    memory,
                    moved,
                    _busy_with_tiles,
                    device.signal_ns if pieces > 1 else 0.0,
                )
            )
    return made


def _elementwise(device: Device, work: Work) -> list[Kernel]:
    made = []
    for elements in ELEMENTS:
        blocks = ceil(work.outputs / elements)
        blocks = ceil(blocks / ceil(blocks / (MOST_BLOCKS * _count(device))))
        moved = (work.read_bytes + work.written_bytes) / blocks
        memory = moved - _recent(device, work) / blocks
        kernel = Kernel(f"elements{elements}", blocks, (0.0,), ELEMENTWISE_THREADS, ELEMENTWISE_REGISTERS)
        made.append(_timed(device, kernel, work.flops / blocks / ELEMENTWISE_SHARE, memory, moved, _busy_without))
    return made


def _sides(work: Work) -> tuple[int, int]:
    """Rows and columns of a product's outputs."""
    if work.rows is not None and work.columns is not None:
        return work.rows, work.columns
    rows = ceil(work.outputs**0.5)
    return rows, ceil(work.outputs / rows)


def _recent(device: Device, work: Work) -> int:
    """Bytes read that still lie in the cache."""
    touched = work.read_bytes + work.written_bytes
    return work.recent_bytes if touched <= IN_CACHE * _cache(device).size else 0


def _cache(device: Device) -> _Cache:
    return max(
        (one for one in _CACHES if one.capability <= device.compute_capability),
        key=lambda one: one.capability, default=_CACHES[0],
    )  # fmt: skip


def _busy_with_tiles(warps: int) -> float:
    return 1.0 if warps >= FULL_WARPS else BEHIND_BARRIERS * min(1.0, warps / SUB_PARTITIONS)


def _busy_without(warps: int) -> float:
    return min(1.0, warps / FULL_WARPS)


def _timed(
    device: Device,
    kernel: Kernel,
    flops: float,
    memory: float,
    moved: float,
    busy: Callable[[int], float],
    latency: float = 0.0,
) -> Kernel:
    """The kernel with a block's nanoseconds, whole ones, by the number of residents.

    The longest of what it computes, of its bytes of `memory`, and of all that are `moved` through the cache, each at
    an even share of the device's (hierarchical roofline: Yang et al., 2019). `busy` is the share of its rate that a
    multiprocessor reaches with so many warps.
    """
    rate = 1e9 * _count(device)
    alone = max(
        flops / device.peak_flops,
        memory / (device.bandwidth * MEMORY_SHARE),
        moved / max(_cache(device).bandwidth, device.bandwidth * MEMORY_SHARE),
    ) * rate  # fmt: skip
    times = []
    for residents in range(1, max(1, device.occupancy(kernel.resources)) + 1):
        times.append(float(ceil(alone * residents / busy(residents * ceil(kernel.threads / WARP)) + latency)))
    while len(times) > 1 and times[-1] == times[-2]:
        times.pop()
    return msgspec.structs.replace(kernel, times=tuple(times))


def _useful(device: Device, made: list[Kernel]) -> tuple[Kernel, ...]:
    """Those that no other beats alone, in the work they make and in that of one block on each multiprocessor.

    Evenly thinned out, and one small one.
    """
    costs = {
        kernel.name: (alone_ns(device, kernel), least_work_ns(device, kernel), least_work_ns(device, kernel, 1))
        for kernel in made
    }
    ranked = sorted(made, key=lambda kernel: (*costs[kernel.name], kernel.blocks, kernel.name))
    kept: list[Kernel] = []
    for kernel in ranked:
        if not any(
            all(other <= mine for other, mine in zip(costs[one.name], costs[kernel.name], strict=True)) for one in kept
        ):
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
