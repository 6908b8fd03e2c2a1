"""One worker's program: lifetimes of temporaries, their offsets, the weights as one block of bytes, and the listing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphopt.memory.share import Budget
from graphopt.model.collection import paused_collection
from graphopt.program.costs import ESTIMATED, Costs
from graphopt.program.lifetimes import planned
from graphopt.program.ram.check import check_streamed
from graphopt.program.ram.contents import Owned
from graphopt.program.ram.course import Rates
from graphopt.program.ram.plan import Streamed, streamed
from graphopt.program.regions import buffer
from graphopt.program.regions.buffer import distinct_names
from graphopt.program.regions.region import Lowered
from graphopt.program.sharing import WORKERS, kernels_of, plan_shared, shared_plans
from graphopt.program.weights import Held, Weights, bytes_of
from kernels.listing import Listing, Place, Run, Space
from memplan.plan import Packing
from memplan.problem import MemoryProblem

_SPACES: Mapping[buffer.Role, Space] = {
    "input": "input", "output": "output", "constant": "weights", "temporary": "arena",
    "sizes": "sizes",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Linked:
    """A program that can be emitted: its listing, its weights, and where its temporaries live."""

    listing: Listing
    weights: npt.NDArray[np.uint8]  # where programs in this process read them
    problem: MemoryProblem
    plan: Packing
    held: Sequence[Held] = ()  # the constants in the weights
    streamed: Streamed | None = None  # how it is run within a budget of the process
    budget: int | None = None  # bytes that the arena may take

    @property
    def executed(self) -> Listing:
        """What is run."""
        return self.listing if self.streamed is None else self.streamed.listing

    @property
    def stored(self) -> npt.NDArray[np.uint8]:
        """The weights of what is run."""
        return self.weights if self.streamed is None else self.streamed.file


@paused_collection()
def link(
    lowered: Lowered, name: str, *, threads: int = 0, budget: int | None = None, costs: Costs = ESTIMATED,
    weights: Weights | None = None, ram: Budget | None = None,
) -> Linked:  # fmt: skip
    """The listing of regions in their order, and but for 1 thread the same for several workers.

    It is for any number of them, and planned for so many; 0: for `sharing.WORKERS`. `weights` are those of other
    programs of the model, which this one's join. With `ram` for the whole process, run by at most so many
    threads, it reads weights while it runs (graphopt/program/ram).

    The memory plan is checked by memplan's own verifier. Where the arena of one worker is within `budget` bytes, so is
    that of several, whose plan is the fastest by `costs`.
    """
    arena = planned(lowered)
    plan = arena.plan
    held = Weights(bytes_of(lowered)) if weights is None else weights
    offsets = {**held.add(lowered), **arena.offsets}

    def place(given: buffer.Place) -> Place:
        start = given.buffer
        return Place(_SPACES[start.role], offsets.get(start, 0) + given.offset, start.argument or 0)

    kernels = {region.kernel.name: region.kernel for region in lowered.regions}
    runs = tuple(Run(region.kernel.name, tuple(map(place, region.places))) for region in lowered.regions)
    together = None
    if threads != 1:
        together = plan_shared(lowered, runs, plan.arena_size, budget, costs, threads or WORKERS)
    if ram is not None and together is None:
        together = shared_plans(lowered, runs, plan.arena_size, costs, threads)[0].program
    if together is not None:
        kernels |= {one.name: one for one in kernels_of(lowered, together.runs)}
    listing = Listing(
        name, lowered.inputs, lowered.outputs, tuple(kernels.values()), runs, plan.arena_size, held.bytes.size,
        together, lowered.dims, lowered.derived,
    )  # fmt: skip
    within = None
    if ram is not None:
        durations = {one.name: costs.time(one) for one in listing.kernels}
        rates = Rates(costs.disk, costs.bandwidth)
        owned = _owned(lowered)
        within = streamed(listing, held.bytes, held.held, owned, durations, rates, ram, threads or WORKERS)
        check_streamed(listing, held.bytes, within.listing, within.file, owned)
    return Linked(listing, held.bytes, arena.problem, plan, held.held, within, budget)


def _owned(lowered: Lowered) -> Owned:
    """By run and operand the buffer of the arena that it lies in, and where."""
    names = distinct_names(lowered.temporaries)
    return [
        [(names[one.buffer], one.offset) if one.buffer in names else None for one in region.places]
        for region in lowered.regions
    ]
