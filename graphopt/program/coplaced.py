"""What `compile` writes for several workers, as the scheduler's program: its task graph, and its blocks as tickets.

The steps of `kernels.listing.Ticketed` are taken over one by one: a claim is a ticket for each block of its run, and
what is waited for before it are waits of the first of them. So what the scheduler's verifier and simulator say is said
of the program that workers run. Beside it stand the same kernels region by region, wave by wave, and one after the
other on a single worker, which workers can run as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from graphopt.program.arena import apart
from graphopt.program.costs import Costs
from graphopt.program.handing import handed
from graphopt.program.listing import Linked
from graphopt.program.regions.buffer import Buffer, distinct_names
from graphopt.program.regions.region import Lowered
from graphopt.program.sharing import chains_of, shared_kernels
from graphopt.program.tasks import Tasks, region_names
from graphopt.program.ticketed import needs_of
from kernels.kernel import Kernel
from kernels.listing import ALIGNMENT, Claim, Listing, Wait
from kernels.listing import Ticketed as Steps
from memplan.accesses import Accesses
from memplan.bounds import live_peak
from memplan.concurrent import concurrent_problem
from memplan.plan import Packing
from memplan.verify.concurrent import verify_concurrent
from scheduler import tasks
from scheduler.device import Device
from scheduler.policies.bounding import bounds_of
from scheduler.policies.choose import Scheduled
from scheduler.policies.problem import problem_of
from scheduler.program import Counter, Item, Program, Ticketed, count_waits
from scheduler.program import Run as Block
from scheduler.program import Wait as Until
from scheduler.simulate import simulate
from scheduler.tasks import Need, Region, TaskGraph
from scheduler.verify.program import verify

APART, WAVES = "launches", "waves"
TAKEN = "co-placed"  # what compile writes, where two workers gain by it
ALONE = "one worker"
POLICIES = ("best", APART, WAVES, TAKEN, ALONE)


def programs_of(lowered: Lowered, linked: Linked) -> dict[str, Steps]:
    """The steps under each policy, all on the memory of one worker but for "co-placed", which has what it planned."""
    listing = linked.listing
    several = shared_kernels(lowered)
    by_name = {kernel.name: kernel for kernel in several}
    runs = [replace(run, kernel=kernel.name) for run, kernel in zip(listing.runs, several, strict=True)]
    given = range(len(runs))
    found = {APART: Steps(_one_by_one(given), tuple(runs), listing.arena_bytes)}
    if listing.ticketed is not None:
        taken = listing.ticketed
        order = [run for run, _ in taken.waits]
        runs = [replace(run, kernel=kernel.name) for run, kernel in zip(taken.runs, several, strict=True)]
        found[WAVES] = Steps(_by_waves(order, needs_of(runs, by_name, order)), tuple(runs), taken.arena_bytes)
        found[TAKEN] = taken
    else:
        found[WAVES] = Steps(_by_waves(given, needs_of(runs, by_name, given)), tuple(runs), listing.arena_bytes)
    found[ALONE] = Steps(_one_by_one(given), listing.runs, listing.arena_bytes)
    return found


def _one_by_one(runs: Sequence[int]) -> tuple[Claim | Wait, ...]:
    return tuple(step for run in runs for step in (Claim(run), Wait(run)))


def _by_waves(order: Sequence[int], needs: Mapping[int, Sequence[int]]) -> tuple[Claim | Wait, ...]:
    """Each run after all of the wave before; a wave has the runs that as many lie before, on the longest way."""
    wave: dict[int, int] = {}
    for run in order:
        wave[run] = max((wave[one] + 1 for one in needs[run]), default=0)
    steps: list[Claim | Wait] = []
    before: list[int] = []
    for number in range(max(wave.values(), default=-1) + 1):
        members = [run for run in order if wave[run] == number]
        for run in members:
            steps += [*map(Wait, before), Claim(run)]
        before = members
    return (*steps, *map(Wait, before))


def listing_of(lowered: Lowered, linked: Linked, steps: Steps) -> Listing:
    """The program with these steps for several workers: always the same kernels, so that none is compiled again."""
    return replace(linked.listing, kernels=_every_kernel(lowered), ticketed=steps)


def in_claimed_order(lowered: Lowered, linked: Linked, steps: Steps) -> Listing:
    """The runs of several workers for one worker, in the order in which they are claimed: what each takes by itself."""
    runs = tuple(steps.runs[run] for run, _ in steps.waits)
    return replace(
        linked.listing, kernels=_every_kernel(lowered), runs=runs, arena_bytes=steps.arena_bytes, ticketed=None
    )  # fmt: skip


def _every_kernel(lowered: Lowered) -> tuple[Kernel, ...]:
    """Those of one worker, then those that several share instead."""
    own = {region.kernel.name: region.kernel for region in lowered.regions}
    return tuple((own | {kernel.name: kernel for kernel in shared_kernels(lowered)}).values())


def crossings(lowered: Lowered, kernels: Sequence[Kernel], steps: Steps, costs: Costs, workers: int) -> list[float]:
    """Nanoseconds by region that several workers add to the time of all its blocks on one.

    They read what others wrote, but for the runs before in a chain, and of a run that they share what each needs.
    """
    chain = {run: number for number, chain in enumerate(chains_of(steps)) if chain.whole for run in chain.runs}
    found = []
    for run, (kernel, read) in enumerate(zip(kernels, handed(lowered, kernels), strict=True)):
        others = [size for maker, size in read if maker not in chain or chain[maker] != chain.get(run)]
        found.append(costs.crossing(others, workers) + (0.0 if run in chain else costs.again(kernel, workers)))
    return found


def tasks_of_program(lowered: Lowered, linked: Linked, kernels: Sequence[Kernel], times: Sequence[float]) -> Tasks:
    """The regions with their own kernels and what they need of one another, but for what reuse of bytes adds.

    `times` in nanoseconds, by region: of all its blocks on one worker.
    """
    names = region_names(lowered)
    by_name = {kernel.name: kernel for kernel in kernels}
    runs = [replace(run, kernel=kernel.name) for run, kernel in zip(linked.listing.runs, kernels, strict=True)]
    needs = needs_of(apart(lowered, runs), by_name, range(len(runs)))
    regions = tuple(
        Region(region, (tasks.Kernel(kernel.name, kernel.blocks, (time / kernel.blocks,)),))
        for region, kernel, time in zip(names, kernels, times, strict=True)
    )
    graph = TaskGraph(
        linked.listing.name, regions, tuple(Need(names[one], names[run]) for run in sorted(needs) for one in needs[run])
    )
    pieces = _pieces(lowered, kernels)
    reads: dict[str, tuple[str, ...]] = {}
    writes: dict[str, tuple[str, ...]] = {}
    for called, region, kernel in zip(names, lowered.regions, kernels, strict=True):
        touched: dict[bool, list[str]] = {False: [], True: []}
        for operand, place in zip(kernel.operands, region.places, strict=True):
            begin, end = place.offset, place.offset + operand.bytes
            touched[operand.role == "output"] += [
                one.name for one in pieces.get(place.buffer, ()) if one.begin < end and begin < one.end
            ]
        reads[called], writes[called] = (tuple(dict.fromkeys(touched[side])) for side in (False, True))
    used = {one for side in (reads, writes) for some in side.values() for one in some}
    sizes = {one.name: one.end - one.begin for some in pieces.values() for one in some if one.name in used}
    kinds = {
        names[at]: region.nodes[0].operator if region.nodes else "copy" for at, region in enumerate(lowered.regions)
    }
    return Tasks(graph, sizes, reads, writes, frozenset(), True, kinds)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a buffer that the same regions touch: parts of a concatenation have lifetimes of their own."""

    name: str
    begin: int
    end: int


