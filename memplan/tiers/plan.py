"""Plans of tiers: placement by one of several methods, then offsets in each tier, and repair where they do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from memplan.graph import Graph
from memplan.lifetimes import instance
from memplan.packing.greedy import pack
from memplan.packing.reduced import CannotFit
from memplan.packing.solve import solve
from memplan.plan import MemoryPlan, Move, Packing, Stay
from memplan.problem import Alias, Buffer, MemoryProblem
from memplan.tiers import fixed, heuristic, moving, online
from memplan.tiers.course import Course, periods, ranges, stays_in
from memplan.tiers.machine import Machine
from memplan.tiers.placement import Placement, TiersTooSmall, placement
from memplan.tiers.program import NoPlan, Solved
from memplan.tiers.simulate import Simulation, simulate
from memplan.work import Limit, Work, allowed

Mode = Literal["static", "sync", "async"]
Method = Literal["ilp", "heuristic", "first-touch", "all-slow"]

REPAIRS = 8  # times that placement is repaired for offsets
GENTLE_REPAIRS = 5  # of these, how many take away only about as much room as was missing
SHRINK = 0.95  # of a tier's capacity in each later repair
# Greedy packing misses by less than a thousandth where there are many values; a search pays where there are few, or
# where much is missing.
FEW_BUFFERS, MUCH_MISSING, PACKING_WORK = 300, 0.01, 3_000_000_000  # steps

CHUNKS_AGAIN = 5
GAP, GAP_OF_MANY = 0.002, 0.0075  # at which the program ends; the last percents of many units take minutes
USUAL_WORK = 60_000_000_000  # steps, of the integer program
PROGRAM_SHARE = 0.7  # of a time limit: the heuristic before it counts, exchanges and offsets take the rest


@dataclass(frozen=True, slots=True)
class TierPlan:
    """Where every value lies when, and what the machine's numbers say about it (simulated, not measured)."""

    memory: MemoryPlan
    machine: Machine
    mode: Mode
    method: Method
    time: float  # nanoseconds
    bound: float  # nanoseconds: no plan of this mode is faster
    solver: str
    simulation: Simulation  # by step
    aliases: Mapping[str, Alias]  # values that lie in others: stays and moves name what they lie in
    alignment: int  # bytes
    limited: Limit | None = None  # what ended the integer program before it was within its gap

    @property
    def gap(self) -> float:
        """How far the time may be above the least, as a fraction of the time."""
        return max(0.0, 1.0 - self.bound / self.time) if self.time else 0.0

    @property
    def capacities(self) -> dict[str, int]:
        """Bytes by tier, fastest first."""
        return {tier.name: tier.capacity for tier in self.machine.tiers}


def plan_tiers(
    graph: Graph,
    machine: Machine,
    *,
    mode: Mode = "static",
    method: Method = "ilp",
    work: int | None = None,
    time_limit: float | None = None,
    gap: float | None = None,
    alignment: int = 64,
) -> TierPlan:
    """Place all values of `graph`, constants and workspaces included, in the tiers of `machine`.

    `mode`: every value in one tier for its whole life, or copied between tiers while operators wait, or beside them.
    `method`: an integer program and the heuristic, the faster of both; the heuristic alone; first touch; all in the
    slowest tier (the last two never move anything, whatever the mode). `work` (steps), the relative `gap` and, if the
    user wants one, `time_limit` (seconds) end the integer program; a part of the time is kept for what follows it. The
    bound is the program's (of plans in its form: copies next to uses, overlapped within 15 operators), and elsewhere
    the time with everything in the fastest tier.

    Raises TiersTooSmall where the tiers cannot hold the model.
    """
    seconds = None if time_limit is None else PROGRAM_SHARE * time_limit
    with allowed(work, seconds, USUAL_WORK) as steps:
        return _planned(graph, machine, mode, method, steps, gap, alignment)


