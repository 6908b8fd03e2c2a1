"""How long the temporaries of regions in their order live, and where they lie in one arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphopt.memory.plan import PACK_WORK
from graphopt.program.regions.buffer import Buffer, distinct_names
from graphopt.program.regions.region import Lowered
from kernels.listing import ALIGNMENT
from memplan import problem as memory
from memplan.packing.solve import solve
from memplan.plan import Packing
from memplan.problem import MemoryProblem
from memplan.verify.packing import verify


@dataclass(frozen=True, slots=True)
class Planned:
    """Offsets of temporaries in an arena, in bytes, and what they were planned for."""

    problem: MemoryProblem
    plan: Packing
    offsets: Mapping[Buffer, int]


def planned(lowered: Lowered) -> Planned:
    """The arena of one worker; the plan is checked by memplan's own verifier."""
    problem = memory_problem(lowered)
    plan = solve(problem, work=PACK_WORK)
    verify(problem, plan)
    offsets = {one: plan.offsets[name] for one, name in distinct_names(lowered.temporaries).items()}
    return Planned(problem, plan, offsets)


def memory_problem(lowered: Lowered) -> MemoryProblem:
    """A temporary lives from the region that first touches it to after the one that touches it last."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for step, region in enumerate(lowered.regions):
        for place in region.places:
            first.setdefault(place.buffer, step)
            last[place.buffer] = step
    names = distinct_names(lowered.temporaries)
    return MemoryProblem(
        tuple(memory.Buffer(name, one.size, first[one], last[one] + 1) for one, name in names.items()), ALIGNMENT
    )
