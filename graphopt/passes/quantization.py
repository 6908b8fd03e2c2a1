"""Quantized models: Q/DQ pairs that undo each other, and data movement of integers. Bit for bit the same.

A DequantizeLinear of a weight itself is never folded: it would make the file four times as large and cost the runtime
its integer kernels.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.operands import inner_node, operand
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, any_node, rule

# The most steps from the zero point to a value. A product with the scale and the quotient by it are each off by half a
# unit in the last place, which for all of these steps together stays below half a step, so that rounding finds back.
STEPS = {
    ir.DataType.INT4: 15, ir.DataType.UINT4: 15,
    ir.DataType.INT8: 255, ir.DataType.UINT8: 255,
    ir.DataType.INT16: 65535, ir.DataType.UINT16: 65535,
}  # fmt: skip
# The steps up to which that holds (steps * 2 * unit < 1/2) and the largest finite number.
PRECISION = {ir.DataType.FLOAT: (1 << 20, 3.4028234e38), ir.DataType.FLOAT16: (255, 65504.0)}
BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
# Operators that move elements of any type with whole bytes, and since when; a MaxPool takes bytes only.
MOVERS = {
    "Transpose": 1, "Reshape": 5, "Squeeze": 1, "Unsqueeze": 1, "Flatten": 9, "Slice": 1, "Gather": 1, "Expand": 8,
    "Concat": 4, "MaxPool": 12,
}  # fmt: skip


@rule(
    op("QuantizeLinear", op("DequantizeLinear", var("q"), var("scale"), name="dequantize", shared=True), var("again")),
    level=1,
)
def quantize_what_was_dequantized(match: Match) -> Replacement:
    """QuantizeLinear(DequantizeLinear(q, s, z), s, z)  -->  q

    (q - z) * s / s rounds back to q - z for every integer of 4 and 8 bits, of 16 bits with scales in float32. Leaves
    alone other types, scales that are not the same constant or so large that a value overflows, and block-wise scales.
    """
    scale = _undone(match, match.node("dequantize"))
    axes = [nodes.int_attribute(node, "axis", 1) for node in (match.root, match.node("dequantize"))]
    match.require(scale.size == 1 or (scale.ndim == 1 and axes[0] == axes[1]), "the scales belong to different axes")
    return match["q"]


def _undone(match: Match, inner: ir.Node) -> np.ndarray:
    """The scale of both; refuses unless the QuantizeLinear at the root gives back what `inner` has dequantized."""
    outer = match.root
    q, scale, again = nodes.given_input(inner), nodes.given_input(inner, 1), operand(match, 1)
    _require_same_constant(match, scale, again, "the two scales")
    first, second = nodes.input_at(inner, 2), nodes.input_at(outer, 2)
    kind = match.dtype(q)
    match.require(kind in STEPS, f"quantized type is {kind}, not an integer of 4, 8 or 16 bits")
    match.require(match.dtype(match.output) == kind, "the two quantized types differ")
    unit = match.dtype(scale)
    match.require(unit in PRECISION, "the scale is neither float32 nor float16")
    most, largest = PRECISION[unit]
    match.require(STEPS[kind] <= most, f"the steps of {kind.name.lower()} are finer than {unit.name.lower()}")
    if first is None or second is None:
        present = first if second is None else second
        zero = present is None or (match.facts.array(present) is not None and not match.array(present).any())
        match.require(zero, "only one of the two has a zero point")
    else:
        _require_same_constant(match, first, second, "the two zero points")
    factors = match.array(scale).astype(np.float64)
    match.require(np.all(np.isfinite(factors)) and np.all(factors > 0), "a scale is not a positive number")
    match.require(np.all(factors * STEPS[kind] < largest), "a scale is so large that a value overflows")
    blocks = any(nodes.int_attribute(node, "block_size", 0) for node in (outer, inner))
    match.require(not blocks, "the scales are block-wise")
    return match.array(scale)


@any_node("QuantizeLinear", level=1)
def move_integers(match: Match) -> Replacement:
    """QuantizeLinear(Reshape(DequantizeLinear(q, s, z)), s, z)  -->  Reshape(q)

    Likewise Transpose, Squeeze, Unsqueeze, Flatten, Slice, Gather, Expand, Concat of tensors dequantized alike, and a
    MaxPool of bytes, since a positive scale keeps their order. Leaves alone scales per channel, 4-bit integers, and a
    result that is also read as it is.
    """
    mover = inner_node(match, operand(match), *MOVERS)
    if mover is None:
        match.refuse("what is quantized is not moved data, or is read elsewhere too")
    match.require(match.opset >= MOVERS[mover.op_type], f"{mover.op_type} does not take integers yet")
    match.require(len(mover.outputs) == 1, "the indices are read")
    many = len(mover.inputs) if mover.op_type == "Concat" else 1
    moved: list[ir.Value | None] = []
    dequantizers: list[ir.Node] = []
    for value in mover.inputs[:many]:
        inner = inner_node(match, value, "DequantizeLinear", alone=False)
        if inner is None:
            match.refuse("not everything that is moved has been dequantized")
        match.require(_undone(match, inner).size == 1, "there is a scale for each channel")
        moved.append(inner.inputs[0])
        dequantizers.append(inner)
    kind = match.dtype(match.output)
    match.require(kind in BYTES or (STEPS[kind] > 255 and mover.op_type != "MaxPool"), "runtimes do not move this type")
    match.binding.inner.extend([mover, *dict.fromkeys(dequantizers)])
    return match.op(mover.op_type, *moved, *mover.inputs[many:], like=mover)


@any_node("QuantizeLinear", level=1)
def clamp_before_quantizing(match: Match) -> Replacement:
    """QuantizeLinear(Relu(x), s, 0 of uint8)  -->  QuantizeLinear(x, s, 0),  likewise Clip

    where every value that is cut off becomes the lowest or highest integer anyway. Leaves alone a clamp that is read
    elsewhere too, and computed bounds. (A NaN has no integer, with or without a clamp.)
    """
    clamp = inner_node(match, operand(match), "Relu", "Clip")
    if clamp is None or clamp.inputs[0] is None:
        match.refuse("what is quantized is not clamped, or is read elsewhere too")
    source = clamp.inputs[0]
    kind = match.dtype(match.output)
    match.require(kind in STEPS, f"quantized type is {kind}, not an integer of 4, 8 or 16 bits")
    match.require(match.dtype(source) == ir.DataType.FLOAT, "the elements are not float32")
    scale = match.array(operand(match, 1))
    match.require(scale.dtype == np.float32, "the scale is not float32")
    match.require(np.all(np.isfinite(scale)) and np.all(scale > 0), "a scale is not a positive number")
    zero = nodes.input_at(match.root, 2)
    point = np.zeros((), np.int64) if zero is None else match.array(zero).astype(np.int64)
    lowest, highest = _range(kind)
    low, high = (np.float32(0), None) if clamp.op_type == "Relu" else _bounds(match, clamp)
    with np.errstate(over="ignore"):
        cut = low is not None and np.any(np.rint(low / scale) + point > lowest)
        cut = cut or (high is not None and np.any(np.rint(high / scale) + point < highest))
    match.require(not cut, "the clamp cuts off more than the integers do")
    match.binding.inner.append(clamp)
    return match.op("QuantizeLinear", source, *match.root.inputs[1:], like=match.root)


def _range(kind: ir.DataType) -> tuple[int, int]:
    """The lowest and the highest integer of a type."""
    signed = kind in (ir.DataType.INT4, ir.DataType.INT8, ir.DataType.INT16)
    return (-(STEPS[kind] + 1) // 2, STEPS[kind] // 2) if signed else (0, STEPS[kind])


def _bounds(match: Match, clip: ir.Node) -> tuple[np.float32 | None, np.float32 | None]:
    """The bounds of a Clip, None for an absent one; refuses when they are computed or cross."""
    bounds: list[np.float32 | None]
    if match.opset < 11:
        found = [nodes.float_attribute(clip, name, number) for name, number in (("min", -np.inf), ("max", np.inf))]
        bounds = [np.float32(number) for number in found]
    else:
        given = [nodes.input_at(clip, place) for place in (1, 2)]
        bounds = [None if bound is None else np.float32(match.array(bound).item()) for bound in given]
    low, high = bounds
    match.require(low is None or high is None or low <= high, "the bounds cross")
    return low, high


def _require_same_constant(match: Match, one: ir.Value, other: ir.Value, what: str) -> None:
    if one is other:
        match.require(match.facts.is_constant(one), f"{what} are not constant")
        return
    left, right = match.array(one), match.array(other)
    match.require(
        left.dtype == right.dtype and left.size == right.size and np.array_equal(left.reshape(-1), right.reshape(-1)),
        f"{what} differ",
    )


@any_node("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", level=1)
def move_data_before_dequantizing(match: Match) -> Replacement:
    """Transpose(DequantizeLinear(weight, s, z))  -->  DequantizeLinear(Transpose(weight), s, z)

    The inner Transpose is then folded into the stored integers. With a scale per channel only a Transpose can move
    (its axis follows); leaves alone weights that are not constant, and block-wise scales.
    """
    root = match.root
    value = nodes.input_at(root, 0)
    dequantize = None if value is None else value.producer()
    if value is None or dequantize is None or dequantize.op_type != "DequantizeLinear" or dequantize.domain != "":
        match.refuse("it does not read a DequantizeLinear")
    match.require(dequantize.graph is root.graph, "the DequantizeLinear belongs to an outer graph")
    match.require(len(value.uses()) == 1 and not value.is_graph_output(), "the dequantized value is read elsewhere too")
    weight, scale = dequantize.inputs[0], dequantize.inputs[1]
    if weight is None or scale is None or not match.facts.is_constant(weight):
        match.refuse("what is dequantized is not a constant")
    whole = len(weight.uses()) == 1 or match.dtype(weight) in BYTES
    match.require(whole, "the weight is read elsewhere too and would have to be moved in a type that few runtimes move")
    others = root.inputs[1:]
    match.require(all(v is None or match.facts.is_constant(v) for v in others), "the new shape is not constant")
    match.require(not nodes.int_attribute(dequantize, "block_size", 0), "the scales are block-wise")
    sizes = match.static_shape(scale)
    attributes: dict[str, int | None] = {"axis": None}
    if int(np.prod(sizes)) != 1:
        match.require(root.op_type == "Transpose" and len(sizes) == 1, "the scales belong to an axis")
        rank = match.rank(weight)
        axis = nodes.int_attribute(dequantize, "axis", 1) % rank
        perm = permutation(match, root)
        attributes["axis"] = perm.index(axis)
    moved = match.op(root.op_type, weight, *others, like=root)
    return match.op("DequantizeLinear", moved, *dequantize.inputs[1:], like=dequantize, attributes=attributes)


RULES = (
    quantize_what_was_dequantized,
    move_integers,
    clamp_before_quantizing,
    move_data_before_dequantizing,
)
