"""Normalization over the last axes that is spelled out becomes LayerNormalization or RMSNormalization.

In steps: the division by the deviation becomes an operator with a scale of ones, and then the product and the sum
behind it become its scale and bias. The same last steps serve a LayerNormalization that was there from the beginning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.constants import Array
from graphopt.passes.fusion.private import made_by, require_private
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

# Doubles stay: both operators compute in float32 (stash_type 1), and runtimes know no other.
TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
NORMS = ("LayerNormalization", "RMSNormalization")


@dataclass(frozen=True, slots=True)
class _Division:
    """centred / Sqrt(ReduceMean(centred ** 2) + epsilon), over the axes from `axis` on."""

    centred: ir.Value
    others: tuple[ir.Value, ...]  # values that must be equal to `centred`: the same Sub computed twice
    axis: int
    epsilon: float
    group: tuple[ir.Node, ...]


@any_node("Div", "Mul", level=2)
def layer_normalization(match: Match) -> Replacement:
    """(x - mean) / Sqrt(ReduceMean((x - mean)^2) + e)  -->  LayerNormalization(x, ones), mean = ReduceMean(x)

    From opset 17 on. Squares may be Pow or Mul, the division a product with Reciprocal or a power. Leaves alone what
    is not over the last axes, and intermediate results that are read elsewhere.
    """
    match.require(match.opset >= 17, "LayerNormalization came with opset 17")
    found = _division(match)
    group = list(found.group)
    x: ir.Value | None = None
    for centred in dict.fromkeys((found.centred, *found.others)):
        sub = made_by(centred, "Sub")
        mean = None if sub is None else made_by(sub.inputs[1], "ReduceMean")
        if sub is None or mean is None or mean.inputs[0] is not sub.inputs[0]:
            match.refuse("what is divided is not x - ReduceMean(x)")
        source = nodes.given_input(sub)
        match.require(x is None or x is source, "two different tensors are centred")
        match.require(_last_axes(match, mean) == found.axis, "the mean is over other axes than the variance")
        x = source
        group += [sub, mean]
    assert x is not None, "there is at least one centred value"
    require_private(match, group)
    return _normalized(match, "LayerNormalization", x, found)


@any_node("Div", "Mul", level=2)
def rms_normalization(match: Match) -> Replacement:
    """x / Sqrt(ReduceMean(x^2) + e)  -->  RMSNormalization(x, ones)      (opset 23 on)"""
    match.require(match.opset >= 23, "RMSNormalization came with opset 23")
    found = _division(match)
    match.require(not found.others, "what is squared is not what is divided")
    require_private(match, found.group)
    return _normalized(match, "RMSNormalization", found.centred, found)


def spelled_rms(match: Match) -> tuple[ir.Value, float]:
    """The x and the epsilon of x / Sqrt(ReduceMean(x^2) + epsilon) over the last axis; refuses another formula."""
    found = _division(match)
    match.require(not found.others, "what is squared is not what is divided")
    match.require(found.axis == match.rank(found.centred) - 1, "it is not over the last axis")
    match.require(match.shape(match.output) == match.shape(found.centred), "a constant widens the tensor")
    require_private(match, found.group)
    return found.centred, found.epsilon


def _normalized(match: Match, kind: str, x: ir.Value, found: _Division) -> ir.Value:
    shape = match.shape(x)
    match.require(match.shape(match.output) == shape, "a constant widens the tensor")
    match.require(match.dtype(x) in TYPES, "only float and float16 have the operator in runtimes")
    sizes = shape[found.axis :]
    known = tuple(size for size in sizes if isinstance(size, int))
    match.require(len(known) == len(sizes) and math.prod(known) > 0, "the size of the normalized axes is not known")
    ones = match.constant(np.ones(known, match.dtype(x).numpy()))
    attributes = {"axis": None if len(known) == 1 else -len(known), "epsilon": found.epsilon}
    return match.op(kind, x, ones, attributes=attributes)


def _division(match: Match) -> _Division:
    """Read the root as a value over its deviation."""
    root = match.root
    left, right = root.inputs[0], root.inputs[1]
    assert left is not None and right is not None, "both operands are given"
    if root.op_type == "Div":
        pairs = [(left, _under_root(match, right))]
    else:
        pairs = [(left, _under_inverse_root(match, right)), (right, _under_inverse_root(match, left))]
    for centred, under in pairs:
        if under is None:
            continue
        shifted, group = under
        return _variance(match, centred, shifted, group)
    match.refuse("it does not divide by a square root")


Under = tuple[ir.Value, tuple[ir.Node, ...]] | None  # what stands under the root, and the nodes passed


def _under_root(match: Match, value: ir.Value) -> Under:
    """v of Sqrt(v) or Pow(v, 0.5)."""
    node = made_by(value, "Sqrt", "Pow")
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Pow" and match.facts.scalar(node.inputs[1]) != 0.5:
        return None
    return node.inputs[0], (node,)


def _under_inverse_root(match: Match, value: ir.Value) -> Under:
    """v of Reciprocal(Sqrt(v)), 1 / Sqrt(v) or Pow(v, -0.5)."""
    node = made_by(value, "Reciprocal", "Div", "Pow")
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Pow":
        return (node.inputs[0], (node,)) if match.facts.scalar(node.inputs[1]) == -0.5 else None
    below = node.inputs[0]
    if node.op_type == "Div":
        if match.facts.scalar(below) != 1 or node.inputs[1] is None:
            return None
        below = node.inputs[1]
    under = _under_root(match, below)
    return None if under is None else (under[0], (node, *under[1]))


def _variance(match: Match, centred: ir.Value, shifted: ir.Value, group: tuple[ir.Node, ...]) -> _Division:
    """Read ReduceMean(centred ** 2) + epsilon."""
    total = made_by(shifted, "Add")
    if total is None:
        match.refuse("no epsilon is added under the root")
    first, second = total.inputs[0], total.inputs[1]
    mean, number = made_by(first, "ReduceMean"), match.facts.scalar(second)
    if mean is None:
        mean, number = made_by(second, "ReduceMean"), match.facts.scalar(first)
    if mean is None or number is None:
        match.refuse("what stands under the root is not a mean plus a number")
    match.require(0 <= number < 1, "epsilon is not a small number")
    square = made_by(mean.inputs[0], "Pow", "Mul")
    if square is None:
        match.refuse("the mean is not over squares")
    if square.op_type == "Pow":
        match.require(match.facts.scalar(square.inputs[1]) == 2, "the power is not 2")
        bases = [square.inputs[0]]
    else:
        bases = list(square.inputs)
    others = tuple(base for base in bases if base is not None and base is not centred)
    return _Division(centred, others, _last_axes(match, mean), float(number), (*group, total, mean, square))


def _last_axes(match: Match, reduction: ir.Node) -> int:
    """The first of the axes a reduction runs over, counted from the front; refuses unless they are the last ones."""
    value = nodes.given_input(reduction)
    rank = match.rank(value)
    match.require(nodes.int_attribute(reduction, "keepdims", 1) == 1, "the reduction drops its axes")
    match.require(nodes.int_attribute(reduction, "noop_with_empty_axes", 0) == 0, "the axes may be none")
    given = match.parameter(reduction, "axes", "the axes of the mean")
    axes = sorted(axis % rank for axis in given) if given else list(range(rank))
    match.require(axes and axes == list(range(axes[0], rank)), "the mean is not over the last axes")
    return axes[0]


# -- the scale and the bias behind ------------------------------------------------------------------------------------


@any_node("Mul", level=2)
def scale_of_normalization(match: Match) -> Replacement:
    """LayerNormalization(x, a, b) * c  -->  LayerNormalization(x, a c, b c)      (RMSNormalization alike)

    c is constant and has the normalized shape, or is a single number; it may be computed where a is all ones and
    there is no b.
    """
    norm, other = _norm_and_operand(match, *NORMS)
    scale, bias = nodes.given_input(norm, 1), _bias(match, norm)
    shape = match.static_shape(scale)
    if match.facts.is_constant(other) and (bias is None or match.facts.is_constant(bias)):
        numbers = _over_axes(match, other, shape)
        parts = [match.array(scale), *([] if bias is None else [match.array(bias)])]
        kind = match.dtype(scale)
        folded = [_times(match, part, numbers, shape, kind) for part in parts]
        constants_made = [match.constant(part, kind) for part in folded]
        return match.op(norm.op_type, norm.inputs[0], *constants_made, like=norm)
    array = match.array(scale)
    match.require(bias is None and bool((array == 1).all()), "the scale it has already is not all ones")
    match.require(match.shape(other) == shape, f"'{other.name}' has not the normalized shape")
    return match.op(norm.op_type, norm.inputs[0], other, like=norm)


@any_node("Add", level=2)
def bias_of_normalization(match: Match) -> Replacement:
    """LayerNormalization(x, a) + b  -->  LayerNormalization(x, a, b)

    A constant b is added to one that is there; a computed one needs the normalized shape.
    """
    norm, other = _norm_and_operand(match, "LayerNormalization")
    scale, bias = nodes.given_input(norm, 1), _bias(match, norm)
    shape = match.static_shape(scale)
    if not match.facts.is_constant(other):
        match.require(bias is None, "it has a bias already")
        match.require(match.shape(other) == shape, f"'{other.name}' has not the normalized shape")
        return match.op("LayerNormalization", norm.inputs[0], scale, other, like=norm)
    numbers = _over_axes(match, other, shape)
    if bias is not None:
        numbers = numbers + match.array(bias).astype(np.float64)
    kind = match.dtype(scale)
    full = np.ascontiguousarray(np.broadcast_to(numbers, shape)).astype(kind.numpy())
    match.require(np.isfinite(full.astype(np.float64)).all(), "the bias is infinite or not a number")
    return match.op("LayerNormalization", norm.inputs[0], scale, match.constant(full, kind), like=norm)


def _norm_and_operand(match: Match, *kinds: str) -> tuple[ir.Node, ir.Value]:
    """The normalization under the root and the root's other operand."""
    left, right = match.root.inputs[0], match.root.inputs[1]
    assert left is not None and right is not None, "both operands are given"
    for value, other in ((left, right), (right, left)):
        norm = made_by(value, *kinds)
        if norm is None or value.index() != 0 or value is other:
            continue
        match.require(nodes.int_attribute(norm, "stash_type", 1) == 1, "it does not compute in float32")
        require_private(match, [norm])
        match.require(match.shape(value) == match.shape(match.output), f"'{other.name}' widens the tensor")
        return norm, other
    match.refuse("no operand is a normalization")


