"""Reductions beside Squeeze, Unsqueeze, Reshape, Transpose and other reductions."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.operators.table import REDUCTIONS, RESHAPES
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.operands import FLOATS, inner_node, operand
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import AttributeValue, Match, Replacement, Rule, any_node, rule

ARGUMENTS = ("ArgMax", "ArgMin")
# Those that give back the element when there is one.
OF_ONE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")


def axes_of(match: Match, node: ir.Node) -> tuple[int, ...]:
    """The reduced axes, non-negative and sorted; refuses when they are not known."""
    source = nodes.given_input(node)
    rank = match.rank(source)
    axes = match.parameter(node, "axes")
    if not axes:
        if nodes.int_attribute(node, "noop_with_empty_axes", 0):
            return ()
        return tuple(range(rank))
    match.require(all(-rank <= axis < rank for axis in axes), "an axis lies outside the rank")
    return tuple(sorted(axis % rank for axis in axes))


def build(match: Match, node: ir.Node, source: ir.Value, axes: tuple[int, ...], keepdims: int) -> ir.Value:
    """The reduction `node` over other axes of another value."""
    attributes: dict[str, AttributeValue | None] = {"keepdims": keepdims, "noop_with_empty_axes": None, "axes": axes}
    return match.op(node.op_type, source, attributes=attributes, like=node)


@any_node(*RESHAPES, level=1)
def reduce_then_reshape(match: Match) -> Replacement:
    """Squeeze(ReduceMean(x, axes, keepdims=1), axes)  -->  ReduceMean(x, axes, keepdims=0), and back with Unsqueeze

    for every reduction, ArgMax and ArgMin, also where a Reshape or Flatten adds or drops exactly those dimensions.
    """
    inner = inner_node(match, operand(match), *REDUCTIONS, *ARGUMENTS)
    if inner is None:
        match.refuse("the operand is not a reduction read here alone")
    source = nodes.given_input(inner)
    keep = nodes.int_attribute(inner, "keepdims", 1)
    shape = match.shape(source)
    if inner.op_type in ARGUMENTS:
        axes: tuple[int, ...] = (nodes.int_attribute(inner, "axis", 0) % len(shape),)
    else:
        axes = axes_of(match, inner)
    match.require(axes, "nothing is reduced")
    if keep:
        wanted = tuple(dim for axis, dim in enumerate(shape) if axis not in axes)
    else:
        wanted = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    match.require(match.shape(match.output) == wanted, "other dimensions than the reduced ones come or go")
    match.binding.inner.append(inner)
    return match.op(inner.op_type, *inner.inputs, attributes={"keepdims": 0 if keep else 1}, like=inner)


def _reduction_of_reduction(kind: str) -> Rule:
    def merge(match: Match) -> Replacement:
        """ReduceSum(ReduceSum(x, [3]), [2])  -->  ReduceSum(x, [2, 3])

        Likewise Max, Min, Prod, and Mean of floats with known dims (an integer mean drops a remainder). Leaves alone
        an inner reduction that keeps dims under an outer one that does not, unless nothing of it remains.
        """
        inner = match.node("inner")
        if kind == "ReduceMean":
            match.require(match.dtype("x") in FLOATS, "an integer mean drops the remainder")
            match.static_shape("x")
        keep_inner = nodes.int_attribute(inner, "keepdims", 1)
        keep_outer = nodes.int_attribute(match.root, "keepdims", 1)
        match.require(keep_inner == keep_outer, "only one of the reductions keeps its dimensions")
        first, second = axes_of(match, inner), axes_of(match, match.root)
        rank = match.rank("x")
        match.require(first and second, "nothing is reduced")
        if not keep_inner:
            remaining = [axis for axis in range(rank) if axis not in first]
            second = tuple(remaining[axis] for axis in second)
        match.require(not set(first) & set(second), "the reductions share an axis")
        return build(match, match.root, match["x"], tuple(sorted(first + second)), keep_outer)

    name = f"{kind.removeprefix('Reduce').lower()}-of-{kind.removeprefix('Reduce').lower()}-reduction"
    return rule(op(kind, op(kind, var("x"), name="inner")), level=1, name=name)(merge)


MERGED = tuple(_reduction_of_reduction(kind) for kind in OF_ONE)


@any_node(*OF_ONE, level=1)
def reduce_of_one(match: Match) -> Replacement:
    """ReduceSum(x, axes of length 1, keepdims=1)  -->  x,  with keepdims=0  -->  Squeeze(x, axes)

    Likewise Mean, Max, Min, Prod; and any of them over no axes (noop_with_empty_axes).
    """
    value = operand(match)
    axes = axes_of(match, match.root)
    shape = match.shape(value)
    match.require(all(shape[axis] == 1 for axis in axes), "more than one element is reduced")
    if nodes.int_attribute(match.root, "keepdims", 1) or not axes:
        return value
    return match.op("Squeeze", value, attributes={"axes": axes})


@any_node(*REDUCTIONS, level=1)
def reduce_of_transpose(match: Match) -> Replacement:
    """ReduceMean(Transpose(x, NHWC to NCHW), [2, 3], keepdims=0)  -->  ReduceMean(x, [1, 2], keepdims=0)

    when the remaining dimensions come in the order they have in x.
    """
    value = operand(match)
    inner = inner_node(match, value, "Transpose")
    if inner is None:
        match.refuse("the operand is not a Transpose read here alone")
    source = nodes.given_input(inner)
    axes = axes_of(match, match.root)
    match.require(axes, "nothing is reduced")
    perm = permutation(match, inner)
    keep = nodes.int_attribute(match.root, "keepdims", 1)
    if keep:
        order = [axis if place not in axes else place for place, axis in enumerate(perm)]
        match.require(order == list(range(len(perm))), "the remaining dimensions change places")
    remaining = [axis for place, axis in enumerate(perm) if place not in axes]
    match.require(remaining == sorted(remaining), "the remaining dimensions change places")
    match.binding.inner.append(inner)
    return build(match, match.root, source, tuple(sorted(perm[axis] for axis in axes)), keep)


RULES: tuple[Rule, ...] = (reduce_then_reshape, *MERGED, reduce_of_one, reduce_of_transpose)
