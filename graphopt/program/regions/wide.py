"""Values of short floats that are read both short and as float32 lie in float32 alone.

    a -> Cast(a) -> Conv,  a -> Add(a, b)   -->   wide = Cast(a) -> Conv,  wide -> Add(Cast(wide), b)

The numbers are the same, rounded to their short type: the second cast becomes part of the kernel that reads, and no
kernel copies.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.nodes import is_standard
from graphopt.model.short import SHORT


def kept_wide(model: ir.Model) -> ir.Model:
    """A model in which such values are read from their casts; the same one where there are none."""
    if not any(_casts(value) for node in model.graph for value in node.outputs):
        return model
    copy = model.clone()
    facts = Facts(copy)
    for node in tuple(copy.graph):
        for value in node.outputs:
            casts, kind = _casts(value), facts.dtype(value)
            if casts and kind in SHORT:
                _read_wide(copy.graph, node, value, casts, kind)
    return copy


def _casts(value: ir.Value) -> list[ir.Node]:
    """The casts to float32 of a value that others read as it is; none where there are no others."""
    producer, readers = value.producer(), [use.node for use in value.uses()]
    casts = [one for one in readers if _is_widening(one)]
    inside = producer is not None and all(one.graph is producer.graph for one in readers)
    return casts if inside and len(casts) < len(readers) and not value.is_graph_output() else []


def _is_widening(node: ir.Node) -> bool:
    to = node.attributes.get("to")
    return node.op_type == "Cast" and is_standard(node) and to is not None and to.as_int() == ir.DataType.FLOAT


def _read_wide(graph: ir.Graph, node: ir.Node, value: ir.Value, casts: list[ir.Node], kind: ir.DataType) -> None:
    wide, *same = casts
    for one in same:
        ir.convenience.replace_all_uses_with([one.outputs[0]], [wide.outputs[0]], replace_graph_outputs=True)
        graph.remove(one, safe=True)
    graph.remove(wide)
    graph.insert_after(node, wide)
    short = ir.node("Cast", [wide.outputs[0]], {"to": int(kind)}, name=f"{value.name}:short")
    result = short.outputs[0]
    result.name, result.type, result.shape = short.name, ir.TensorType(kind), value.shape
    graph.insert_after(wide, short)
    for use in tuple(value.uses()):
        if use.node is not wide:
            use.node.replace_input_with(use.idx, result)
