"""Attention that is spelled out becomes com.microsoft.MultiHeadAttention, where the heads need no Transposes around it.

ONNX Runtime's own fusion at load asks for one exporter's exact graph. The operator takes queries as [batch, rows,
heads * size] and divides the heads itself; keys and values come like that too or, from a cache, as [batch, heads,
rows, size]. Measured by bench/ort_latency.py with and without it: vit_s16_legacy and gpt2_kv_dyn are 2 % faster,
bert_small_rawdynamo and clip_text 1 %, bert_base as fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.known import Known
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.fusion.private import made_by, require_private
from graphopt.passes.ort.kernels import DOMAIN, require_kernel
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

HEADS_OUT = (0, 2, 1, 3)  # [batch, rows, heads, size] and [batch, heads, rows, size], either way round
SWAPPED = (0, 1, 3, 2)
KEYS_AT_ONCE = (0, 2, 3, 1)  # [batch, rows, heads, size] to [batch, heads, size, rows]
NAME = "MultiHeadAttention"


@dataclass(frozen=True, slots=True)
class _Spelled:
    """Softmax(q kt * scale + mask) v, and the nodes of it."""

    q: ir.Value
    kt: ir.Value
    v: ir.Value
    mask: ir.Value | None
    scale: float
    group: tuple[ir.Node, ...]


@any_node("Reshape", level=2)
def multi_head_attention(match: Match) -> Replacement:
    """Reshape(Transpose(MatMul(Softmax(MatMul(q, kt) * s + mask), v)), [b, n, h d])  -->  MultiHeadAttention(...)

    q, k and v lose their Transposes; keys and values of a cache stay as they are. Leaves alone queries that lie with
    their heads in front (it would take a Transpose to use the operator) and masks that do not have all rows.
    """
    product, turned = _product(match)
    found = _spelled(match, product)
    shape = match.shape(product.outputs[0])
    batch, heads, rows, size = shape
    inner = match.shape(found.q)[3]
    if not (isinstance(heads, int) and isinstance(size, int) and isinstance(inner, int)):
        match.refuse("heads or their size are not known")
    kind = match.dtype(found.v)
    require_kernel(match, NAME, kind)
    _check_shapes(match, found, shape)
    rows_apart = _apart(match, found.q)
    if rows_apart is None:
        match.refuse("the heads of the queries lie in front")
    q = _joined(match, rows_apart, (batch, rows, heads * inner))
    k, v = _keys_and_values(match, found, batch, heads * inner, heads * size)
    mask = None if found.mask is None else _mask(match, found.mask, shape, match.shape(found.kt)[3])
    require_private(match, [*turned, *found.group])
    result = match.op(
        NAME, q, k, v, None, None, mask, attributes={"num_heads": heads, "scale": found.scale}, domain=DOMAIN
    )
    wide = (batch, rows, dims.normal(heads * size))
    match.facts.set_known(result, Known(ir.TensorType(kind), wide, None))
    if match.shape(match.output) == wide:
        return result
    target = match.ints(match.root.inputs[1], "the new shape")
    match.require(0 not in target, "the new shape has a 0")
    return match.op("Reshape", result, match.root.inputs[1], like=match.root)


def _product(match: Match) -> tuple[ir.Node, tuple[ir.Node, ...]]:
    """The product with the values, of which the root makes rows, and the Transpose between."""
    below = made_by(match.root.inputs[0], "Transpose", "MatMul")
    if below is None:
        match.refuse("no product with values stands above")
    if below.op_type == "Transpose":
        match.require(permutation(match, below) == HEADS_OUT, "the Transpose does not bring the heads together")
        product = made_by(below.inputs[0], "MatMul")
        if product is None:
            match.refuse("no product with values stands above")
        return product, (below,)
    match.require(match.rank(below.outputs[0]) == 4 and match.shape(below.outputs[0])[2] == 1, "the heads stay apart")
    return below, ()


def _spelled(match: Match, product: ir.Node) -> _Spelled:
    weights, v = product.inputs[0], product.inputs[1]
    softmax = made_by(weights, "Softmax")
    if softmax is None or v is None:
        match.refuse("it does not multiply the result of a Softmax")
    axis = nodes.int_attribute(softmax, "axis", -1 if match.opset >= 13 else 1)
    match.require(axis in (-1, 3), "the Softmax is not over the keys")
    group = [product, softmax]
    value, mask, scale = softmax.inputs[0], None, 1.0
    total = made_by(value, "Add")
    if total is not None:
        group.append(total)
        value, mask = _scores_and_mask(match, total)
    scaled = made_by(value, "Mul", "Div")
    if scaled is not None:
        group.append(scaled)
        value, scale = _unscaled(match, scaled)
    scores = made_by(value, "MatMul")
    if scores is None or scores.inputs[0] is None or scores.inputs[1] is None:
        match.refuse("no product of queries and keys stands under the Softmax")
    group.append(scores)
    q, kt = scores.inputs[0], scores.inputs[1]
    again = made_by(q, "Mul", "Div")
    if again is not None and len(q.uses()) == 1 and _number(match, again) is not None:
        group.append(again)
        q, factor = _unscaled(match, again)
        scale *= factor
    match.require(math.isfinite(scale) and scale != 0, "the scores are not scaled by a number")
    return _Spelled(q, kt, v, mask, scale, tuple(group))


def _scores_and_mask(match: Match, total: ir.Node) -> tuple[ir.Value, ir.Value]:
    left, right = total.inputs[0], total.inputs[1]
    assert left is not None and right is not None, "a sum has two operands"
    for one, other in ((left, right), (right, left)):
        if made_by(one, "MatMul") is not None:
            return one, other
    for one, other in ((left, right), (right, left)):
        above = made_by(one, "Mul", "Div")
        if above is not None and made_by(above.inputs[0], "MatMul") is not None:
            return one, other
    match.refuse("no operand of the sum comes from a product of queries and keys")


def _number(match: Match, node: ir.Node) -> float | None:
    number = match.facts.scalar(node.inputs[1])
    if number is None or node.inputs[1] is None:
        return None
    shape = match.facts.shape(node.inputs[1])
    return float(number) if shape is not None and all(size == 1 for size in shape) and len(shape) <= 4 else None


def _unscaled(match: Match, node: ir.Node) -> tuple[ir.Value, float]:
    """x and s of x * s or x / (1 / s)."""
    number, value = _number(match, node), node.inputs[0]
    if number is None or value is None or (node.op_type == "Div" and number == 0):
        match.refuse("the scores are not scaled by a number")
    return value, number if node.op_type == "Mul" else 1 / number


def _check_shapes(match: Match, found: _Spelled, shape: dims.Dims) -> None:
    batch, heads, rows, _ = shape
    q, kt, v = (match.shape(value) for value in (found.q, found.kt, found.v))
    match.require(len(q) == len(kt) == len(v) == 4, "queries, keys and values have not four axes")
    match.require(q[:3] == (batch, heads, rows), "the queries are widened")
    match.require(kt[:2] == v[:2] == (batch, heads), "keys or values are widened")
    match.require(kt[2] == q[3], "the product is another one")  # that keys and values are as many, MatMul demands


def _apart(match: Match, value: ir.Value) -> ir.Value | None:
    """[batch, heads, rows, size] as [batch, rows, heads, size], None where that would take a Transpose.

    With one row both are the same numbers in the same order, and the value itself is given.
    """
    node = made_by(value, "Transpose")
    if node is not None and node.inputs[0] is not None and permutation(match, node) == HEADS_OUT:
        return node.inputs[0]
    return value if match.shape(value)[2] == 1 else None


def _joined(match: Match, apart: ir.Value, shape: tuple[dims.Dim, dims.Dim, int]) -> ir.Value:
    """[batch, rows, heads, size] as `shape`, [batch, rows, heads * size]."""
    batch, rows, width = shape
    reshape = made_by(apart, "Reshape")
    source = apart if reshape is None or reshape.inputs[0] is None else reshape.inputs[0]
    if match.facts.shape(source) == shape:
        return source
    if isinstance(batch, int) and isinstance(rows, int):
        return match.op("Reshape", source, match.ints_constant(batch, rows, width))
    if rows == 1:
        return match.op("Reshape", source, match.ints_constant(-1, 1, width))
    return match.op("Reshape", apart, match.ints_constant(0, 0, width))


def _keys_and_values(
    match: Match, found: _Spelled, batch: dims.Dim, key_width: int, value_width: int
) -> tuple[ir.Value, ir.Value]:
    """Both with heads and size joined, or both as [batch, heads, rows, size]."""
    kt, v = found.kt, found.v
    node = made_by(kt, "Transpose")
    perm = None if node is None else permutation(match, node)
    if node is None or node.inputs[0] is None or perm not in (SWAPPED, KEYS_AT_ONCE):
        match.refuse("the keys are not transposed")
    below = node.inputs[0]
    keys_apart = _apart(match, below) if perm == SWAPPED else below
    values_apart = _apart(match, v)
    if keys_apart is not None and values_apart is not None:
        keys = _joined(match, keys_apart, (batch, match.shape(kt)[3], key_width))
        return keys, _joined(match, values_apart, (batch, match.shape(v)[2], value_width))
    if perm == SWAPPED:
        return below, v
    return match.op("Transpose", below, attributes={"perm": HEADS_OUT}), v


def _mask(match: Match, mask: ir.Value, shape: dims.Dims, columns: dims.Dim) -> ir.Value:
    """The mask with all of its rows: the operator repeats it over batch and heads only."""
    batch, heads, rows, _ = shape
    given = match.shape(mask)
    match.require(len(given) == 4, "the mask has not four axes")
    match.require(given[0] in (1, batch) and given[1] in (1, heads), "the mask widens the scores")
    match.require(given[3] == columns, f"the mask is {given}, the keys are {columns}")
    if given[2] == rows:
        return mask
    match.require(given[2] == 1 and isinstance(rows, int), "the mask has not all rows")
    return match.op("Expand", mask, match.constant(np.array([1, 1, rows, 1], np.int64)))


RULES: tuple[Rule, ...] = (multi_head_attention,)
