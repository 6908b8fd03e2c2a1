"""Values are expanded as late as possible, so that what is computed of them stays small.

    Where(Expand(mask), 0, -inf)  -->  Expand(Where(mask, 0, -inf))

In a program an Expand is a view: a mask of one row for all queries then takes the bytes of one row, in every layer that
reads it. Left alone: nodes with an operand of several elements that is not expanded, or is from other dims.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.memory.tiling.names import names_of, new_name
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.table import formula_of

MASK = 3  # the operand of Attention


def with_expansions_late(model: ir.Model) -> ir.Model:
    """A copy of `model` in which elementwise nodes come before what expands all their operands; the same without."""
    facts = Facts(model)
    if not any(_expansions(facts, node) for node in model.graph):
        return model
    copy, names = model.clone(), names_of(model)
    graph, facts = copy.graph, Facts(copy)
    for node in tuple(graph):
        expansions = _expansions(facts, node)
        if not expansions:
            continue
        output, first = node.outputs[0], expansions[0]
        inner = {one.outputs[0]: one.inputs[0] for one in expansions}
        before = ir.Node(
            node.domain, node.op_type, [None if one is None else inner.get(one, one) for one in node.inputs],
            list(node.attributes.values()), name=new_name(f"{node.name or output.name}_small", names),
            metadata_props=dict(node.metadata_props),
        )  # fmt: skip
        small, source = before.outputs[0], first.inputs[0]
        assert source is not None, "an Expand has an operand"
        small.name, small.type, small.shape = new_name(f"{output.name}_small", names), output.type, source.shape
        late = ir.Node("", "Expand", [small, first.inputs[1]], name=new_name(f"{output.name}_late", names))
        whole = late.outputs[0]
        whole.type, whole.shape = output.type, output.shape
        graph.insert_before(node, [before, late])
        ir.convenience.replace_all_uses_with([output], [whole], replace_graph_outputs=True)
        whole.name, output.name = output.name, None
        graph.remove(node, safe=True)
        graph.remove([one for one in expansions if not nodes.used_outputs(one)], safe=True)
    for node in tuple(graph):
        if node.op_type == "Attention" and not node.domain:
            _mask_by_rows(facts, node)
    return copy


def _mask_by_rows(facts: Facts, attention: ir.Node) -> None:
    """Let attention itself expand a mask that all queries, heads or samples share."""
    mask = nodes.input_at(attention, MASK)
    expand = None if mask is None else mask.producer()
    if mask is None or expand is None or expand.op_type != "Expand" or expand.inputs[0] is None:
        return
    small, whole = facts.static_shape(expand.inputs[0]), facts.static_shape(mask)
    if small is None or whole is None or len(small) != len(whole) or small[-1] != whole[-1]:
        return
    attention.replace_input_with(MASK, expand.inputs[0])
    if expand.graph is not None and not nodes.used_outputs(expand):
        expand.graph.remove(expand, safe=True)


def _expansions(facts: Facts, node: ir.Node) -> list[ir.Node]:
    """What makes the operands of an elementwise node, all from the same dims; nothing where others have elements."""
    if formula_of(node) is None or len(node.outputs) != 1 or not facts.is_pure(node):
        return []
    result = facts.static_shape(node.outputs[0])
    found: dict[ir.Node, tuple[int, ...] | None] = {}
    for value in node.inputs:
        shape = None if value is None else facts.static_shape(value)
        maker = None if value is None else value.producer()
        if value is None or shape is None:
            return []
        if maker is not None and maker.op_type == "Expand" and not maker.domain and shape == result:
            source = maker.inputs[0]
            found[maker] = None if source is None else facts.static_shape(source)
        elif set(shape) - {1} or not facts.is_constant(value):
            return []
    dims = set(found.values())
    return list(found) if len(dims) == 1 and dims.isdisjoint((None, result)) else []
