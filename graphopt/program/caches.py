"""Caches of keys and values: outputs whose first rows are an input's, and which may therefore lie in its memory.

Concat(past, new) -> present            Attention(..., past_key, past_value) -> ..., present_key, present_value
TensorScatter(past, new, places) -> present                           Extend(past, new, places, ...) -> present

The last two write over rows, so that nothing else may read those that were there.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from graphopt.model.nodes import input_at
from graphopt.model.operators.contrib import CACHES

_WRITING = frozenset({("", "TensorScatter"), (CACHES, "Extend")})
_PLACES = {  # of an operand, and of the result that it begins
    ("", "Concat"): ((0, 0),),
    ("", "Attention"): ((4, 1), (5, 2)),
    **dict.fromkeys(_WRITING, ((0, 0),)),
}


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
    if node is None:
        return
    key = node.domain.removeprefix("ai.onnx"), node.op_type
    for operand, result in _PLACES.get(key, ()):
        past = input_at(node, operand)
        if past is None or result >= len(node.outputs) or node.outputs[result] is not value:
            continue
        if key not in _WRITING or all(one is node or one.op_type == "Shape" for one in past.consumers()):
            yield past
