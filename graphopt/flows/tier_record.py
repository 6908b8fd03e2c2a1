"""From a placement over tiers to the record that is shown."""

from __future__ import annotations

from graphopt.flows.records.memory import MoveLine, TierLine, TierReport
from memplan.graph import Graph
from memplan.tiers.machine import Machine
from memplan.tiers.plan import Mode, TierPlan, all_fast_time


def tier_report(graph: Graph, plan: TierPlan, machine: Machine, mode: Mode) -> TierReport:
    """A placement over the tiers of a machine."""
    size = {value.name: value.size for value in graph.values}
    lines = []
    for number, tier in enumerate(machine.tiers):
        occupancy = plan.simulation.occupancy[number]
        packing = plan.memory.arenas.get(tier.name)
        arena = 0 if packing is None else packing.arena_size
        lines.append(TierLine(tier.name, tier.capacity, arena, max(occupancy, default=0), tuple(occupancy)))
    moves = tuple(
        MoveLine(move.value, size.get(move.value, 0), move.source, move.target, move.step, move.overlapped)
        for move in plan.memory.moves
    )
    fast = all_fast_time(graph, machine)
    return TierReport(machine.name, mode, plan.time, fast, plan.bound, tuple(lines), moves, plan.solver)
