"""Caches of keys and values: outputs whose first rows are an input's, and which may therefore lie in its memory.

Concat(past, new) -> present            Attention(..., past_key, past_value) -> ..., present_key, present_value
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from graphopt.model.nodes import input_at

_PLACES = {"Concat": ((0, 0),), "Attention": ((4, 1), (5, 2))}  # of an operand, and of the result that it begins


def caches_of(model: ir.Model) -> dict[str, str]:
    """Outputs by name, each with the input whose rows it begins with."""
    found: dict[str, str] = {}
    for value in model.graph.outputs:
        for past in _begins(value):
            known = past.is_graph_input() and past.name not in model.graph.initializers
            if known and past.dtype == value.dtype and past.name and value.name and past.name not in found.values():
                found[value.name] = past.name
    return found


def _begins(value: ir.Value) -> Iterator[ir.Value]:
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx"):
        return
    for operand, result in _PLACES.get(node.op_type, ()):
        past = input_at(node, operand)
        if past is not None and result < len(node.outputs) and node.outputs[result] is value:
            yield past
