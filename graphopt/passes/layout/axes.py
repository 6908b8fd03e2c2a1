"""Operators that name axes, by an attribute or by an input: the names change, the rest stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.layout.flip import Build, Flip, Question, copied, labelled, permutation, with_ints
from graphopt.passes.layout.permute import Perm, between, moved, paired, with_axes, without
from graphopt.rewrite.rule import Match

AXES_INPUT = {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13}  # since when; the other reductions since 18


def one_axis(question: Question, default: int, first: int = 1) -> Flip:
    """An operator with the attribute `axis`, all of whose tensors (the first `first` inputs) are laid out alike."""
    node = question.node
    perm = question.full(question.operand())
    question.require(all(question.rank(question.operand(i)) == len(perm) for i in range(first)), "the ranks differ")
    axis = nodes.int_attribute(node, "axis", default)
    inputs = dict.fromkeys(range(first), perm)
    outputs = dict.fromkeys(range(len(node.outputs)), perm)
    return Flip(labelled(inputs), labelled(outputs), copied(question, {"axis": moved(axis, perm)}))


def concat(question: Question) -> Flip:
    """Concat<axis>(x, y, ...)"""
    question.require("axis" in question.node.attributes, "it lacks its axis")
    return one_axis(question, 0, len(question.node.inputs))


def split(question: Question) -> Flip:
    """Split<axis>(x, sizes)"""
    question.require(question.opset >= 2, "its sizes are an input")
    return one_axis(question, 0)


def last_axis_by_default(question: Question) -> Flip:
    """LpNormalization, TopK"""
    return one_axis(question, -1)


def softmax(question: Question) -> Flip:
    """Softmax<axis>(x); before opset 13 the axes from `axis` on were flattened into one."""
    question.require(question.opset >= 13, "it flattens its operand before opset 13")
    return one_axis(question, -1)


def elements(question: Question) -> Flip:
    """GatherElements and ScatterElements: all operands are laid out alike."""
    return one_axis(question, 0, len(question.node.inputs))


def reduce(question: Question) -> Flip:
    """ReduceMean<axes, keepdims>(x), the axes an attribute or an input."""
    node, opset = question.node, question.opset
    value = question.operand()
    rank = question.rank(value)
    keep = nodes.int_attribute(node, "keepdims", 1)
    as_input = opset >= AXES_INPUT.get(node.op_type, 18)
    given = nodes.input_at(node, 1) if as_input else None
    if as_input:
        axes = None if given is None else question.ints(1, "the list of axes")
    else:
        axes = nodes.ints_attribute(node, "axes")
    if not axes:
        axes = None
        if as_input and nodes.int_attribute(node, "noop_with_empty_axes", 0):
            perm = question.full(value)
            return Flip({0: perm}, {0: perm}, copied(question))
    gone = tuple(range(rank)) if axes is None else axes
    perm, after = _reduced(question, rank, gone, bool(keep))
    if axes is None:
        return Flip(labelled({0: perm}), labelled({0: after}), copied(question))
    new = sorted(moved(axis, perm) for axis in axes)
    build = with_ints(question, 1, new) if as_input else copied(question, {"axes": new})
    return Flip(labelled({0: perm}), labelled({0: after}), build)


def mean_variance(question: Question) -> Flip:
    """MeanVarianceNormalization<axes>(x)"""
    perm = question.full(question.operand())
    axes = nodes.ints_attribute(question.node, "axes") or (0, 2, 3)
    question.require(max(axes) < len(perm), "its axes lie outside")
    return Flip({0: perm}, {0: perm}, copied(question, {"axes": sorted(moved(axis, perm) for axis in axes)}))


def size(question: Question) -> Flip:
    """Size(x)"""
    return Flip({0: question.full(question.operand())}, {}, copied(question))


def _reduced(question: Question, rank: int, gone: Sequence[int], keep: bool) -> tuple[Perm, Perm]:
    """The permutations of operand and result of an operator that takes axes away (or leaves them with length 1)."""
    if keep:
        question.require(len(question.perm) == rank, "its operands are of different rank")
        return question.perm, question.perm
    places = {axis % rank for axis in gone}
    if question.back:
        perm = with_axes(question.perm, places)
        question.require(len(perm) == rank, "the rank of its result is another one")
        return perm, question.perm
    question.require(len(question.perm) == rank, "the rank of its operand is another one")
    return question.perm, without(question.perm, places)


def argument(question: Question) -> Flip:
    """ArgMax<axis, keepdims>(x)"""
    node = question.node
    rank = question.rank(question.operand())
    axis = nodes.int_attribute(node, "axis", 0)
    perm, after = _reduced(question, rank, (axis,), bool(nodes.int_attribute(node, "keepdims", 1)))
    return Flip(labelled({0: perm}), labelled({0: after}), copied(question, {"axis": moved(axis, perm)}))


def gather(question: Question) -> Flip:
    """Gather<axis>(x, indices), the indices a number or a vector."""
    node = question.node
    rank = question.rank(question.operand())
    axis = nodes.int_attribute(node, "axis", 0)
    indices = question.rank(question.operand(1))
    question.require(indices < 2, "its indices have several axes")
    perm, after = _reduced(question, rank, (axis,), indices == 1)
    return Flip(labelled({0: perm}), labelled({0: after}), copied(question, {"axis": moved(axis, perm)}))


def squeeze(question: Question) -> Flip:
    """Squeeze<axes>(x)"""
    rank = question.rank(question.operand())
    axes = _listed(question)
    perm, after = _reduced(question, rank, axes, False)
    return Flip(labelled({0: perm}), labelled({0: after}), _relisted(question, [moved(a, perm) for a in axes]))


def unsqueeze(question: Question) -> Flip:
    """Unsqueeze<axes>(x)"""
    axes = _listed(question)
    rank = question.rank(question.operand()) + len(axes)
    places = {axis % rank for axis in axes}
    if question.back:
        after = question.perm
        question.require(len(after) == rank, "the rank of its result is another one")
        perm = without(after, places)
    else:
        perm = question.full(question.operand())
        after = with_axes(perm, places)
    return Flip(labelled({0: perm}), labelled({0: after}), _relisted(question, [moved(a, after) for a in places]))


def _listed(question: Question) -> tuple[int, ...]:
    if question.opset < 13:
        axes = nodes.ints_attribute(question.node, "axes")
    else:
        axes = None if nodes.input_at(question.node, 1) is None else question.ints(1, "the list of axes")
    if axes is None:
        question.refuse("it does not say its axes")
    return axes


def _relisted(question: Question, axes: Sequence[int]) -> Build:
    new = sorted(axes)
    return copied(question, {"axes": new}) if question.opset < 13 else with_ints(question, 1, new)


def cumsum(question: Question) -> Flip:
    """CumSum(x, axis)"""
    value = question.operand()
    perm = question.full(value)
    axis = question.ints(1, "the axis")[0]
    kind = question.facts.dtype(question.operand(1)) or ir.DataType.INT64
    place = moved(axis, perm)

    def build(match: Match, inputs: Sequence[ir.Value | None]) -> ir.Node:
        given = match.constant(np.array(place, kind.numpy()), kind)
        return match.node_of("CumSum", inputs[0], given, like=question.node)

    return Flip({0: perm}, {0: perm}, build)


def pad(question: Question) -> Flip:
    """Pad(x, pads, value, axes): the pads are permuted where they are constant, else the axes say whose they are."""
    node, opset = question.node, question.opset
    perm = question.full(question.operand())
    same = {0: perm}
    if opset < 11:
        pads = nodes.ints_attribute(node, "pads")
        if pads is None or len(pads) != 2 * len(perm):
            question.refuse("its pads are not those of every axis")
        return Flip(labelled(same), labelled(same), copied(question, {"pads": paired(pads, perm)}))
    if nodes.input_at(node, 3) is not None:
        axes = [moved(axis, perm) for axis in question.ints(3, "the list of axes")]
        return Flip(labelled(same), labelled(same), with_ints(question, 3, axes))
    known = question.facts.ints(question.operand(1))
    if known is not None and len(known) == 2 * len(perm):
        return Flip(labelled(same), labelled(same), with_ints(question, 1, paired(known, perm)))
    question.require(opset >= 18, "its pads are not constant")
    return Flip(labelled(same), labelled(same), with_ints(question, 3, [moved(a, perm) for a in range(len(perm))]))


def slice_(question: Question) -> Flip:
    """Slice(x, starts, ends, axes, steps)"""
    node = question.node
    perm = question.full(question.operand())
    if question.opset < 10:
        starts = nodes.ints_attribute(node, "starts") or ()
        axes = nodes.ints_attribute(node, "axes") or tuple(range(len(starts)))
        new = [moved(axis, perm) for axis in axes]
        return Flip({0: perm}, {0: perm}, copied(question, {"axes": new}))
    if nodes.input_at(node, 3) is not None:
        axes = question.ints(3, "the list of axes")
    else:
        length = question.facts.static_shape(question.operand(1))
        if length is None:
            question.refuse("the number of its axes is not known")
        axes = tuple(range(length[0]))
    kind = question.facts.dtype(question.operand(1)) or ir.DataType.INT64
    return Flip({0: perm}, {0: perm}, with_ints(question, 3, [moved(axis, perm) for axis in axes], kind))


def tile(question: Question) -> Flip:
    """Tile(x, repeats)"""
    perm = question.full(question.operand())
    question.require(question.opset >= 6, "it tiles one axis")
    repeats = question.ints(1, "the list of repeats")
    return Flip({0: perm}, {0: perm}, with_ints(question, 1, [repeats[axis] for axis in perm]))


def expand(question: Question) -> Flip:
    """Expand(x, shape)"""
    perm = question.full(question.operand())
    shape = question.ints(1, "the shape")
    question.require(len(shape) <= len(perm), "its result has a higher rank")
    full = (1,) * (len(perm) - len(shape)) + shape
    return Flip({0: perm}, {0: perm}, with_ints(question, 1, [full[axis] for axis in perm]))


def shape(question: Question) -> Flip:
    """Shape(x)  -->  Gather(Shape(x in the other form), the old order)"""
    question.require(not len(question.node.attributes), "it gives a part of the shape")
    perm = question.full(question.operand())
    order = [perm.index(axis) for axis in range(len(perm))]

    def build(match: Match, inputs: Sequence[ir.Value | None]) -> ir.Node:
        whole = match.op("Shape", inputs[0])
        return match.node_of("Gather", whole, match.ints_constant(*order), attributes={"axis": 0})

    return Flip({0: perm}, {}, build, 1)


def trailing(question: Question, normalized: int) -> Flip:
    """An operator on the last axes: the axes in front of them may change places."""
    perm = question.full(question.operand())
    rank = len(perm)
    question.require(perm[rank - normalized :] == tuple(range(rank - normalized, rank)), "it works on the last axes")
    return Flip({0: perm}, {0: perm}, copied(question))


def layer_normalization(question: Question) -> Flip:
    """LayerNormalization<axis>(x, scale, bias), where the last axes stay the last"""
    node = question.node
    question.require(all(not nodes.is_used(output) for output in node.outputs[1:]), "it has several results")
    rank = question.rank(question.operand())
    return trailing(question, rank - nodes.int_attribute(node, "axis", -1) % rank)


def matmul(question: Question) -> Flip:
    """MatMul(x, W) with a matrix W, where the last axis stays the last"""
    question.require(question.rank(question.operand(1)) == 2, "it pairs the matrices of two stacks")
    return trailing(question, 1)


def transpose(question: Question) -> Flip:
    """A Transpose of other axes stays, with another permutation."""
    node = question.node
    source, perm = question.perm, permutation(question.facts, node)
    if perm is None or len(perm) != len(source):
        question.refuse("its permutation is not known")
    changed = between(source, perm, source)

    def build(match: Match, inputs: Sequence[ir.Value | None]) -> ir.Node:
        return match.node_of("Transpose", inputs[0], attributes={"perm": changed})

    return Flip({0: source}, {0: source}, build)
