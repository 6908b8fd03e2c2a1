"""Operators of com.microsoft that are functions of their inputs alone; the rest of that domain is not known here."""

from __future__ import annotations

from math import prod

import onnx_ir as ir
import sympy

from graphopt.model import dims
from graphopt.model.known import Knowledge, Known
from graphopt.model.nodes import input_at, int_attribute
from graphopt.model.operators.parts import Shape
from graphopt.model.operators.record import Operator, no_flops, per_element
from graphopt.model.operators.shapes import Result, like_first, source_shape

DOMAIN = "com.microsoft"
CACHES = "graphopt.cache"  # of bodies: keys and values that grow where they lie


def _like_first(node: ir.Node, facts: Knowledge) -> Result:
    """Every result has the type and dims of the first operand."""
    first = node.inputs[0]
    return None if first is None else (facts.known(first),) * len(node.outputs)


def _of_two_quantized(node: ir.Node, facts: Knowledge) -> Result:
    """The first operand and the fourth, whose dims broadcast: scale and zero point stand behind each."""
    first, second = node.inputs[0], node.inputs[3]
    shape = None if first is None or second is None else dims.broadcast(facts.shape(first), facts.shape(second))
    return like_first(node, facts, shape)


def _times_bits(node: ir.Node, facts: Knowledge) -> Result:
    """The first operand's dims, with as many columns as the node says."""
    shape = source_shape(node, facts)
    return None if not shape else like_first(node, facts, (*shape[:-1], int_attribute(node, "N", 0)))


def _quantized_gemm(node: ir.Node, facts: Knowledge) -> Result:
    """Rows of the first operand by columns of the second, of the type of the result's zero point, else float32."""
    a, b = (facts.shape(node.inputs[at]) for at in (0, 3))  # type: ignore[arg-type]
    zero = node.inputs[8] if len(node.inputs) > 8 else None
    kind = facts.known(zero).type if zero is not None else ir.TensorType(ir.DataType.FLOAT)
    if a is None or b is None:
        return None
    shape = a[int_attribute(node, "transA", 0)], b[1 - int_attribute(node, "transB", 0)]
    return (Known(kind, shape, None),)


def _states(node: ir.Node, facts: Knowledge) -> Result:
    """All states of an LSTM whose weights are [directions, inputs, 4 hidden], then the last ones of both kinds."""
    x, weights = source_shape(node, facts), facts.shape(node.inputs[2])  # type: ignore[arg-type]
    if x is None or weights is None or len(x) != 3 or len(weights) != 3:
        return None
    kind, (directions, hidden, _) = facts.known(node.inputs[0]).type, weights  # type: ignore[arg-type]
    last = Known(kind, (directions, x[1], hidden), None)
    return (Known(kind, (x[0], directions, x[1], hidden), None), last, last)[: len(node.outputs)]


def _grouped(node: ir.Node, facts: Knowledge) -> Result:
    """The queries' dims, then the caches': as many rows as the old one or all keys have, whichever are more.

    A cache that is declared as long as the old one lies in the old one's buffer; one of a window is as long as it was.
    """
    source, query = node.inputs[0], source_shape(node, facts)
    heads, groups = (int_attribute(node, one, 0) for one in ("num_heads", "kv_num_heads"))
    if source is None or query is None or len(query) != 3 or not heads or not groups:
        return None
    kind, packed = facts.known(source).type, input_at(node, 1) is None
    size = dims.quotient(query[2], heads + 2 * groups if packed else heads)
    past, total = (input_at(node, at) for at in (3, 6))
    before = (None if past is None else facts.shape(past)) or (0,) * 4
    present = dims.declared(node.outputs[1]) if len(node.outputs) > 1 else None
    held = None if total is None else facts.content(total)
    stays = int_attribute(node, "sliding_window_cache", 0) or (present is not None and present[2] == before[2])
    rows = before[2] if stays else None
    if rows is None and held is not None:
        rows = dims.normal(sympy.Max(before[2], *held.reshape(-1)))
    if size is None:
        return None
    cache = None if rows is None else (query[0], groups, rows, size)
    return (Known(kind, (*query[:2], size * heads), None), *(Known(kind, cache, None) for _ in node.outputs[1:3]))


def _recurrent(node: ir.Node, facts: Knowledge) -> Result:
    """The values' rows, for the more of both kinds of heads, and a matrix for each head of keys and values."""
    source, many = node.inputs[0], (int_attribute(node, one, 0) for one in ("q_num_heads", "kv_num_heads"))
    query, key, value = (facts.shape(one) if one is not None else None for one in node.inputs[:3])
    heads, groups = many
    if source is None or query is None or key is None or value is None or not heads or not groups:
        return None
    size, width = dims.quotient(key[2], groups), dims.quotient(value[2], groups)
    if size is None or width is None:
        return None
    past = input_at(node, 3)
    state = facts.known(past if past is not None else source).type
    return (Known(facts.known(source).type, (*value[:2], max(heads, groups) * width), None),
            Known(state, (query[0], groups, size, width), None))[: len(node.outputs)]  # fmt: skip


