"""Operators whose kernels are of float32, where a model has them in float16 or bfloat16.

    Conv(x, w)  -->  Cast(Conv(Cast(x), Cast(w)))

Every sum is in float32 and rounded once, as ONNX Runtime has it on a CPU; the casts become part of the kernels around,
and weights stay short: the kernels of products, convolutions and recurrent layers widen them. Other operators of few
numbers stay as they are: loops that widen number by number, which are no slower there than a kernel and its casts.
"""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.nodes import input_at, is_used, string_attribute
from graphopt.model.short import SHORT

WIDE = frozenset({
    "Conv", "ConvTranspose", "MatMul", "Gemm", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
    "BatchNormalization", "InstanceNormalization", "ReduceMean", "LSTM", "GRU", "RNN",
})  # fmt: skip
WIDE_WHERE_MANY = frozenset({
    "Attention", "CumSum", "Einsum", "GridSample", "GroupNormalization", "LayerNormalization", "LogSoftmax",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Resize", "RMSNormalization", "Softmax",
})  # fmt: skip
MANY = 1024  # elements of the first operand


def widened(model: ir.Model, many: int = MANY) -> ir.Model:
    """A model in which such nodes are of float32, some from so `many` elements on; the same one where there are none.

    The sizes of a range have the same nodes in float32 where `many` is 0.
    """
    facts = Facts(model)
    if not any(_is_short(facts, node, many) for node in model.graph):
        return model
    copy = model.clone()
    facts = Facts(copy)
    for node in [node for node in copy.graph if _is_short(facts, node, many)]:
        _widen(copy.graph, facts, node)
    return copy


def _is_short(facts: Facts, node: ir.Node, many: int) -> bool:
    if node.domain or not any(value is not None and facts.dtype(value) in SHORT for value in node.inputs):
        return False
    if node.op_type in WIDE:
        return True
    first = input_at(node, 0)
    shape = None if first is None else facts.static_shape(first)
    is_many = shape is None or prod(shape) >= many
    return node.op_type in WIDE_WHERE_MANY and is_many and not _only_moves(node) and not _has_cache(node)


def _only_moves(node: ir.Node) -> bool:
    """Whether a Resize takes each number from one place."""
    return node.op_type == "Resize" and string_attribute(node, "mode", "nearest") == "nearest"


def _has_cache(node: ir.Node) -> bool:
    """Whether an Attention reads or gives rows that stay from step to step, which no step shall copy."""
    return node.op_type == "Attention" and (input_at(node, 4) is not None or any(map(is_used, node.outputs[1:3])))


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
