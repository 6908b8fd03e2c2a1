"""Operators that name axes, by an attribute or by an input: the names change, the rest stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.operators.axes import Axes, AxesOf
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.reshaping import named_axes
from graphopt.passes.layout.elementwise import unary
from graphopt.passes.layout.flip import Build, Flip, Question, copied, labelled, permutation, with_ints
from graphopt.passes.layout.permute import Perm, between, moved, paired, with_axes, without
from graphopt.rewrite.rule import Match


def described(question: Question, rule: AxesOf) -> Flip:
    """An operator whose record says its axes: the names change, bound axes that no name tells keep their places."""
    node = question.node
    try:
        axes = rule(node, question.facts)
    except Unclear as unclear:
        question.refuse(str(unclear))
    if not axes.bound:
        return unary(question)
    perm, after = _reduced(question, axes.rank, axes.bound, not axes.gone)
    alike = all(question.rank(question.operand(index)) == axes.rank for index in range(axes.operands))
    question.require(alike, "the ranks differ")
    if axes.fixed:
        question.require(all(perm[axis] == axis for axis in axes.bound), axes.fixed)
    results = dict.fromkeys(range(len(node.outputs)), after)
    return Flip(labelled(dict.fromkeys(range(axes.operands), perm)), labelled(results), _renamed(question, axes, perm))


def _renamed(question: Question, axes: Axes, perm: Perm) -> Build:
    """The same node with the names that its axes have in the other form."""
    names = sorted(moved(axis, perm) for axis in axes.names)
    return copied(question, {} if axes.place is None else {axes.place: names if axes.place == "axes" else names[0]})


def size(question: Question) -> Flip:
    """Size(x)"""
    return Flip({0: question.full(question.operand())}, {}, copied(question))


def _reduced(question: Question, rank: int, gone: Collection[int], keep: bool) -> tuple[Perm, Perm]:
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


def unsqueeze(question: Question) -> Flip:
    """Unsqueeze<axes>(x)"""
    try:
        axes = named_axes(question.node, question.facts)
    except Unclear as unclear:
        question.refuse(str(unclear))
    rank = question.rank(question.operand()) + len(axes)
    places = {axis % rank for axis in axes}
    if question.back:
        after = question.perm
        question.require(len(after) == rank, "the rank of its result is another one")
        perm = without(after, places)
    else:
        perm = question.full(question.operand())
        after = with_axes(perm, places)
    new = sorted(moved(axis, after) for axis in places)
    return Flip(labelled({0: perm}), labelled({0: after}), copied(question, {"axes": new}))


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


def matmul(question: Question) -> Flip:
    """MatMul(x, W) with a matrix W, where the last axis stays the last"""
    question.require(question.rank(question.operand(1)) == 2, "it pairs the matrices of two stacks")
    perm = question.full(question.operand())
    question.require(perm[-1] == len(perm) - 1, "it works on the last axes")
    return Flip({0: perm}, {0: perm}, copied(question))


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
