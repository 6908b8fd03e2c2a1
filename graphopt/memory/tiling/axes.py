"""The axes of values that belong together: one is a range along its axis because another one is along its own."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from graphopt.memory.tiling.locality import part
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.parts import Part, Range


def axes_from(facts: Facts, seed: ir.Value, axis: int, among: Iterable[ir.Node]) -> dict[ir.Value, int]:
    """The axis of every value that nodes `among` tie to `axis` of `seed`, along operands and results."""
    allowed = set(among)
    found = {seed: axis}
    waiting = [seed]
    while waiting:
        value = waiting.pop()
        producer = value.producer()
        near = [] if producer is None or producer not in allowed else [(producer, found[value])]
        for user, position in value.uses():
            if user in allowed:
                across = _axis_across(facts, user, position, found[value])
                near += [] if across is None else [(user, across)]
        for node, at in near:
            how = whole(facts, node, at)
            if how is None:
                continue
            tied = [(output, at) for output in nodes.used_outputs(node)]
            tied += [(value, one.axis) for value, one in zip(node.inputs, how.inputs, strict=True) if value and one]
            for other, its in tied:
                if other not in found:
                    found[other] = its
                    waiting.append(other)
    return found


def whole(facts: Facts, node: ir.Node, axis: int) -> Part | None:
    """How a node makes all of its result along an axis; None where it cannot be made in ranges along it."""
    used = nodes.used_outputs(node)
    shape = facts.static_shape(used[0]) if used else None
    if shape is None or axis >= len(shape) or shape[axis] < 2:
        return None
    return part(facts, node, Range(axis, 0, shape[axis]))


def _axis_across(facts: Facts, node: ir.Node, position: int, axis: int) -> int | None:
    """The axis of the node's result that follows `axis` of one of its operands."""
    used = nodes.used_outputs(node)
    for at in range(facts.rank(used[0]) or 0) if used else ():
        how = whole(facts, node, at)
        found = how.inputs[position] if how is not None else None
        if found is not None and found.axis == axis:
            return at
    return None
