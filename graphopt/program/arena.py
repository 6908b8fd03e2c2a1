"""Where temporaries lie in the arena of several workers, whose runs stand in a list of chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphopt.memory.plan import PACK_WORK
from graphopt.program.regions.buffer import Buffer, distinct_names
from graphopt.program.regions.region import Lowered
from kernels.listing import ALIGNMENT, Place, Run
from memplan import problem as memory
from memplan.packing.solve import solve
from memplan.plan import Packing
from memplan.verify.packing import verify
from scheduler.chains import Chain


def apart(lowered: Lowered, runs: Sequence[Run]) -> list[Run]:
    """The runs with every temporary in bytes of its own: what they need of one another without any reuse."""
    starts, top = {}, 0
    for one in lowered.temporaries:
        starts[one] = top
        top += one.size
    return _placed(lowered, runs, starts)


def packed(lowered: Lowered, runs: Sequence[Run], chains: Sequence[Chain], slack: int) -> tuple[list[Run], int]:
    """The runs with temporaries that keep their bytes for `slack` claims after their last use, and the arena.

    Temporaries that only runs of one chain touch follow each other in bytes of that chain, which its worker has in its
    cache, and are left alone together.
    """
    names = distinct_names(lowered.temporaries)
    spans = _spans(lowered, chains)
    inside: dict[int, list[Buffer]] = {}
    whole: list[tuple[str, int, int, int]] = []  # those of the arena, and one for each chain: name, bytes, claims
    for one in names:
        first, last = spans[one][0]
        if first == last and len(chains[first].runs) > 1:
            inside.setdefault(first, []).append(one)
        else:
            whole.append((names[one], one.size, first, last))
    plans = {}
    for claim, some in inside.items():
        plans[claim] = _plan([(names[one], one.size, *spans[one][1]) for one in some], len(runs), 0)
        whole.append((names[some[0]], plans[claim].arena_size, claim, claim))
    plan = _plan(whole, len(chains), slack)
    starts = {one: plan.offsets[name] for one, name in names.items() if name in plan.offsets}
    for claim, some in inside.items():
        begin = plan.offsets[names[some[0]]]
        starts |= {one: begin + plans[claim].offsets[names[one]] for one in some}
    return _placed(lowered, runs, starts), plan.arena_size


def _spans(lowered: Lowered, chains: Sequence[Chain]) -> dict[Buffer, tuple[tuple[int, int], tuple[int, int]]]:
    """By buffer its first claim and its last one, and the first and the last run, counted in the order of the list."""
    found: dict[Buffer, tuple[tuple[int, int], tuple[int, int]]] = {}
    place = 0
    for claim, chain in enumerate(chains):
        for run in chain.runs:
            for one in {given.buffer for given in lowered.regions[run].places}:
                (first, _), (begin, _) = found.get(one, ((claim, claim), (place, place)))
                found[one] = (first, claim), (begin, place)
            place += 1
    return found


def _plan(buffers: Sequence[tuple[str, int, int, int]], steps: int, slack: int) -> Packing:
    """Offsets of buffers by name, bytes, and the first and the last step that touches each."""
    problem = memory.MemoryProblem(
        tuple(memory.Buffer(name, size, first, min(last + 1 + slack, steps)) for name, size, first, last in buffers),
        ALIGNMENT,
    )
    plan = solve(problem, work=PACK_WORK)
    verify(problem, plan)
    return plan


def _placed(lowered: Lowered, runs: Sequence[Run], starts: Mapping[Buffer, int]) -> list[Run]:
    found = []
    for region, run in zip(lowered.regions, runs, strict=True):
        places = (
            Place("arena", starts[given.buffer] + given.offset) if given.buffer in starts else place
            for given, place in zip(region.places, run.operands, strict=True)
        )
        found.append(replace(run, operands=tuple(places)))
    return found
