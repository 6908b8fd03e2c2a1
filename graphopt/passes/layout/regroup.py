"""Reshape and Flatten: dims that stay together may move together; columns of a flattened tensor may be permuted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.passes.layout.flip import Flat, Flip, Question, copied, labelled, with_ints
from graphopt.passes.layout.permute import Perm, inverse
from graphopt.rewrite.rule import READ_LIMIT, Match


def reshape(question: Question) -> Flip:
    """Reshape(x, [N, C, H * W])  -->  Reshape(x in the other form, [N, H * W, C])"""
    node = question.node
    question.require(question.opset >= 5, "its target is an attribute")
    source, target = _dims(question, question.operand()), _dims(question, node.outputs[0])
    given = question.perm
    before: Perm | None = given
    after: Perm | None = given
    question.require(len(given) == len(target if question.back else source), "the ranks differ")
    if question.back:
        before = regrouped(target, source, given)
    else:
        after = regrouped(source, target, given)
    if before is None or after is None:
        return _flattened(question, source, target)
    numbers = _written(question, source, target, before, after)
    return Flip(labelled({0: before}), labelled({0: after}), with_ints(question, 1, numbers))


def flatten(question: Question) -> Flip:
    """Flatten(x), where the other form has the same order of memory, or what follows can do with another order"""
    source, target = _dims(question, question.operand()), _dims(question, question.node.outputs[0])
    question.require(nodes.int_attribute(question.node, "axis", 1) == 1, "it joins the first axes")
    question.require(not question.back and len(question.perm) == len(source), "it cuts its operand anew")
    if question.perm[0] == 0 and _in_order(source, question.perm):
        return Flip({0: question.perm}, {}, copied(question))
    return _flattened(question, source, target)


def _dims(question: Question, value: ir.Value) -> dims.Dims:
    found = question.facts.shape(value)
    if found is None:
        question.refuse(f"the dims of '{value.name}' are not known")
    return found


def _in_order(source: dims.Dims, perm: Perm) -> bool:
    """Whether only dims of 1 change their places."""
    kept = [axis for axis in perm if source[axis] != 1]
    return kept == sorted(kept)


def regrouped(source: dims.Dims, target: dims.Dims, perm: Perm) -> Perm | None:
    """How the result of a row-major reshape is permuted when its operand is; None where a group is torn apart."""
    groups = _groups(source, target)
    if groups is None:
        return None
    place = inverse(perm)
    order: list[tuple[int, int]] = []
    for number, (before, _) in enumerate(groups):
        kept = [place[axis] for axis in before if source[axis] != 1] or [place[axis] for axis in before]
        if kept != sorted(kept):
            return None
        inside = [axis for axis in perm[kept[0] : kept[-1] + 1] if source[axis] != 1]
        if any(axis not in before for axis in inside):
            return None
        order.append((kept[0], number))
    return tuple(axis for _, number in sorted(order) for axis in groups[number][1])


def _groups(source: dims.Dims, target: dims.Dims) -> list[tuple[list[int], list[int]]] | None:
    """The smallest runs of axes, before and after, with equal numbers of elements."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        before, after = [i], [j]
        left, right = source[i], target[j]
        i, j = i + 1, j + 1
        while left != right:
            if j < len(target) and dims.quotient(left, right) is not None:
                right = dims.product((right, target[j]))
                after.append(j)
                j += 1
            elif i < len(source) and dims.quotient(right, left) is not None:
                left = dims.product((left, source[i]))
                before.append(i)
                i += 1
            else:
                return None
        groups.append((before, after))
    if not groups:
        return None
    if any(dim != 1 for dim in (*source[i:], *target[j:])):
        return None
    groups[-1][0].extend(range(i, len(source)))
    groups[-1][1].extend(range(j, len(target)))
    return groups


def _written(question: Question, source: dims.Dims, target: dims.Dims, before: Perm, after: Perm) -> tuple[int, ...]:
    """The constant target for the other form."""
    known = question.facts.ints(question.operand(1))
    if known is not None and len(known) == len(after):
        moved = tuple(known[axis] for axis in after)
        zeros = [place for place, number in enumerate(moved) if number == 0]
        if all(place < len(before) and source[before[place]] == target[after[place]] for place in zeros):
            return moved
    numbers: list[int] = []
    for place, axis in enumerate(after):
        dim = target[axis]
        if isinstance(dim, int) and dim:
            numbers.append(dim)
        elif place < len(before) and source[before[place]] == dim:
            numbers.append(0)
        else:
            numbers.append(-1)
    question.require(numbers.count(-1) <= 1, "more than one dim of its result is not known")
    question.require(not (-1 in numbers and 0 in numbers), "a dim of its result is not determined")
    return tuple(numbers)


# -- columns ------------------------------------------------------------------------------------------------------


def _flattened(question: Question, source: dims.Dims, target: dims.Dims) -> Flip:
    """[N, C, H, W] made [N, C * H * W]: the columns come in another order."""
    perm = question.perm
    inner = dims.static(source[1:])
    if question.back or inner is None or len(target) != 2 or len(perm) != len(source) or perm[0] != 0:
        question.refuse("it joins and cuts dims that would no longer be next to each other")
    question.require(target[0] == source[0], "it joins and cuts dims that would no longer be next to each other")
    label = Flat(inner, tuple(axis - 1 for axis in perm[1:]))
    return Flip({0: perm}, {0: label}, copied(question))


def product_of_columns(question: Question) -> Flip:
    """Gemm(flattened, W)  -->  Gemm(flattened in the other form, W with its rows permuted)"""
    node, facts, label = question.node, question.facts, question.label
    if not isinstance(label, Flat) or question.back:
        question.refuse("it pairs rows with columns")
    question.require(node.inputs[0] is not node.inputs[1], "it multiplies a tensor with itself")
    question.require(not nodes.int_attribute(node, "transA", 0), "its first operand is transposed")
    weight = question.operand(1)
    question.require(facts.is_constant(weight), "its matrix is not constant")
    rows = 1 if nodes.int_attribute(node, "transB", 0) else 0
    shape = facts.static_shape(weight)
    size = 1
    for dim in label.dims:
        size *= dim
    question.require(shape is not None and len(shape) == 2 and shape[rows] == size, "its matrix has other rows")
    tensor = facts.tensor(weight)
    alone = len(weight.uses()) == 1
    question.require(tensor is None or (alone and tensor.nbytes <= READ_LIMIT), "its matrix is read elsewhere too")

    def build(match: Match, inputs: Sequence[ir.Value | None]) -> ir.Node:
        order = np.arange(size).reshape(label.dims).transpose(label.perm).reshape(-1)
        permuted = match.constant(np.take(match.array(weight), order, axis=rows), match.dtype(weight))
        return match.node_of(node.op_type, inputs[0], permuted, *inputs[2:], like=node)

    return Flip({0: label}, {}, build)
