"""Whether an order of operators, some of them run again, can be executed, gives the outputs, and keeps a budget.

Executed step by step on sets of values that are there; nothing here knows how the order was found.
"""

from __future__ import annotations

from collections.abc import Sequence

from memplan.graph import Graph
from memplan.verify.packing import WrongPlan


def verify_sequence(graph: Graph, order: Sequence[str], budget: int | None = None) -> int:
    """The peak in bytes of values and workspaces, without sharing: inputs and temporaries, not constants.

    A value is dropped after the last step that reads it before it is made again. Raises WrongPlan naming the step at
    which an operator reads what is not there, an operator that never runs or may not run again, or runs behind
    one that changes what it reads, an output that is missing, or the step at which the budget (bytes) is exceeded.
    """
    operators = {operator.name: operator for operator in graph.operators}
    kind = {value.name: value.kind for value in graph.values}
    size = {value.name: value.size for value in graph.values if value.kind != "constant"}
    drops = _drops(graph, order)
    changed_by: dict[str, list[str]] = {}
    for one in graph.operators:
        for name in one.after if one.changes else ():
            changed_by.setdefault(name, []).append(one.name)
    there = {value.name for value in graph.values if value.kind in ("input", "constant")}
    ran: set[str] = set()
    peak = live = 0
    live = sum(size.get(name, 0) for name in there)
    for step, name in enumerate(order):
        operator = operators.get(name)
        if operator is None:
            raise WrongPlan(f"step {step} runs '{name}', which the graph does not have.")
        if name in ran and not operator.recomputable:
            raise WrongPlan(f"step {step} runs '{name}' again, which gives something else each time.")
        changed = next((one for one in changed_by.get(name, ()) if one in ran), None)
        if changed is not None:
            raise WrongPlan(f"step {step} runs '{name}' behind '{changed}', which changes what it reads.")
        for needed in operator.after:
            if needed not in ran:
                raise WrongPlan(f"step {step} runs '{name}' before '{needed}', which has to come first.")
        for read in operator.inputs:
            if read not in there:
                raise WrongPlan(f"step {step}: '{name}' reads '{read}', which is not there.")
        ran.add(name)
        for made in operator.outputs:
            if made not in there:
                there.add(made)
                live += size.get(made, 0)
        ending = sum(size.get(read, 0) for read in set(operator.inputs) & set(drops[step]))
        needed_now = live + operator.workspace - min(operator.reused, ending)
        peak = max(peak, needed_now)
        if budget is not None and needed_now > budget:
            raise WrongPlan(f"step {step} ('{name}') needs {needed_now} bytes, {needed_now - budget} above the budget.")
        for dropped in drops[step]:
            if dropped in there and kind[dropped] != "constant":
                there.discard(dropped)
                live -= size[dropped]
    for name in operators:
        if name not in ran:
            raise WrongPlan(f"operator '{name}' never runs.")
    for value in graph.values:
        if value.kind == "output" and value.name not in there:
            raise WrongPlan(f"the output '{value.name}' is not there at the end.")
    return peak


def _drops(graph: Graph, order: Sequence[str]) -> list[list[str]]:
    """For each step the values that nobody reads after it before they are made again. Found from the end."""
    operators = {operator.name: operator for operator in graph.operators}
    wanted = {value.name for value in graph.values if value.kind == "output"}
    drops: list[list[str]] = [[] for _ in order]
    for step in range(len(order) - 1, -1, -1):
        operator = operators.get(order[step])
        if operator is None:
            continue
        touched = dict.fromkeys((*operator.inputs, *operator.outputs))
        drops[step] = [value for value in touched if value not in wanted]
        wanted.difference_update(operator.outputs)
        wanted.update(operator.inputs)
    if drops:  # an input that nobody reads is there while the first operator runs
        drops[0] += [value.name for value in graph.values if value.kind == "input" and value.name not in wanted]
    return drops
