"""Whether a Loop goes on as often as its operand says."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge


def count_of(facts: Knowledge, value: ir.Value | None) -> int | None:
    """The number of iterations that an operand says; None where that is not known."""
    found = facts.ints(value)
    return max(found[0], 0) if found is not None and len(found) == 1 else None


def keeps_going(facts: Knowledge, body: ir.Graph) -> bool:
    """Whether the body hands its condition on as it was, or always says true."""
    value: ir.Value | None = body.outputs[0]
    while value is not None and value is not body.inputs[1]:
        held = facts.array(value)
        if held is not None and held.size == 1 and held.dtype == np.bool_ and bool(held.item()):
            return True
        producer = value.producer()
        if producer is None or producer.op_type != "Identity" or not nodes.is_standard(producer):
            return False
        value = producer.inputs[0]
    return value is not None


def fixed_trips(loop: ir.Node, facts: Knowledge) -> int | None:
    """How often a Loop runs where its operand alone says so; None where a condition decides too, or no constant."""
    count, going = count_of(facts, nodes.input_at(loop, 0)), facts.array(nodes.input_at(loop, 1))
    starts = nodes.input_at(loop, 1) is None or (going is not None and bool(going.all()))
    (body,) = nodes.subgraphs(loop)
    return count if starts and keeps_going(facts, body) else None