def _planned(
    graph: Graph, machine: Machine, mode: Mode, method: Method, work: Work, gap: float | None, alignment: int
) -> TierPlan:
    problem = placement(graph, machine, alignment)
    problem.check_room()
    capacity = [[tier.capacity] * len(problem.compute) for tier in machine.tiers]
    if gap is None:
        gap = GAP if len(problem.units) <= heuristic.MANY_UNITS else GAP_OF_MANY
    candidates, bound = _placed(problem, capacity, mode, method, work, gap)
    laid: list[_Laid] = []
    refusals: list[TiersTooSmall] = []
    for courses, solver in candidates:
        try:
            laid.append(_laid(problem, capacity, mode, method, courses, solver))
        except TiersTooSmall as error:
            refusals.append(error)
    if not laid:
        raise refusals[0]
    best = min(laid, key=lambda one: one.simulation.time)
    order = tuple(operator.name for operator in graph.operators)
    time = best.simulation.time
    memory = MemoryPlan(order, best.arenas, time, tuple(best.stays), tuple(best.moves))
    return TierPlan(
        memory, machine, mode, method, time, min(bound, time), best.solver, best.simulation, problem.aliases, alignment,
        work.limited if method == "ilp" else None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Laid:
    """Courses with offsets in every tier, and what executing them shows."""

    stays: Sequence[Stay]
    moves: Sequence[Move]
    arenas: Mapping[str, Packing]
    simulation: Simulation
    solver: str


def _laid(
    problem: Placement, capacity: Sequence[Sequence[int]], mode: Mode, method: Method, courses: Sequence[Course],
    solver: str,
) -> _Laid:  # fmt: skip
    """Offsets for courses, which are repaired where there are none. Raises TiersTooSmall."""
    left = [list(most) for most in capacity]
    for number in range(REPAIRS + 1):
        stays, moves = written(problem, courses)
        arenas = _arenas(problem, stays)
        if all(arenas[tier.name].arena_size <= tier.capacity for tier in problem.machine.tiers):
            break
        if number == REPAIRS:
            raise TiersTooSmall(_fragmented(problem, arenas))
        _shrink(problem, left, arenas, gently=number < GENTLE_REPAIRS)
        courses = _again(problem, left, mode, method, courses)
    return _Laid(stays, moves, arenas, simulate(problem, stays, moves), solver)


def all_fast_time(graph: Graph, machine: Machine, *, alignment: int = 64) -> float:
    """Nanoseconds if the fastest tier held everything: what a slowdown is counted from, and a bound of any plan."""
    return _all_fast(placement(graph, machine, alignment))


def _all_fast(problem: Placement) -> float:
    memory = [0.0] * len(problem.compute)
    for unit in problem.units:
        for use in unit.uses:
            memory[use.step] += problem.access(use)[0]
    return sum(max(pair) for pair in zip(memory, problem.compute, strict=True))


def _placed(
    problem: Placement, capacity: Sequence[Sequence[int]], mode: Mode, method: Method, work: Work, gap: float
) -> tuple[list[tuple[list[Course], str]], float]:
    """Courses with who found them, of which the faster is taken, and the bound of their time."""
    floor = _all_fast(problem)
    if method in ("first-touch", "all-slow"):
        return [(_online(problem, capacity, method), method.replace("-", " "))], floor
    start = heuristic.plan(problem, capacity, mode, _somewhere(problem, capacity))
    if method == "heuristic":
        return [(start, "heuristic")], floor
    try:
        found, solved = _program(problem, capacity, mode, work, gap, start)
    except NoPlan:
        return [(start, "heuristic; the solver did not finish")], floor
    # The solver keeps capacities up to a tolerance, and stops at its gap: what is left is a matter of small exchanges.
    whole = heuristic.repaired(problem, capacity, mode, found, chunks=heuristic.chunks_beside(problem))
    bound = max(solved.bound, floor)
    heuristics = (start, f"heuristic, bound by {solved.solver}")
    return [heuristics] if whole is None else [(whole, solved.solver), heuristics], bound


def _program(
    problem: Placement, capacity: Sequence[Sequence[int]], mode: Mode, work: Work, gap: float,
    start: Sequence[Course],
) -> tuple[list[Course], Solved]:  # fmt: skip
    if mode == "static":
        return fixed.place(problem, capacity, work, gap, start)
    return moving.place(problem, capacity, mode == "async", work, gap, start)


def _online(problem: Placement, capacity: Sequence[Sequence[int]], method: Method) -> list[Course]:
    choose = online.first_touch if method == "first-touch" else online.all_slow
    chosen = choose(problem, capacity)
    return [stays_in(unit, tier) for unit, tier in zip(problem.units, chosen, strict=True)]


def _somewhere(problem: Placement, capacity: Sequence[Sequence[int]]) -> list[int]:
    """Any static placement that fits."""
    try:
        return online.all_slow(problem, capacity)
    except TiersTooSmall:
        return online.first_touch(problem, capacity)


def written(problem: Placement, courses: Sequence[Course]) -> tuple[list[Stay], list[Move]]:
    """Courses as stays and moves, by step."""
    names = [tier.name for tier in problem.machine.tiers]
    stays, moves = [], []
    for unit, course in zip(problem.units, courses, strict=True):
        for tier, begin, end in ranges(course, periods(unit), len(names)):
            stays.append(Stay(unit.name, names[tier], begin, end))
        for copies in course.copies.values():
            for copy in copies:
                moves.append(Move(unit.name, names[copy.source], names[copy.target], copy.step, copy.overlapped))
    stays.sort(key=lambda stay: (stay.begin, stay.value, stay.tier))
    moves.sort(key=lambda move: (move.step, move.overlapped, move.value, move.target))
    return stays, moves


def _arenas(problem: Placement, stays: Sequence[Stay]) -> dict[str, Packing]:
    """Offsets by tier; an arena may be larger than its tier."""
    sizes = {unit.name: unit.size for unit in problem.units}
    arenas = {}
    for tier in problem.machine.tiers:
        counts: dict[str, int] = {}
        buffers = []
        for stay in stays:
            if stay.tier == tier.name:
                number = counts.get(stay.value, 0)
                counts[stay.value] = number + 1
                buffers.append(Buffer(instance(stay.value, number, sizes), sizes[stay.value], stay.begin, stay.end))
        task = MemoryProblem(tuple(buffers), problem.alignment)
        packing = pack(task)
        over = packing.arena_size - tier.capacity
        if over > 0 and (len(buffers) <= FEW_BUFFERS or over > MUCH_MISSING * tier.capacity):
            with suppress(CannotFit):  # then the greedy packing says by how much
                packing = solve(task.with_capacity(tier.capacity), work=PACKING_WORK, start=packing)
        arenas[tier.name] = packing
    return arenas


def _shrink(problem: Placement, capacity: list[list[int]], arenas: Mapping[str, Packing], *, gently: bool) -> None:
    """Leave room for holes in the tiers whose arenas were too large."""
    for number, tier in enumerate(problem.machine.tiers):
        over = arenas[tier.name].arena_size - tier.capacity
        if over > 0:
            less = 2 * over if gently else 0
            capacity[number] = [int((most - less) * (1.0 if gently else SHRINK)) for most in capacity[number]]


def _again(
    problem: Placement, capacity: Sequence[Sequence[int]], mode: Mode, method: Method, courses: Sequence[Course]
) -> list[Course]:
    if method in ("first-touch", "all-slow"):
        return _online(problem, capacity, method)
    # Little has changed: a few exchanges fill the room that is left.
    found = heuristic.repaired(problem, capacity, mode, courses, chunks=CHUNKS_AGAIN)
    return found if found is not None else heuristic.plan(problem, capacity, mode, _somewhere(problem, capacity))


def _fragmented(problem: Placement, arenas: Mapping[str, Packing]) -> str:
    for tier in problem.machine.tiers:
        over = arenas[tier.name].arena_size - tier.capacity
        if over > 0:
            needed = arenas[tier.name].lower_bound
            return (
                f"tier '{tier.name}' is too small by {over} bytes for the offsets that were found: {needed} bytes at "
                f"once are within its {tier.capacity}, but there are holes between them."
            )
    raise AssertionError("some tier overhangs")
