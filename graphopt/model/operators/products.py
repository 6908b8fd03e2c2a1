"""Matrix products: MatMul, Gemm, Einsum, attention."""

from __future__ import annotations

from math import prod

import onnx_ir as ir
import sympy

from graphopt.model import dims, nodes
from graphopt.model.equation import labels_of, read_equation
from graphopt.model.known import Knowledge, Known
from graphopt.model.operators.gradients import products as gradients
from graphopt.model.operators.parts import Part, Range, Shape, Wanted
from graphopt.model.operators.record import Operator
from graphopt.model.operators.shapes import Result, like_first, source_shape


def _second_shape(node: ir.Node, facts: Knowledge) -> dims.Dims | None:
    return None if node.inputs[1] is None else facts.shape(node.inputs[1])


def _matmul_dims(node: ir.Node, facts: Knowledge) -> Result:
    left, right = source_shape(node, facts), _second_shape(node, facts)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    batch = dims.broadcast(left[:-2], right[:-2])
    return None if batch is None else like_first(node, facts, (*batch, left[-2], right[-1]))


def _gemm_dims(node: ir.Node, facts: Knowledge) -> Result:
    left, right = source_shape(node, facts), _second_shape(node, facts)
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return None
    rows = left[1 if nodes.int_attribute(node, "transA", 0) else 0]
    columns = right[0 if nodes.int_attribute(node, "transB", 0) else 1]
    return like_first(node, facts, (rows, columns))


def _attention_dims(node: ir.Node, facts: Knowledge) -> Result:
    """Of the result, of keys and values with their cache, and of the scores."""
    given = [nodes.input_at(node, at) for at in (0, 1, 2)]
    shapes = [None if value is None else facts.shape(value) for value in given]
    query, key, value = shapes
    result: dims.Dims
    if query is None or key is None or value is None or {len(query), len(key), len(value)} not in ({3}, {4}):
        return None
    past = nodes.input_at(node, 4)
    before = (0,) * 4 if past is None else facts.shape(past)
    heads, shared = nodes.int_attribute(node, "q_num_heads", 0), nodes.int_attribute(node, "kv_num_heads", 0)
    if before is None or len(before) != 4 or (len(query) == 3 and not (heads and shared)):
        return None
    if len(query) == 4:
        heads, shared, width, wide = query[1], key[1], key[3], value[3]
        result = (*query[:3], wide)
    else:
        width, wide = (_part(one[2], shared) for one in (key, value))
        result = (query[0], query[1], dims.normal(wide * heads))
    keys = dims.normal(before[2] + key[-2])
    kept = ((query[0], shared, keys, width), (query[0], shared, keys, wide), (query[0], heads, query[-2], keys))
    types = [facts.known(one).type for one in (given[0], given[1], given[2], given[0]) if one is not None]
    made = (Known(kind, shape, None) for kind, shape in zip(types, (result, *kept), strict=True))
    return tuple(one for one, _ in zip(made, node.outputs, strict=False))


def _part(dim: dims.Dim, count: int) -> dims.Dim:
    exact = dims.quotient(dim, count)
    return dims.normal(sympy.sympify(dim) / count) if exact is None else exact


def _matmul_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    return 2 * prod(outputs[0]) * (inputs[0][-1] if inputs[0] else 1)


def _gemm_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    inner = inputs[0][0 if nodes.int_attribute(node, "transA", 0) else 1]
    bias = prod(outputs[0]) if nodes.input_at(node, 2) is not None else 0
    return 2 * prod(outputs[0]) * inner + bias


def _einsum_dims(node: ir.Node, facts: Knowledge) -> Result:
    """The dims of the result's labels; those of one element, and of an ellipsis that is shorter, are broadcast."""
    shapes = [None if value is None else facts.shape(value) for value in node.inputs]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    try:
        terms, result = labels_of(nodes.string_attribute(node, "equation", ""), [len(shape) for shape in known])
    except ValueError:
        return None
    sizes: dict[str, list[dims.Dim]] = {}
    for term, shape in zip(terms, known, strict=True):
        for label, size in zip(term, shape, strict=True):
            sizes.setdefault(label, []).append(size)
    whole = {label: dims.broadcast(*((size,) for size in found)) for label, found in sizes.items()}
    if any(label not in whole for label in result):
        return None
    return like_first(node, facts, tuple(facts.fresh() if (size := whole[one]) is None else size[0] for one in result))


def _einsum_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """The product of all distinct labels, twice when two operands are multiplied and summed."""
    _, _, sizes = read_equation(nodes.string_attribute(node, "equation", ""), inputs)
    return (2 if len(inputs) > 1 else 1) * prod(sizes.values())


