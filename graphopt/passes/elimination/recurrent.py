"""Recurrent operators whose initial state is spelled out as zeros, which is what an absent one means."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import SMALL
from graphopt.model.operators.table import MOVES
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

INITIAL = (5, 6)  # initial_h and, of an LSTM, initial_c
DEEPEST = 8


@any_node("LSTM", "GRU", "RNN", level=1)
def zero_initial_state(match: Match) -> Replacement:
    """LSTM(x, W, R, B, lengths, zeros, zeros)  -->  LSTM(x, W, R, B, lengths)    (GRU and RNN alike)

    The zeros may be computed, of dims that are not known, and moved about. Leaves alone what is not surely zero.
    """
    inputs = list(match.root.inputs)
    zeros = [place for place in INITIAL if _is_zero(match, nodes.input_at(match.root, place))]
    match.require(zeros, "no initial state is known to be zero")
    for place in zeros:
        inputs[place] = None
    node = match.node_of(match.root.op_type, *inputs, outputs=len(match.root.outputs), like=match.root)
    return [new if nodes.is_used(old) else None for old, new in zip(match.root.outputs, node.outputs, strict=True)]


def _is_zero(match: Match, value: ir.Value | None) -> bool:
    for _ in range(DEEPEST):
        if value is None:
            return False
        if match.facts.scalar(value) == 0:
            return True
        producer = value.producer()
        if producer is None:
            array = match.facts.array(value) if match.facts.is_constant(value) else None
            return array is not None and array.size <= SMALL and not array.any()
        if not nodes.is_standard(producer) or nodes.has_reference_attributes(producer):
            return False
        if producer.op_type == "ConstantOfShape":
            attribute = producer.attributes.get("value")
            return attribute is None or not attribute.as_tensor().numpy().any()
        if producer.op_type not in MOVES:
            return False
        value = nodes.input_at(producer, 0)
    return False


RULES: tuple[Rule, ...] = (zero_initial_state,)
