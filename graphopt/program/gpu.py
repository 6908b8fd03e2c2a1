"""The list that blocks of a GPU go through: runs by the longest way to the end, and memory that makes nobody wait long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphopt.program.arena import apart, packed
from graphopt.program.regions.buffer import Role
from graphopt.program.regions.region import Lowered
from graphopt.program.ticketed import needs_of, ticketed
from graphopt.program.weights import Weights, bytes_of
from kernels.kernel import Kernel
from kernels.listing import Listing, Place, Run, Space
from scheduler.chains import Chain

SLACK = 16  # claims for which a dead buffer's bytes are left alone: as many runs may be under way
_FLOPS, _BYTES, _FIXED = 20.0, 1500.0, 2000.0  # a nanosecond's, of a GPU's usual kernel; nanoseconds of any
_SPACES: Mapping[Role, Space] = {
    "input": "input", "output": "output", "constant": "weights", "temporary": "arena", "sizes": "sizes"
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class LinkedTasks:
    """A program of tasks: its listing, and the bytes of its weights."""

    listing: Listing
    weights: npt.NDArray[np.uint8]


def link_tasks(lowered: Lowered, name: str, *, slack: int = SLACK) -> LinkedTasks:
    """The listing of regions whose kernels are tasks; a dead buffer's bytes are left alone for `slack` claims."""
    weights = Weights(bytes_of(lowered))
    offsets = weights.add(lowered)
    runs = [
        Run(
            region.kernel.name,
            tuple(
                Place(_SPACES[one.buffer.role], offsets.get(one.buffer, 0) + one.offset, one.buffer.argument or 0)
                for one in region.places
            ),
        )
        for region in lowered.regions
    ]
    kernels = {region.kernel.name: region.kernel for region in lowered.regions}
    chains = [Chain((run,)) for run in _in_order(apart(lowered, runs), kernels)]
    placed, size = packed(lowered, runs, chains, slack)
    program = ticketed(placed, kernels, chains, size)
    listing = Listing(
        name, lowered.inputs, lowered.outputs, tuple(kernels.values()), tuple(placed), size, weights.bytes.size, program
    )
    return LinkedTasks(listing, weights.bytes)


def _in_order(runs: Sequence[Run], kernels: Mapping[str, Kernel]) -> list[int]:
    """The runs by the longest way from each to the end (Hu, 1961), what needs others behind them."""
    needs = needs_of(runs, kernels, range(len(runs)))
    ways = [0.0] * len(runs)
    for run in reversed(range(len(runs))):
        ways[run] += nanoseconds(kernels[runs[run].kernel])
        for one in needs[run]:
            ways[one] = max(ways[one], ways[run])
    return sorted(range(len(runs)), key=lambda run: -ways[run])


def nanoseconds(kernel: Kernel) -> float:
    """About what a kernel takes on a whole GPU."""
    return max(kernel.flops / _FLOPS / 1000, kernel.traffic / _BYTES) + _FIXED