def _attention_flops(node: ir.Node, inputs: list[Shape], outputs: list[Shape]) -> int:
    """Q K^T and its product with V, two operations each, and the softmax between them.

    Rank 4: [batch, heads, length, size]; rank 3: [batch, length, heads * size].
    """
    query, key, value = inputs[0], inputs[1], inputs[2]
    past = inputs[4][2] if len(inputs) > 4 and len(inputs[4]) == 4 else 0
    if len(query) == 4:
        heads, width, value_width = query[1], query[3], value[3]
    else:
        heads = nodes.int_attribute(node, "q_num_heads", 1)
        shared = nodes.int_attribute(node, "kv_num_heads", heads)
        width, value_width = query[2] // max(heads, 1), value[2] // max(shared, 1)
    pairs = query[0] * heads * query[-2] * (key[-2] + past)
    return pairs * (2 * width + 2 * value_width + 5)


def _matmul_part(wanted: Wanted) -> Part | None:
    left, right = wanted.shapes[:2]
    rank = len(wanted.result)
    if len(left) < 2 or len(right) < 2:
        return None
    if wanted.axis == rank - 1:
        return Part((None, Range(len(right) - 1, *wanted.range[1:])), wanted.range[1:])
    if wanted.axis == rank - 2:
        return wanted.first(Range(len(left) - 2, *wanted.range[1:]))
    rows, columns = (*left[:-2], 0, 0), (*right[:-2], 0, 0)
    return Part(tuple(wanted.broadcast(shape) for shape in (rows, columns)), wanted.range[1:])


def _gemm_part(wanted: Wanted) -> Part | None:
    rows, columns = (nodes.int_attribute(wanted.node, name, 0) for name in ("transA", "transB"))
    ranges: list[Range | None] = [Range(1 if rows else 0, *wanted.range[1:]), None]
    if wanted.axis == 1:
        ranges = [None, Range(0 if columns else 1, *wanted.range[1:])]
    if len(wanted.shapes) > 2:
        ranges.append(wanted.broadcast(wanted.shapes[2]))
    return Part(tuple(ranges), wanted.range[1:])


def _attention_part(wanted: Wanted) -> Part | None:
    """Some batches or heads, or some queries with all keys and values, where every query sees the same of them."""
    node, axis, rank, shapes = wanted.node, wanted.axis, len(wanted.result), wanted.shapes
    if len(nodes.used_outputs(node)) > 1 or any(nodes.input_at(node, at) is not None for at in (4, 5, 6)):
        return None
    mask = shapes[3] if nodes.input_at(node, 3) is not None else ()

    def of_mask(from_end: int, low: int, high: int) -> tuple[Range | None, ...]:
        at = len(mask) - from_end
        cut = Range(at, low, high) if at >= 0 and mask[at] > 1 else None
        return (cut, *(None,) * (len(shapes) - 4)) if len(shapes) > 3 else ()

    reach = wanted.range
    if axis == 0:
        return Part((reach, reach, reach, *of_mask(4, *reach[1:])), reach[1:])
    if axis == rank - 2:
        is_causal = nodes.int_attribute(node, "is_causal", 0)
        return None if is_causal else Part((reach, None, None, *of_mask(2, *reach[1:])), reach[1:])
    if rank == 4 and axis == 3:
        return None
    heads, shared = (shapes[at][1] for at in (0, 1))
    if rank == 3:  # heads lie side by side in the columns
        heads = nodes.int_attribute(node, "q_num_heads", 0)
        shared = nodes.int_attribute(node, "kv_num_heads", heads)
    if not heads or not shared or heads % shared:
        return None
    each, width = heads // shared, wanted.result[axis] // heads
    low, high = reach.low // (width * each), -(-reach.high // (width * each))  # of the heads of keys

    def of_heads(low: int, high: int, shape: Shape, count: int) -> Range:
        return Range(axis, low * shape[axis] // count, high * shape[axis] // count)

    ranges = (
        of_heads(low * each, high * each, shapes[0], heads),
        *(of_heads(low, high, one, shared) for one in shapes[1:3]),
        *of_mask(3, low * each, high * each),
    )
    counts = {"q_num_heads": (high - low) * each, "kv_num_heads": high - low} if rank == 3 else {}
    return Part(ranges, (low * each * width, high * each * width), counts)


OPERATORS = (
    Operator(
        name="MatMul",
        shape=_matmul_dims,
        flops=_matmul_flops,
        epilogue=True,
        part=_matmul_part,
        gradient=gradients.matmul,
    ),
    Operator(name="Gemm", shape=_gemm_dims, flops=_gemm_flops, epilogue=True, part=_gemm_part, gradient=gradients.gemm),
    Operator(name="MatMulInteger", flops=_matmul_flops, epilogue=True),
    Operator(name="QLinearMatMul", flops=_matmul_flops, epilogue=True),
    Operator(name="Einsum", shape=_einsum_dims, flops=_einsum_flops, gradient=gradients.einsum),
    Operator(name="Attention", shape=_attention_dims, flops=_attention_flops, part=_attention_part),
)