def _pieces(lowered: Lowered, kernels: Sequence[Kernel]) -> dict[Buffer, list[Piece]]:
    """The buffers of the arena, each cut wherever an operand begins or ends."""
    names = distinct_names(lowered.temporaries)
    cuts: dict[Buffer, set[int]] = {one: {0, one.size} for one in names}
    for region, kernel in zip(lowered.regions, kernels, strict=True):
        for operand, place in zip(kernel.operands, region.places, strict=True):
            if place.buffer in cuts:
                cuts[place.buffer] |= {place.offset, place.offset + operand.bytes}
    found = {}
    for one, name in names.items():
        edges = sorted(cuts[one])
        whole = len(edges) == 2
        found[one] = [Piece(name if whole else f"{name}[{begin}:{end}]", begin, end) for begin, end in pairwise(edges)]
    return found


def scheduled(base: Tasks, steps: Steps, policy: str, device: Device) -> Scheduled:
    """The steps as tickets, proved by the scheduler's verifier and simulated on as many workers as the device has."""
    names = [region.name for region in base.graph.regions]
    blocks = [region.kernels[0].blocks for region in base.graph.regions]
    known = {(need.source, need.target) for need in base.graph.needs}
    pairs = [(names[one], names[run]) for run, before in steps.waits for one in before]
    reuse = tuple(Need(*pair, reuse=True) for pair in dict.fromkeys(pairs) if pair not in known)
    graph = msgspec.structs.replace(base.graph, needs=(*base.graph.needs, *reuse))
    counter: dict[int, int] = {}
    items: list[Item] = []
    whole, following = steps.whole, steps.following
    last: tuple[int, ...] = ()
    for run, before in steps.waits:
        if run in following:  # the order of its worker is a wait like any other to whoever proves it
            before = (*before, *last)
        waits = tuple(Until(counter.setdefault(one, len(counter)), blocks[one]) for one in before)
        items += [
            Item(Block(names[run], block), waits, run in following or (run in whole and block > 0))
            for block in range(blocks[run])
        ]
        last = (run,)
    counters = tuple(Counter(names[run], 0, blocks[run]) for run in counter)
    workers = 1 if policy == ALONE else device.multiprocessors
    program = Program(
        graph.name, device.name, dict.fromkeys(names, 0), (Ticketed(tuple(items), workers, counters),), policy
    )
    verify(graph, program, device)
    simulation = simulate(graph, program, device)
    bounds = bounds_of(problem_of(graph, device), graph, program, simulation)
    return Scheduled(
        graph, {name: name for name in names}, program, simulation.makespan, policy, {policy: simulation.makespan},
        bounds, sum(map(count_waits, program.launches)), simulation,
    )  # fmt: skip


def packing_of(lowered: Lowered, kernels: Sequence[Kernel], base: Tasks, steps: Steps, graph: TaskGraph) -> Packing:
    """Where the steps have the buffers of the arena; checked by memplan's verifier for what happens side by side."""
    names = [region.name for region in base.graph.regions]
    offsets = {}
    pieces = _pieces(lowered, kernels)
    for region, run in zip(lowered.regions, steps.runs, strict=True):
        for given, place in zip(region.places, run.operands, strict=True):
            for one in pieces.get(given.buffer, ()):
                if one.name in base.sizes:
                    offsets[one.name] = place.offset - given.offset + one.begin
    order = tuple(names[run] for run, _ in steps.waits)
    accesses = Accesses(order, tuple((need.source, need.target) for need in graph.needs), base.reads, base.writes)
    least = live_peak(concurrent_problem(base.sizes, accesses, kept=base.kept, alignment=ALIGNMENT))
    packing = Packing(offsets, steps.arena_bytes, least, TAKEN)
    verify_concurrent(base.sizes, packing, accesses)
    return packing
