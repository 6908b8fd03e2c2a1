"""What a program's plan for several workers is made with: how fast a core is, and what it costs to meet another one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from graphopt.machine.record import MachineRecord
from graphopt.memory.tensors import BANDWIDTH, PEAK_FLOPS
from kernels.kernel import Kernel
from kernels.target import Target

REACHED = 0.6  # of a core's peak by kernels of the zoo, where the sum of estimates is that of measured times


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one core, and between two."""

    flops: float  # per second, as kernels reach them
    bandwidth: float  # bytes per second, from where a program's buffers lie
    wait_ns: float  # from a run's last block to the next one's first, on another core
    wake_ns: float  # of workers that sleep, as a call after a pause finds them
    cache: int = 0  # bytes of a core's own second cache
    crossing_ns: float = 0.0  # that a byte which another core wrote takes longer out of its cache than out of the own
    cache_read: float | None = None  # bytes per second, out of that cache; None: as `bandwidth`
    cache_write: float | None = None
    disk: float = 1.5e9  # bytes per second that are read past the system's cache

    def time(self, kernel: Kernel) -> float:
        """Nanoseconds of all blocks on one core.

        Results that fit into its cache lie there; weights do not. A kernel without operations moves elements: as many
        as it reads it writes, whatever lies between them.
        """
        read = [one.bytes for one in kernel.operands if one.role == "input"]
        weights = sum(one.bytes for one in kernel.operands if one.role == "constant")
        written = [one.bytes for one in kernel.operands if one.role == "output"]
        if not kernel.flops:
            moved = min(sum(read) + weights, sum(written))
            read, weights, written = [moved], 0, [moved]
        passing = weights / self.bandwidth
        for sizes, rate in ((read, self.cache_read), (written, self.cache_write)):
            passing += sum(size / (rate if rate and size <= self.cache else self.bandwidth) for size in sizes)
        return 1e9 * max(kernel.flops / self.flops, passing)

    def crossing(self, sizes: Iterable[int], workers: int) -> float:
        """Nanoseconds by which several workers take longer than one to read results of so many bytes each.

        The others wrote their share of each, and it lies in their caches as long as a result fits into one.
        """
        return self.crossing_ns * sum(size for size in sizes if size <= self.cache) * (workers - 1) / workers

    def again(self, kernel: Kernel, workers: int) -> float:
        """Nanoseconds by which several workers take longer than one to read what all of them need.

        Blocks are rows, whose weights are the same, or channels, whose inputs are; the smaller of both is counted, once
        for each further worker that has a block.
        """
        weights = sum(one.bytes for one in kernel.operands if one.role == "constant")
        inputs = sum(one.bytes for one in kernel.operands if one.role == "input")
        return 1e9 * min(weights, inputs) / self.bandwidth * (min(workers, kernel.blocks) - 1)

    def beside(self, target: Target) -> Costs:
        """Where no machine was measured, with the caches that estimates of templates take the target to have.

        Else what only moves elements seems several times as dear beside kernels that have an estimate.
        """
        if self.cache_read is not None:
            return self
        second, last = (1e9 * target.core.gigahertz * rate for rate in (target.core.l2, target.core.l3))
        return replace(self, bandwidth=last, cache=target.l2, cache_read=second, cache_write=second)


ESTIMATED = Costs(PEAK_FLOPS, BANDWIDTH, 500.0, 20_000.0)  # where no machine was measured


def costs_of(machine: MachineRecord | str | None) -> Costs:
    """The costs that a record tells; those of a server's core where there is none, or where it was not asked."""
    if not isinstance(machine, MachineRecord):
        return ESTIMATED
    wait, wake, bandwidth = (machine.value(name) for name in ("wait", "wake", "l3_read"))
    own, written, other = (machine.by_ns(name) for name in ("l2_read", "l2_write", "other_read"))
    return Costs(
        REACHED * machine.core_flops,
        1e9 * (machine.entries["memory_read"].value if bandwidth is None else bandwidth),
        ESTIMATED.wait_ns if wait is None else wait,
        ESTIMATED.wake_ns if wake is None else wake,
        machine.key.caches[1],
        0.0 if own is None or other is None else max(0.0, 1 / other - 1 / own),
        None if own is None else 1e9 * own,
        None if written is None else 1e9 * written,
        1e9 * machine.entries["disk_read"].value if "disk_read" in machine.entries else ESTIMATED.disk,
    )
