"""Whether the verifiers catch what is broken: plans are made, verified, broken in one place each, and verified again.

What a change breaks is decided apart from the verifiers: packings on a grid of steps by bytes, orders by running them
on sets. A change that breaks nothing is not counted. Plans of tiers lose one move each; a move is there because its
value is read where it leads, so each loss breaks something.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.bar import Bar, Sheet
from bench.memory.layered import layered_graph
from bench.peers import OURS
from bench.script import main
from memplan.graph import Graph, Operator
from memplan.ordering.solve import order as order_for_least_peak
from memplan.packing.greedy import pack
from memplan.plan import Packing
from memplan.problem import Buffer, MemoryProblem
from memplan.remat.recompute import recompute
from memplan.tiers.machine import Link, Machine, Tier
from memplan.tiers.plan import plan_tiers
from memplan.verify.packing import WrongPlan, verify
from memplan.verify.sequence import verify_sequence
from memplan.verify.tiers import verify_tiers
from models.training import resnet

ISSUE = 6
PACKINGS, ORDERS = 400, 5
QUICK_PACKINGS, QUICK_ORDERS = 60, 3
CHANGES = 25  # of each plan


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Broken plans and how many were caught."""
    draw = random.Random(6)
    rows = [
        _packings(draw, QUICK_PACKINGS if quick else PACKINGS),
        *_orders(draw, QUICK_ORDERS if quick else ORDERS),
        _moves(QUICK_ORDERS if quick else ORDERS),
    ]
    sheet.table("broken plans", ("change", "tried", "broke something", "caught", "right plans refused"), rows)
    broken, caught, refused = sum(row[2] for row in rows), sum(row[3] for row in rows), sum(row[4] for row in rows)
    figure = f"{caught:,} of {broken:,} caught, {refused} right ones refused"
    return [Bar(ISSUE, 6, "memory: broken plans", "100 %", figure, caught == broken and refused == 0)]


Row = tuple[str, int, int, int, int]


def _packings(draw: random.Random, count: int) -> Row:
    tried = broken = caught = refused = 0
    for _ in range(count):
        buffers = []
        for number in range(draw.randint(2, 12)):
            begin = draw.randrange(10)
            buffers.append(Buffer(f"b{number}", draw.randint(1, 20), begin, begin + draw.randint(1, 6)))
        problem = MemoryProblem(tuple(buffers), alignment=1)
        good = pack(problem)
        refused += _says_no(problem, good)
        for _ in range(CHANGES):
            name = draw.choice(buffers).name
            moved = good.offsets[name] + draw.choice((-1, 1)) * draw.randint(1, 8)
            wrong = replace(good, offsets={**good.offsets, name: moved}, arena_size=good.arena_size + 8)
            tried += 1
            if moved < 0 or _overlaps(problem, wrong):
                broken += 1
                caught += _says_no(problem, wrong)
            else:
                refused += _says_no(problem, wrong)
    return "shifted offset", tried, broken, caught, refused


def _overlaps(problem: MemoryProblem, packing: Packing) -> bool:
    grid = np.zeros((max(b.end for b in problem.buffers), packing.arena_size + 32), np.int64)
    for buffer in problem.buffers:
        offset = packing.offsets[buffer.name]
        grid[buffer.begin : buffer.end, offset : offset + buffer.size] += 1
    return bool((grid > 1).any())


def _says_no(problem: MemoryProblem, packing: Packing) -> bool:
    try:
        verify(problem, packing)
    except WrongPlan:
        return True
    return False


def _orders(draw: random.Random, count: int) -> list[Row]:
    swaps, drops = [0, 0, 0, 0], [0, 0, 0, 0]
    for seed in range(count):
        graph = resnet([1 + seed] * 4, 1, 32).training()
        budget = int(0.7 * order_for_least_peak(graph, work=1_000_000_000).peak)
        order = list(recompute(graph, budget, work=3_000_000_000).order)
        swaps[3] += _refuses(graph, order, budget)
        for _ in range(CHANGES):
            one, other = sorted(draw.sample(range(len(order)), 2))
            swapped = list(order)
            swapped[one], swapped[other] = swapped[other], swapped[one]
            _count(swaps, graph, swapped, budget)
        again = [step for step, name in enumerate(order) if name in order[:step]]
        for step in again[:CHANGES]:
            _count(drops, graph, order[:step] + order[step + 1 :], budget)
    return [_row("two steps swapped", swaps), _row("a recomputation dropped", drops)]


def _row(change: str, tally: list[int]) -> Row:
    tried, broken, caught, refused = tally
    return change, tried, broken, caught, refused


def _count(tally: list[int], graph: Graph, order: Sequence[str], budget: int) -> None:
    tally[0] += 1
    refused = _refuses(graph, order, budget)
    if _breaks(graph, order, budget):
        tally[1] += 1
        tally[2] += refused
    else:
        tally[3] += refused


def _refuses(graph: Graph, order: Sequence[str], budget: int) -> bool:
    try:
        verify_sequence(graph, order, budget)
    except WrongPlan:
        return True
    return False


def _breaks(graph: Graph, order: Sequence[str], budget: int) -> bool:
    """Runs the order with every value kept while a later step reads it before it is made again; no sharing."""
    operators = {operator.name: operator for operator in graph.operators}
    size = {value.name: value.size for value in graph.values if value.kind != "constant"}
    outputs = {value.name for value in graph.values if value.kind == "output"}
    there = {value.name for value in graph.values if value.kind in ("input", "constant")}
    for step, name in enumerate(order):
        operator = operators[name]
        if not set(operator.inputs) <= there:
            return True
        there |= set(operator.outputs)
        if sum(size.get(value, 0) for value in there) + operator.workspace > budget:
            return True
        for value in list(there):
            if value in size and not _wanted(value, order[step + 1 :], operators, outputs):
                there.discard(value)
    return not outputs <= there or set(order) != set(operators)


def _wanted(value: str, rest: Sequence[str], operators: dict[str, Operator], outputs: set[str]) -> bool:
    for name in rest:
        if value in operators[name].inputs:
            return True
        if value in operators[name].outputs:
            return False
    return value in outputs


def _moves(count: int) -> Row:
    tried = caught = refused = 0
    for seed in range(count):
        graph = layered_graph(60, 6.0, seed)
        held = sum(value.size for value in graph.values)
        machine = Machine(
            "small", (Tier("fast", held // 12, 1e11, 1e11), Tier("slow", 4 * held, 1e10, 1e10)),
            (Link("fast", "slow", 2e10), Link("slow", "fast", 2e10)),
        )  # fmt: skip
        plan = plan_tiers(graph, machine, mode="sync", method="heuristic", alignment=1)
        verify_tiers(graph, plan.memory, plan.capacities, plan.aliases, 1)
        for number in range(min(len(plan.memory.moves), CHANGES)):
            moves = plan.memory.moves[:number] + plan.memory.moves[number + 1 :]
            tried += 1
            try:
                verify_tiers(graph, replace(plan.memory, moves=moves), plan.capacities, plan.aliases, 1)
            except WrongPlan:
                caught += 1
    return "a move dropped", tried, tried, caught, refused


if __name__ == "__main__":
    main(measure)
