"""Regions in the order that needs least memory, or with some of them run again so that a budget is kept.

A temporary that several regions write piece by piece (a concatenation) is one value for each writer, the later ones in
place of the earlier. Such regions are never run again, nor are those that read it in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from graphopt.errors import BudgetNotKept
from graphopt.program.clock import Clock
from graphopt.program.costs import ESTIMATED
from graphopt.program.regions.buffer import Buffer, distinct_names
from graphopt.program.regions.region import Lowered
from kernels.listing import ALIGNMENT
from memplan.bounds import live_peak
from memplan.graph import Graph, Operator, Share, Value
from memplan.lifetimes import free_name, memory_problem
from memplan.ordering.solve import order as least_order
from memplan.remat.errors import BudgetTooSmall
from memplan.remat.recompute import recompute
from memplan.verify.sequence import verify_sequence

ORDER_WORK, RECOMPUTE_WORK = 2_000_000_000, 20_000_000_000  # steps of searching, about as many nanoseconds


def in_best_order(lowered: Lowered) -> Lowered:
    """The regions in the order of the least live peak that is found quickly; as they are where none is better."""
    graph = region_graph(lowered)
    order = _best(graph)
    return lowered if order is None else run_in_order(lowered, order)


def within_budget(lowered: Lowered, budget: int, clock: Clock | None = None) -> Lowered:
    """Regions whose temporaries fit `budget` bytes, by times of `clock`; raises BudgetNotKept naming the least."""
    graph = region_graph(lowered, clock)
    better = _best(graph)
    graph = graph if better is None else graph.in_order(better)
    order = tuple(operator.name for operator in graph.operators)
    if _peak(graph, order) > budget:
        try:
            order = recompute(graph, budget, work=RECOMPUTE_WORK).order
        except BudgetTooSmall as error:
            raise BudgetNotKept(budget, min(error.least, _peak(graph, order))) from error
        verify_sequence(graph, order, budget)
    return run_in_order(lowered, order)


def region_graph(lowered: Lowered, clock: Clock | None = None) -> Graph:
    """The regions as memplan's operators, named by their position; temporaries as values, one for each write.

    The first write of a buffer has its name, and each later one shares the bytes of the one before. What the caller's
    buffers hold takes no memory of the arena; who reads them comes after those that wrote them before, who writes them
    after those that read them.
    """
    values: list[Value] = []
    operators: list[Operator] = []
    shares: list[Share] = []
    names = distinct_names(lowered.temporaries)
    taken = set(names.values())
    latest: dict[Buffer, str] = {}  # the value that a buffer holds now
    version: Counter[Buffer] = Counter()
    left = Counter(buffer for region in lowered.regions for buffer in _temporary(region.writes))
    several = {buffer for buffer, writers in left.items() if writers > 1}
    readers: dict[Buffer, list[str]] = {}  # of what a buffer holds now
    writers_of: dict[Buffer, list[str]] = {}  # of the caller's buffers
    readers_of: dict[Buffer, list[str]] = {}
    for position, region in enumerate(lowered.regions):
        read, written = _temporary(region.reads), _temporary(region.writes)
        reads = [latest[buffer] for buffer in read]
        makes: list[str] = []
        after: list[str] = []
        for touched, before_it, own in (
            (region.reads, writers_of, readers_of),
            (region.writes, readers_of, writers_of),
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
        for buffer in read:
            readers.setdefault(buffer, []).append(str(position))
        passing = any(left[buffer] for buffer in read)
        once = passing or not several.isdisjoint(written) or not makes
        operators.append(
            Operator(
                str(position),
                tuple(dict.fromkeys(reads)),
                tuple(makes),
                ESTIMATED.time(region.kernel) if clock is None else clock.time(lowered, region.kernel),
                recomputable=not once,
                after=tuple(one for one in dict.fromkeys(after) if one != str(position)),
            )
        )
    return Graph(tuple(values), tuple(operators), tuple(shares))


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
    given = tuple(operator.name for operator in graph.operators)
    found = least_order(graph, work=ORDER_WORK)
    return found.order if _peak(graph, found.order) < _peak(graph, given) else None


def _peak(graph: Graph, order: Sequence[str]) -> int:
    return live_peak(memory_problem(graph, order, alignment=ALIGNMENT))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _temporary(buffers: Iterable[Buffer]) -> list[Buffer]:
    return [buffer for buffer in buffers if buffer.role == "temporary"]