def _normalized(node: ir.Node, facts: Knowledge) -> Result:
    """The rows, what they were divided by and their means, and behind these the sum that is normalized."""
    source, shape = node.inputs[0], source_shape(node, facts)
    if source is None or not shape:
        return None
    kind = facts.known(source).type
    of_rows = Known(ir.TensorType(ir.DataType.FLOAT), (*shape[:-1], 1), None)
    whole = Known(kind, shape, None)
    return (whole, of_rows, of_rows, whole)[: len(node.outputs)]


def _of_heads(node: ir.Node, facts: Knowledge) -> Result:
    """The queries' rows with the values' width, then the caches with their new rows."""
    given = [input_at(node, at) for at in (0, 1, 2, 6)]
    query, key, value, past = (None if one is None else facts.shape(one) for one in given)
    heads = int_attribute(node, "num_heads", 0)
    if node.inputs[0] is None or not heads or any(one is None or len(one) != 3 for one in (query, key, value)):
        return None  # operands that are packed, or in heads already
    assert query is not None and key is not None and value is not None, "they have three dims"
    kind, sizes = facts.known(node.inputs[0]).type, [dims.quotient(one[2], heads) for one in (key, value)]
    if None in sizes or (past is None and given[3] is not None):
        return None
    rows = key[1] if past is None else dims.normal(past[2] + key[1])
    caches = [Known(kind, (query[0], heads, rows, size), None) for size in sizes if size is not None]
    return (Known(kind, (*query[:2], value[2]), None), *caches)[: len(node.outputs)]


def _times_bits_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    return 2 * prod(inputs[0]) * int_attribute(node, "N", 0)


def _attention_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """Scores of all rows and their product with the values, two operations each, and the softmax between them.

    The cache is MultiHeadAttention's seventh operand and GroupQueryAttention's fourth.
    """
    heads, result = max(int_attribute(node, "num_heads", 1), 1), outputs[0]
    at = 3 if node.op_type == "GroupQueryAttention" else 6
    before = inputs[at][2] if len(inputs) > at and len(inputs[at]) == 4 else 0
    new = inputs[1][1] if len(inputs[1]) == 3 else result[1]
    return prod(result[:2]) * (before + new) * (4 * result[2] + 5 * heads)


def _extended(node: ir.Node, facts: Knowledge) -> Result:
    """The old rows' dims, with as many rows as the fourth operand says."""
    shape, rows = source_shape(node, facts), input_at(node, 3)
    held = None if rows is None else facts.content(rows)
    if shape is None or len(shape) != 4 or node.inputs[0] is None:
        return None
    whole = None if held is None else (*shape[:2], dims.normal(held.reshape(-1)[0]), shape[3])
    return (Known(facts.known(node.inputs[0]).type, whole, None),)


OPERATORS = (
    Operator(name="Extend", domain=CACHES, shape=_extended, flops=no_flops),
    Operator(name="LinearAttention", domain=DOMAIN, shape=_recurrent),
    Operator(name="GroupQueryAttention", domain=DOMAIN, shape=_grouped, flops=_attention_flops),
    Operator(name="MultiHeadAttention", domain=DOMAIN, shape=_of_heads, flops=_attention_flops),
    Operator(name="MatMulNBits", domain=DOMAIN, shape=_times_bits, flops=_times_bits_flops),
    Operator(name="SimplifiedLayerNormalization", shape=_normalized, flops=per_element(5)),
    Operator(name="SkipLayerNormalization", domain=DOMAIN, shape=_normalized, flops=per_element(9)),
    Operator(name="SkipSimplifiedLayerNormalization", domain=DOMAIN, shape=_normalized, flops=per_element(6)),
    Operator(name="RotaryEmbedding", domain=DOMAIN, shape=_like_first, flops=per_element(3)),
    Operator(name="DynamicQuantizeLSTM", domain=DOMAIN, shape=_states),
    Operator(name="QGemm", domain=DOMAIN, shape=_quantized_gemm, epilogue=True),
    *(Operator(name=name, domain=DOMAIN, shape=_of_two_quantized) for name in ("QLinearAdd", "QLinearMul")),
    *(
        Operator(name=name, domain=DOMAIN, shape=_like_first)
        for name in ("BiasGelu", "FastGelu", "Gelu", "Inverse", "QuickGelu")
    ),
    *(
        Operator(name=name, domain=DOMAIN)
        for name in (
            "FusedConv", "FusedGemm", "FusedMatMul", "EmbedLayerNormalization", "DequantizeLinear", "QuantizeLinear",
            "QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul", "NhwcConv",
        )
    ),
)  # fmt: skip
