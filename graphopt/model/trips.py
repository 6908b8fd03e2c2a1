"""How often a Loop runs, where constants tell."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.evaluate import evaluate
from graphopt.model.facts import Facts
from graphopt.model.known import SMALL

MOST_TRIPS = 1 << 24  # more are no count, but what exporters write for none


def has_open_loop(model: ir.Model) -> bool:
    """Whether a Loop, wherever it is, ends by its condition alone: it has no count of trips, or no small constant's."""
    places: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    every = (node for place in places for node in nodes.nodes_of(place))
    return any(node.op_type == "Loop" and nodes.is_standard(node) and _is_open(node) for node in every)


def _is_open(loop: ir.Node) -> bool:
    count = nodes.input_at(loop, 0)
    if count is None:
        return True
    producer = count.producer()
    tensor = constants.of_initializer(count) if producer is None else constants.of_constant_node(producer)
    return tensor is not None and tensor.size == 1 and int(tensor.numpy().reshape(-1)[0]) > MOST_TRIPS


class Ending(NamedTuple):
    """After how many iterations a Loop ends at the latest, whatever data say; exact: not before, either."""

    trips: int
    is_exact: bool


def ended(facts: Facts, loop: ir.Node, body: ir.Graph, most: int) -> Ending | None:
    """When the body's condition is false; None for more than `most` iterations, and where it cannot be told.

    Only what begins with small constants is followed from one iteration to the next. Of several conditions one that is
    false is enough, though data may decide the others: i < 5 ends a loop, and length > i may end it before.
    """
    conditions, is_exact = _conditions(body.outputs[0]), True
    starts = dict(zip(body.inputs[2:], loop.inputs[2:], strict=True))
    state = {entry: array for entry, start in starts.items() if (array := _small(facts, start)) is not None}
    nexts = dict(zip(body.inputs[2:], body.outputs[1:], strict=False))
    for trip in range(most):
        counts: list[np.generic] = [np.int64(trip), np.bool_(True)]
        known: dict[ir.Value, np.ndarray | None] = {
            entry: np.full((1,) * len(entry.shape or ()), number)
            for entry, number in zip(body.inputs[:2], counts, strict=True)
        }
        known.update(state)
        found = [_computed(facts, body, condition, known) for condition in conditions]
        told = [bool(one.item()) for one in found if one is not None and one.size == 1]
        if False in told:
            return Ending(trip + 1, is_exact)
        if not told:
            return None
        is_exact = is_exact and len(told) == len(conditions)
        results = {entry: _computed(facts, body, nexts[entry], known) for entry in state}
        state = {entry: array for entry, array in results.items() if array is not None}
    return None


def _conditions(value: ir.Value) -> list[ir.Value]:
    """The conditions that all have to hold for `value` to be true."""
    node = value.producer()
    if node is None or not nodes.is_standard(node) or node.op_type not in ("And", "Identity") or None in node.inputs:
        return [value]
    return [one for given in node.inputs if given is not None for one in _conditions(given)]


def _computed(
    facts: Facts, body: ir.Graph, value: ir.Value, known: dict[ir.Value, np.ndarray | None]
) -> np.ndarray | None:
    """A small value of one iteration by those that are `known`, which grow; None where it cannot be told."""
    pending = [value]
    while pending:
        current = pending[-1]
        node = current.producer()
        if current in known:
            pending.pop()
        elif node is None or node.graph is not body or node.op_type == "Constant":
            known[current] = _small(facts, current)
        elif nodes.has_subgraphs(node) or not nodes.is_standard(node) or not facts.is_pure(node):
            known[current] = None
        elif missing := [given for given in node.inputs if given is not None and given not in known]:
            pending.extend(missing)
        else:
            given = [None if one is None else known[one] for one in node.inputs]
            whole = all(one is None or array is not None for one, array in zip(node.inputs, given, strict=True))
            results = evaluate(node, given, facts.opset(node)) if whole else None
            known.update(zip(node.outputs, results or [None] * len(node.outputs), strict=True))
    found = known[value]
    return None if found is None or found.size > SMALL else found


def _small(facts: Facts, value: ir.Value | None) -> np.ndarray | None:
    """The data of a small constant."""
    tensor = None if value is None else facts.tensor(value)
    return None if value is None or tensor is None or tensor.size > SMALL else facts.array(value)
