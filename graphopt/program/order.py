"""Regions in the order that needs least memory, or with some of them run again so that a budget is kept.

A temporary that several regions write piece by piece (a concatenation) is one value for each writer, the later ones in
place of the earlier. Such regions are never run again, nor are those that read it in between; unless they stand side by
side and are taken as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from graphopt.errors import BudgetNotKept
from graphopt.model.collection import paused_collection
from graphopt.program.clock import Clock
from graphopt.program.costs import ESTIMATED
from graphopt.program.in_place import in_place, overwritable
from graphopt.program.lifetimes import memory_problem as problem_of
from graphopt.program.regions.buffer import Buffer, distinct_names
from graphopt.program.regions.region import Lowered
from kernels.kernel import Kernel
from kernels.listing import ALIGNMENT
from memplan.bounds import live_peak
from memplan.graph import Graph, Operator, Share, Value
from memplan.lifetimes import free_name, memory_problem
from memplan.ordering.solve import order as least_order
from memplan.remat.errors import BudgetTooSmall
from memplan.remat.recompute import recompute
from memplan.verify.sequence import verify_sequence

NO_GROUPS: Mapping[int, tuple[int, ...]] = {}
ORDER_WORK, RECOMPUTE_WORK = 2_000_000_000, 20_000_000_000  # steps of searching, about as many nanoseconds
FEW_STEPS, STEPS_PER_BYTE = 100_000_000, 200  # of an order's search where little memory is at stake


@paused_collection()
def in_best_order(lowered: Lowered, *, places: bool = False) -> Lowered:
    """The regions in the order of the least live peak that is found quickly; as they are where none is better.

    With `places` results are counted in the places of operands that `in_place` may give them.
    """
    order = best_order(lowered, places=places)
    return lowered if order is None else run_in_order(lowered, order)


def best_order(lowered: Lowered, *, places: bool = False) -> tuple[str, ...] | None:
    """That order, by the positions of the regions; None: as they are."""
    return _best(region_graph(lowered, places=places))


@paused_collection()
def within_budget(lowered: Lowered, budget: int, clock: Clock | None = None, work: int = RECOMPUTE_WORK) -> Lowered:
    """Regions whose temporaries fit `budget` bytes, by times of `clock`; raises BudgetNotKept naming the least.

    `work` are steps in which regions that run again are looked for.

    Results take the place of operands once it is known what runs when: a value that is made again has a place anew.
    """
    if live_peak(problem_of(lowered)) <= budget:
        return lowered
    placed = in_place(lowered)
    if live_peak(problem_of(placed)) <= budget:
        return placed
    graph = region_graph(lowered, clock, places=True)
    better = _best(graph)
    graph = graph if better is None else graph.in_order(better)
    order = tuple(operator.name for operator in graph.operators)
    if (least := _peak(graph, order)) <= budget:
        return in_place(run_in_order(lowered, order))
    groups = side_by_side(lowered)
    # The given order has layers one after the other, forward and back; the best one may have them mixed.
    together = region_graph(lowered, clock, groups, places=True)
    for tried, members in [(together, groups), *([(graph, {})] if groups else [])]:
        try:
            order = recompute(tried, budget, work=work).order
        except BudgetTooSmall as error:
            least = min(least, error.least)
            continue
        verify_sequence(tried, order, budget)
        runs = [str(one) for name in order for one in members.get(int(name), (int(name),))]
        return in_place(run_in_order(lowered, runs))
    raise BudgetNotKept(budget, least)


def side_by_side(lowered: Lowered) -> dict[int, tuple[int, ...]]:
    """By the position of the first, regions one after the other that write one temporary piece by piece.

    In front of a piece may stand a region whose results that piece alone reads: memory to work in. Without such ones,
    those are left out whose temporary is read once: it is not worth keeping, and its pieces can be made one by one.
    """
    writers: dict[Buffer, list[int]] = {}
    readers: dict[Buffer, list[int]] = {}
    for position, region in enumerate(lowered.regions):
        for buffer in dict.fromkeys(region.writes):
            writers.setdefault(buffer, []).append(position)
        for buffer in set(region.reads) - set(region.writes):
            readers.setdefault(buffer, []).append(position)

    def is_before(position: int) -> bool:
        writes = lowered.regions[position].writes
        return all(
            one.role == "temporary" and writers[one] == [position] and readers.get(one) == [position + 1]
            for one in writes
        )

    found: dict[int, tuple[int, ...]] = {}
    for buffer, those in writers.items():
        if buffer.role != "temporary" or len(those) < 2:
            continue
        begin = those[0] - 1 if those[0] and is_before(those[0] - 1) else those[0]
        members = range(begin, those[-1] + 1)
        if len(members) == len(those) and len(readers.get(buffer, ())) < 2:
            continue
        pieces = [lowered.regions[one] for one in those]
        only = all(set(one.writes) == {buffer} for one in pieces)
        only = only and not any(buffer in lowered.regions[one].reads for one in members)
        if only and all(one in those or is_before(one) for one in members):
            found[begin] = tuple(members)
    return found


def region_graph(
    lowered: Lowered, clock: Clock | None = None, groups: Mapping[int, tuple[int, ...]] = NO_GROUPS,
    *, places: bool = False,
) -> Graph:  # fmt: skip
    """The regions as memplan's operators, named by their position; temporaries as values, one for each write.

    The first write of a buffer has its name, and each later one shares the bytes of the one before. What the caller's
    buffers hold takes no memory of the arena; who reads them comes after those that wrote them before, who writes them
    after those that read them, which do not run again behind it. Each of `groups`, as `side_by_side` gives them, is one
    operator. With `places` a result is offered those of operands that `in_place` would give it; its region may run
    again all the same.
    """
    values: list[Value] = []
    operators: list[Operator] = []
    shares: list[Share] = []
    names = distinct_names(lowered.temporaries)
    taken = set(names.values())
    latest: dict[Buffer, str] = {}  # the value that a buffer holds now
    version: Counter[Buffer] = Counter()
    steps = list(_steps(lowered, groups))
    left = Counter(buffer for _, _, _, writes, _ in steps for buffer in _temporary(writes))
    several = {buffer for buffer, writers in left.items() if writers > 1}
    readers: dict[Buffer, list[str]] = {}  # of what a buffer holds now
    writers_of: dict[Buffer, list[str]] = {}  # of the caller's buffers
    readers_of: dict[Buffer, list[str]] = {}
    for position, members, reading, writing, workspace in steps:
        read, written = _temporary(reading), _temporary(writing)
        reads = [latest[buffer] for buffer in read]
        makes: list[str] = []
        after: list[str] = []
        reused = 0
        changes = any(readers_of.get(one) for one in writing if one.role == "output")
        for touched, before_it, own in (
            (reading, writers_of, readers_of),
            (writing, readers_of, writers_of),
        ):
            for buffer in (one for one in touched if one.role == "output"):
                after += before_it.get(buffer, ())
                after += own.get(buffer, ()) if own is writers_of else ()  # one may fill what the next writes in part
                own.setdefault(buffer, []).append(str(position))
        for buffer in written:
            before = latest.get(buffer)
            version[buffer] += 1
            value = names[buffer] if before is None else free_name(f"{names[buffer]}@{version[buffer] - 1}", taken)
            taken.add(value)
            values.append(Value(value, _aligned(buffer.size)))
            makes.append(value)
            left[buffer] -= 1
            latest[buffer] = value
            if before is not None:
                reads.append(before)
                after += readers.pop(buffer, [])  # they want what stands there now
                shares.append(Share(value, before, overwrites=True))
                reused += _aligned(buffer.size) if places else 0
            elif places and buffer not in several and position not in groups:
                operands = overwritable(lowered, lowered.regions[position], buffer)
                offered = [one for one in operands if one in latest and one.size == buffer.size]
                shares += [Share(value, latest[one], overwrites=True) for one in offered]
                reused += _aligned(buffer.size) if offered else 0
        for buffer in read:
            readers.setdefault(buffer, []).append(str(position))
        passing = any(left[buffer] for buffer in read)
        once = passing or not several.isdisjoint(written) or not makes
        operators.append(
            Operator(
                str(position),
                tuple(dict.fromkeys(reads)),
                tuple(makes),
                sum(ESTIMATED.time(one) if clock is None else clock.time(lowered, one) for one in members),
                workspace,
                recomputable=not once,
                after=tuple(one for one in dict.fromkeys(after) if one != str(position)),
                reused=reused,
                changes=changes,
            )
        )
    return Graph(tuple(values), tuple(operators), tuple(shares))


def _steps(
    lowered: Lowered, groups: Mapping[int, tuple[int, ...]]
) -> Iterator[tuple[int, list[Kernel], Sequence[Buffer], Sequence[Buffer], int]]:
    """Position, kernels, what is read and what is written, and bytes to work in, of each region or group."""
    later = {one for those in groups.values() for one in those[1:]}
    for position, region in enumerate(lowered.regions):
        if position in groups:
            members = [lowered.regions[one] for one in groups[position]]
            writes = members[-1].writes
            inner = {buffer for one in members for buffer in one.writes}.difference(writes)
            reads = tuple(dict.fromkeys(buffer for one in members for buffer in one.reads if buffer not in inner))
            workspace = max(sum(_aligned(buffer.size) for buffer in inner.intersection(one.writes)) for one in members)
            yield position, [one.kernel for one in members], reads, writes, workspace
        elif position not in later:
            yield position, [region.kernel], region.reads, region.writes, 0


def run_in_order(lowered: Lowered, order: Sequence[str]) -> Lowered:
    """The regions as `order` names them; one that is there again writes temporaries of its own."""
    latest: dict[Buffer, Buffer] = {}
    runs: Counter[str] = Counter()
    regions = []
    for name in order:
        region = lowered.regions[int(name)]
        runs[name] += 1
        if runs[name] > 1:
            latest |= {buffer: replace(buffer, run=runs[name]) for buffer in _temporary(region.writes)}
        places = tuple(replace(place, buffer=latest.get(place.buffer, place.buffer)) for place in region.places)
        regions.append(replace(region, places=places))
    return replace(lowered, regions=tuple(regions))


def _best(graph: Graph) -> tuple[str, ...] | None:
    given = _peak(graph, tuple(operator.name for operator in graph.operators))
    found = least_order(graph, work=min(ORDER_WORK, FEW_STEPS + STEPS_PER_BYTE * given))
    return found.order if _peak(graph, found.order) < given else None


def _peak(graph: Graph, order: Sequence[str]) -> int:
    return live_peak(memory_problem(graph, order, alignment=ALIGNMENT))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _temporary(buffers: Iterable[Buffer]) -> list[Buffer]:
    return [buffer for buffer in buffers if buffer.role == "temporary"]