def _bias(match: Match, norm: ir.Node) -> ir.Value | None:
    """The bias of a normalization, which may have more axes than its scale: then nothing is folded into it."""
    bias = nodes.input_at(norm, 2)
    alike = bias is None or match.shape(bias) == match.shape(nodes.given_input(norm, 1))
    match.require(alike, "scale and bias differ in shape")
    return bias


def _over_axes(match: Match, constant: ir.Value, shape: tuple[int, ...]) -> Array:
    """A constant that has the normalized shape, with leading ones or as a single number, in float64."""
    array = match.array(constant)
    if array.size != 1:
        lead = array.ndim - len(shape)
        fits = lead >= 0 and array.shape[lead:] == shape and all(size == 1 for size in array.shape[:lead])
        match.require(fits, f"'{constant.name}' has not the normalized shape")
    return constants.reshape(array, () if array.size == 1 else shape).astype(np.float64)


def _times(match: Match, array: Array, numbers: Array, shape: tuple[int, ...], kind: ir.DataType) -> Array:
    with np.errstate(over="ignore"):
        result = np.broadcast_to(array.astype(np.float64) * numbers, shape).astype(kind.numpy())
    match.require(np.isfinite(result.astype(np.float64)).all(), f"the folded scale does not fit {kind.name}")
    return np.ascontiguousarray(result)


RULES: tuple[Rule, ...] = (
    layer_normalization,
    rms_normalization,
    scale_of_normalization,
    bias_of_normalization,
)
