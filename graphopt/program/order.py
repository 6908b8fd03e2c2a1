"""Regions in the order that needs least memory, or with some of them run again so that a budget is kept.

A temporary that several regions write piece by piece (a concatenation) is one value for each writer, the later ones in
place of the earlier. Such regions are never run again, nor are those that read it in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphopt.errors import BudgetNotKept
from graphopt.program.regions.region import Lowered, Region
from kernels.listing import ALIGNMENT
from memplan.bounds import live_peak
from memplan.graph import Graph, Operator, Share, Value
from memplan.lifetimes import free_name, memory_problem
from memplan.ordering.solve import order as least_order
from memplan.remat.errors import BudgetTooSmall
from memplan.remat.recompute import recompute
from memplan.verify.sequence import verify_sequence

PEAK_FLOPS = 1.0e11  # per second; only the ratio to the bandwidth matters
BANDWIDTH = 2.0e10  # bytes per second
ORDER_WORK, RECOMPUTE_WORK = 2_000_000_000, 20_000_000_000  # steps of searching, about as many nanoseconds


def in_best_order(lowered: Lowered) -> Lowered:
    """The regions in the order of the least live peak that is found quickly; as they are where none is better."""
    graph = region_graph(lowered)
    order = _best(graph)
    return lowered if order is None else run_in_order(lowered, order)


def within_budget(lowered: Lowered, budget: int) -> Lowered:
    """Regions whose temporaries fit `budget` bytes; raises BudgetNotKept naming the least found."""
    graph = region_graph(lowered)
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


def region_graph(lowered: Lowered) -> Graph:
    """The regions as memplan's operators, named by their position; temporaries as values, one for each write.

    The first write of a buffer has its name, and each later one shares the bytes of the one before.
    """
    values: list[Value] = []
    operators: list[Operator] = []
    shares: list[Share] = []
    turn: dict[str, int] = {}
    writers: dict[str, int] = {}
    readers: dict[str, list[str]] = {}  # of a buffer's present turn
    for region in lowered.regions:
        for buffer in _written(region, lowered):
            writers[buffer] = writers.get(buffer, 0) + 1
    for position, region in enumerate(lowered.regions):
        reads = [_version(buffer, turn[buffer], lowered) for buffer in _read(region, lowered)]
        makes, after = [], []
        for buffer in _written(region, lowered):
            before = turn.get(buffer)
            turn[buffer] = 0 if before is None else before + 1
            made = _version(buffer, turn[buffer], lowered)
            values.append(Value(made, _aligned(lowered.temporaries[buffer])))
            makes.append(made)
            if before is not None:
                reads.append(_version(buffer, before, lowered))
                after += readers.pop(buffer, [])  # they want what stands there now
                shares.append(Share(made, _version(buffer, before, lowered), overwrites=True))
        for buffer in _read(region, lowered):
            readers.setdefault(buffer, []).append(str(position))
        kernel = region.kernel
        time = 1e9 * max(kernel.flops / PEAK_FLOPS, kernel.traffic / BANDWIDTH)
        passing = any(turn[buffer] < writers[buffer] - 1 for buffer in _read(region, lowered))
        once = passing or any(writers[buffer] > 1 for buffer in _written(region, lowered)) or not makes
        operators.append(
            Operator(
                str(position),
                tuple(dict.fromkeys(reads)),
                tuple(makes),
                time,
                recomputable=not once,
                after=tuple(dict.fromkeys(after)),
            )
        )
    return Graph(tuple(values), tuple(operators), tuple(shares))


def run_in_order(lowered: Lowered, order: Sequence[str]) -> Lowered:
    """The regions as `order` names them; one that is there again writes temporaries of its own."""
    temporaries: dict[str, int] = dict(lowered.temporaries)
    latest: dict[str, str] = {}
    runs: dict[str, int] = {}
    regions = []
    for name in order:
        region = lowered.regions[int(name)]
        runs[name] = runs.get(name, 0) + 1
        if runs[name] > 1:
            for buffer in _written(region, lowered):
                latest[buffer] = free_name(f"{buffer}#{runs[name]}", lowered.temporaries)
                temporaries[latest[buffer]] = lowered.temporaries[buffer]
        regions.append(replace(region, buffers=tuple(latest.get(buffer, buffer) for buffer in region.buffers)))
    return replace(lowered, regions=tuple(regions), temporaries=temporaries)


def _best(graph: Graph) -> tuple[str, ...] | None:
    given = tuple(operator.name for operator in graph.operators)
    found = least_order(graph, work=ORDER_WORK)
    return found.order if _peak(graph, found.order) < _peak(graph, given) else None


def _peak(graph: Graph, order: Sequence[str]) -> int:
    return live_peak(memory_problem(graph, order, alignment=ALIGNMENT))


def _version(buffer: str, turn: int, lowered: Lowered) -> str:
    return buffer if turn == 0 else free_name(f"{buffer}@{turn}", lowered.temporaries)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _read(region: Region, lowered: Lowered) -> list[str]:
    return _of_role(region, lowered.temporaries, ("input",))


def _written(region: Region, lowered: Lowered) -> list[str]:
    return _of_role(region, lowered.temporaries, ("output",))


def _of_role(region: Region, temporaries: Mapping[str, int], roles: tuple[str, ...]) -> list[str]:
    pairs = zip(region.kernel.operands, region.buffers, strict=True)
    return list(dict.fromkeys(buffer for operand, buffer in pairs if operand.role in roles and buffer in temporaries))
