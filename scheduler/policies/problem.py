"""A task graph and a device as arrays: what every policy works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.device import Device, Resources
from scheduler.errors import InvalidTaskGraph
from scheduler.tasks import Kernel, TaskGraph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_BLOCKS = 100_000  # of a task graph: what each waits for is kept in as many bits
Choice = tuple[int, ...]  # by region the number of its kernel, as the task graph counts them


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """All kernels of all regions, a row each."""

    first: Ints  # by region the row of its first kernel
    blocks: Ints  # by row
    residents: Ints  # by row, from how many blocks on a multiprocessor on the time of one stays the same
    times: Floats  # by row, of a block beside c - 1 others, with the device's fixed cost; the last stands for all more


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Regions by number, in the task graph's order; each need once, the stronger of two between the same regions."""

    graph: TaskGraph
    device: Device
    fitting: tuple[tuple[int, ...], ...]  # by region the kernels of which a block fits the device
    source: Ints  # by need
    target: Ints
    near: NDArray[np.bool_]
    halo: Floats
    order: tuple[int, ...]  # each region after what it needs
    before: tuple[tuple[int, ...], ...]  # by region what it needs
    behind: tuple[tuple[int, ...], ...]
    level: tuple[int, ...]  # the most needs on a path to the region: its wave
    kind: tuple[int, ...]  # the same number for regions of the same kernels
    tables: Tables

    @property
    def count(self) -> int:
        """How many regions there are."""
        return len(self.fitting)

    def kernel(self, region: int, number: int) -> Kernel:
        """One of the region's kernels."""
        return self.graph.regions[region].kernels[number]

    def kernels(self, choice: Choice) -> tuple[Kernel, ...]:
        """The kernels chosen."""
        return tuple(region.kernels[number] for region, number in zip(self.graph.regions, choice, strict=True))


def problem_of(graph: TaskGraph, device: Device) -> Problem:
    """Raises InvalidTaskGraph for a task graph that means nothing, and for a region that does not fit the device."""
    graph.check()
    fitting = tuple(
        tuple(number for number, kernel in enumerate(region.kernels) if device.occupancy(kernel.resources) > 0)
        for region in graph.regions
    )
    for region, some in zip(graph.regions, fitting, strict=True):
        if not some:
            kernel = region.kernels[0]
            raise InvalidTaskGraph(
                f"no kernel of region '{region.name}' fits device '{device.name}': a block of '{kernel.name}' takes "
                f"{kernel.threads} threads, {kernel.registers} registers and {kernel.shared_memory} bytes of shared "
                "memory; give a smaller one."
            )
    least = sum(
        min(region.kernels[one].blocks for one in some) for region, some in zip(graph.regions, fitting, strict=True)
    )
    if least > MOST_BLOCKS:
        raise InvalidTaskGraph(
            f"the regions of '{graph.name}' have at least {least:,} blocks, more than the {MOST_BLOCKS:,} that can be "
            "scheduled; give larger blocks, or a smaller graph."
        )
    position = {region.name: number for number, region in enumerate(graph.regions)}
    needs: dict[tuple[int, int], float | None] = {}  # the halo; None: all blocks
    for need in graph.needs:
        pair = position[need.source], position[need.target]
        halo = needs.get(pair, 0.0)
        needs[pair] = None if need.pattern == "all" or halo is None else max(halo, need.halo)
    order = tuple(position[name] for name in graph.order())
    before: list[list[int]] = [[] for _ in graph.regions]
    behind: list[list[int]] = [[] for _ in graph.regions]
    for one, other in needs:
        before[other].append(one)
        behind[one].append(other)
    level = [0] * len(graph.regions)
    for number in order:
        level[number] = max((level[other] + 1 for other in before[number]), default=0)
    return Problem(
        graph, device, fitting,
        np.array([pair[0] for pair in needs], np.int64), np.array([pair[1] for pair in needs], np.int64),
        np.array([halo is not None for halo in needs.values()], np.bool_),
        np.array([halo or 0.0 for halo in needs.values()], np.float64),
        order, tuple(map(tuple, before)), tuple(map(tuple, behind)), tuple(level),
        _kinds(graph), _tables(graph, device),
    )  # fmt: skip


def _tables(graph: TaskGraph, device: Device) -> Tables:
    kernels = [kernel for region in graph.regions for kernel in region.kernels]
    residents = np.array([len(kernel.times) for kernel in kernels], np.int64)
    most = int(residents.max(initial=0))
    times = [kernel.times + kernel.times[-1:] * (most - len(kernel.times)) for kernel in kernels]
    counts = [len(region.kernels) for region in graph.regions]
    return Tables(
        np.cumsum([0, *counts], dtype=np.int64)[:-1],
        np.array([kernel.blocks for kernel in kernels], np.int64),
        residents,
        np.array(times, np.float64).reshape(len(kernels), most) + device.block_fixed_ns,
    )


def _kinds(graph: TaskGraph) -> tuple[int, ...]:
    numbers: dict[tuple[Kernel, ...], int] = {}
    return tuple(numbers.setdefault(region.kernels, len(numbers)) for region in graph.regions)


def most_of(kernels: Sequence[Kernel]) -> Resources:
    """What a worker takes that can run any of these kernels."""
    return Resources(
        max(kernel.threads for kernel in kernels),
        max(kernel.registers for kernel in kernels),
        max(kernel.shared_memory for kernel in kernels),
        any(kernel.opt_in for kernel in kernels),
    )
