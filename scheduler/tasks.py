"""The problem: regions with their kernels to choose from, and which blocks need which.

A kernel has independent blocks. A block of the target needs blocks of the source: all of them, or those that write what
it reads, which is told as ranges of fractions: with pattern "near", block j of n needs the source's blocks that touch
[j/n - halo, (j+1)/n + halo) of its length. So a need holds for every pair of kernels, whatever their numbers of blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Literal

import msgspec
import networkx

from scheduler.device import Resources
from scheduler.errors import InvalidTaskGraph

Pattern = Literal["all", "near"]
EXACT = 1e-9  # fractions closer than this are the same place


class Kernel(msgspec.Struct, frozen=True):
    """One way to compute a region.

    `times[c - 1]` is what one block takes, in nanoseconds, when c blocks are resident on its multiprocessor; the last
    entry stands for all larger c. It does not hold the device's fixed cost of a block.
    """

    name: str
    blocks: int
    times: tuple[float, ...]
    threads: int = 1
    registers: int = 0
    shared_memory: int = 0  # bytes
    opt_in: bool = False
    uniform_barriers: bool = True  # every thread of a block reaches every barrier in it

    def time(self, residents: int) -> float:
        """Nanoseconds of one block with `residents` blocks on its multiprocessor, itself included."""
        return self.times[min(residents, len(self.times)) - 1]

    @property
    def resources(self) -> Resources:
        """What a block takes of its multiprocessor."""
        return Resources(self.threads, self.registers, self.shared_memory, self.opt_in)


class Region(msgspec.Struct, frozen=True):
    """Work that one kernel does. Regions of one `batch` key that do not depend on each other may run as one kernel."""

    name: str
    kernels: tuple[Kernel, ...]
    batch: str | None = None


class Need(msgspec.Struct, frozen=True):
    """The target reads what the source writes; or, as `reuse`, overwrites what the source still uses."""

    source: str
    target: str
    pattern: Pattern = "all"
    halo: float = 0.0  # a fraction of the source's length
    reuse: bool = False


class TaskGraph(msgspec.Struct, frozen=True):
    """Regions and needs; raises InvalidTaskGraph from `check`."""

    name: str
    regions: tuple[Region, ...]
    needs: tuple[Need, ...] = ()

    def check(self) -> None:
        """Raises InvalidTaskGraph naming what is twice, unknown, without blocks, or in a circle."""
        names: set[str] = set()
        for region in self.regions:
            if region.name in names:
                raise InvalidTaskGraph(f"two regions are named '{region.name}'.")
            names.add(region.name)
            if not region.kernels:
                raise InvalidTaskGraph(f"region '{region.name}' has no kernel.")
            for kernel in region.kernels:
                if kernel.blocks < 1:
                    raise InvalidTaskGraph(f"kernel '{kernel.name}' of '{region.name}' has {kernel.blocks} blocks.")
                if kernel.threads < 1 or kernel.registers < 0 or kernel.shared_memory < 0:
                    raise InvalidTaskGraph(
                        f"kernel '{kernel.name}' of '{region.name}' has {kernel.threads} threads, {kernel.registers} "
                        f"registers and {kernel.shared_memory} bytes of shared memory: no block is like that."
                    )
                if not kernel.times or not all(0 <= time < float("inf") for time in kernel.times):
                    raise InvalidTaskGraph(f"kernel '{kernel.name}' of '{region.name}' has no time, or a negative one.")
        for need in self.needs:
            for name in (need.source, need.target):
                if name not in names:
                    raise InvalidTaskGraph(f"a need names the region '{name}', which is not there.")
            if not 0 <= need.halo < float("inf"):
                raise InvalidTaskGraph(
                    f"the need of '{need.target}' for '{need.source}' has a halo of {need.halo:g}: give a fraction of "
                    "the source's length, 0 or more."
                )
        graph: networkx.DiGraph = networkx.DiGraph((need.source, need.target) for need in self.needs)
        if not networkx.is_directed_acyclic_graph(graph):
            circle = [str(edge[0]) for edge in networkx.find_cycle(graph)]
            raise InvalidTaskGraph(f"the regions need each other in a circle: {' -> '.join((*circle, circle[0]))}.")

    def order(self) -> tuple[str, ...]:
        """The regions in an order in which each comes after what it needs; the given order where that is one."""
        position = {region.name: number for number, region in enumerate(self.regions)}
        graph: networkx.DiGraph = networkx.DiGraph((need.source, need.target) for need in self.needs)
        graph.add_nodes_from(position)
        return tuple(networkx.lexicographical_topological_sort(graph, key=position.__getitem__))


def needed_blocks(need: Need, source_blocks: int, target_blocks: int, block: int) -> range:
    """The source's blocks that one block of the target waits for."""
    if need.pattern == "all":
        return range(source_blocks)
    begin = block / target_blocks - need.halo
    end = (block + 1) / target_blocks + need.halo
    first = max(0, floor(begin * source_blocks + EXACT))
    return range(min(first, source_blocks - 1), min(source_blocks, max(first + 1, ceil(end * source_blocks - EXACT))))


def chosen(graph: TaskGraph, choice: Mapping[str, int] | Sequence[int] | None = None) -> dict[str, Kernel]:
    """Each region's kernel: by name or by position the number of the one chosen; None: the first of each."""
    if choice is None:
        return {region.name: region.kernels[0] for region in graph.regions}
    if isinstance(choice, Mapping):
        return {region.name: region.kernels[choice[region.name]] for region in graph.regions}
    return {region.name: region.kernels[number] for region, number in zip(graph.regions, choice, strict=True)}
