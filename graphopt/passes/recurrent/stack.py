"""Steps that were taken out of a tensor one by one and stacked again are the tensor, turned or not."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.fusion.private import made_by
from graphopt.passes.operands import read_once
from graphopt.passes.recurrent.steps import cut, run_of
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

BACKWARDS = -(2**63) + 1  # the end of a Slice that runs to the first element


@any_node("Concat", level=1)
def stack_of_steps(match: Match) -> Replacement:
    """Concat(Unsqueeze(x[0]), Unsqueeze(x[1]), ...)  -->  x, a Slice of it, or a Transpose where the axis is another

    for neighboring steps, in order or backwards, each read only here. Leaves alone steps of several tensors.
    """
    root = match.root
    pieces: list[ir.Value] = []
    axis = nodes.int_attribute(root, "axis", 1) % max(match.rank(match.output), 1)
    match.require(len(root.inputs) > 1, "there is one piece only")
    for value in root.inputs:
        node = made_by(value, "Unsqueeze", "Reshape")
        if value is None or node is None or node.inputs[0] is None or node.graph is not root.graph:
            match.refuse("a piece is not a step with a new axis")
        match.require(read_once(node), f"the result of {nodes.describe(node)} is read elsewhere too")
        shape = match.shape(value)
        before = match.shape(node.inputs[0])
        match.require(shape[axis] == 1 and before == (*shape[:axis], *shape[axis + 1 :]), "the new axis is another")
        pieces.append(node.inputs[0])
        match.binding.inner.append(node)
    run = run_of(match.facts, pieces)
    if run is None:
        match.refuse("the pieces are not neighboring steps of one tensor")
    match.require(not run.reverse or match.opset >= 10, "before opset 10 a Slice only runs forwards")
    result = cut(match, run)
    if run.reverse:
        start, stop, step = (match.ints_constant(number) for number in (-1, BACKWARDS, -1))
        result = match.op("Slice", result, start, stop, match.ints_constant(run.axis), step)
    if axis != run.axis:
        order = [place for place in range(match.rank(run.source)) if place != run.axis]
        order.insert(axis, run.axis)
        result = match.op("Transpose", result, attributes={"perm": tuple(order)})
    return result


RULES: tuple[Rule, ...] = (stack_of_steps,)
