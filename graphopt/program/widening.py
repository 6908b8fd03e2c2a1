"""Operators whose kernels are of float32, where a model has them in float16 or bfloat16.

    Conv(x, w)  -->  Cast(Conv(Cast(x), Cast(w)))

Every sum is in float32 and rounded once, as ONNX Runtime has it on a CPU; the casts become part of the kernels around,
and weights stay short: the kernels of products, convolutions and recurrent layers widen them.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.short import SHORT

WIDE = frozenset({
    "Conv", "ConvTranspose", "MatMul", "Gemm", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
    "BatchNormalization", "InstanceNormalization", "ReduceMean", "LSTM", "GRU", "RNN",
})  # fmt: skip


def widened(model: ir.Model) -> ir.Model:
    """A model in which such nodes are of float32; the same one where there are none."""
    facts = Facts(model)
    if not any(_is_short(facts, node) for node in model.graph):
        return model
    copy = model.clone()
    facts = Facts(copy)
    for node in [node for node in copy.graph if _is_short(facts, node)]:
        _widen(copy.graph, facts, node)
    return copy


def _is_short(facts: Facts, node: ir.Node) -> bool:
    return (
        node.op_type in WIDE and not node.domain
        and any(value is not None and facts.dtype(value) in SHORT for value in node.inputs)
    )  # fmt: skip


def _widen(graph: ir.Graph, facts: Facts, node: ir.Node) -> None:
    kinds = {value: facts.dtype(value) for value in (*node.inputs, *node.outputs) if value is not None}
    for position, value in enumerate(node.inputs):
        if value is not None and kinds[value] in SHORT:
            wide = _cast(value, ir.DataType.FLOAT, f"{value.name}:wide for {node.outputs[0].name}:{position}")
            graph.insert_before(node, wide)
            node.replace_input_with(position, wide.outputs[0])
    for output in node.outputs:
        kind = kinds[output]
        if kind not in SHORT or not output.name:
            continue
        short = _cast(output, kind, f"{output.name}:short")
        graph.insert_after(node, short)
        new = short.outputs[0]
        new.shape, name = output.shape, output.name
        ir.convenience.replace_all_uses_with([output], [new], replace_graph_outputs=True)
        short.replace_input_with(0, output)
        output.type, output.name, new.name = ir.TensorType(ir.DataType.FLOAT), f"{name}:wide", name


def _cast(value: ir.Value, kind: ir.DataType, name: str) -> ir.Node:
    made = ir.node("Cast", [value], {"to": int(kind)})
    made.name = made.outputs[0].name = name
    made.outputs[0].type = ir.TensorType(kind)
    return made
