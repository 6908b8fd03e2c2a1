"""Placement of a model's tensors over the tiers of a machine, weights included."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.memory.tensors import PEAK_FLOPS, model_memory
from memplan.graph import Graph
from memplan.tiers.machine import Machine
from memplan.tiers.plan import Mode, TierPlan, plan_tiers
from memplan.verify.tiers import verify_tiers

WORK = 20_000_000_000  # steps of the integer program


def place(model: ir.Model, order: Sequence[str], machine: Machine, mode: Mode) -> tuple[Graph, TierPlan]:
    """The tensors of `model` in this order, and where each lies when; verified. Times are simulated.

    Raises OptionError where operators run again: the placement is of values that are computed once.
    """
    if len(set(order)) != len(order):
        raise OptionError("tiers are planned for an order in which every operator runs once; leave out the budget.")
    memory = model_memory(model, peak_flops=machine.peak_flops or PEAK_FLOPS, bandwidth=None)
    graph = memory.graph.in_order(order)
    plan = plan_tiers(graph, machine, mode=mode, work=WORK)
    verify_tiers(graph, plan.memory, plan.capacities, plan.aliases, plan.alignment)
    return graph, plan


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
