"""A placement over the tiers of a machine, as the report shows it."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.errors import OptionError
from graphopt.memory.tensors import ModelMemory
from graphopt.report.memory.records import MoveLine, TierLine, TierReport
from memplan.tiers.machine import Machine
from memplan.tiers.plan import Mode, TierPlan, all_fast_time, plan_tiers
from memplan.verify.tiers import verify_tiers

TierMode = Mode
WORK = 20_000_000_000  # steps of the integer program


def tier_report(
    memory: ModelMemory, order: Sequence[str], machine: Machine, mode: TierMode
) -> tuple[TierReport, TierPlan]:
    """The plan for this order, weights included, verified, and what is said of it. Times are simulated.

    Raises OptionError where operators run again: the placement is of values that are computed once.
    """
    if len(set(order)) != len(order):
        raise OptionError("tiers are planned for an order in which every operator runs once; leave out --budget.")
    graph = memory.graph.in_order(order)
    plan = plan_tiers(graph, machine, mode=mode, work=WORK)
    verify_tiers(graph, plan.memory, plan.capacities, plan.aliases, plan.alignment)
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
    report = TierReport(machine.name, mode, plan.time, fast, plan.bound, tuple(lines), moves, plan.solver)
    return report, plan


def tiers_of(plan: TierPlan) -> dict[str, str]:
    """By value the tier in which it lies, or those one after the other: "dram, pmem"."""
    found: dict[str, dict[str, None]] = {}
    for stay in sorted(plan.memory.stays, key=lambda one: (one.value, one.begin)):
        found.setdefault(stay.value, {})[stay.tier] = None
    places = {value: ", ".join(tiers) for value, tiers in found.items()}
    for value in plan.aliases:
        base = value
        while base in plan.aliases:
            base = plan.aliases[base].of
        if base in places:
            places[value] = places[base]
    return places
