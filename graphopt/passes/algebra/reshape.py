"""Chains of Reshape, Flatten, Squeeze and Unsqueeze: one of them, or none; dims of 1 that a broadcast brings."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.operators.table import BROADCASTING, RESHAPES
from graphopt.passes.operands import inner_node, operand
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node


def reshape_target(match: Match, value: ir.Value, result: dims.Dims) -> tuple[int, ...]:
    """The constant that reshapes `value` to `result`: a 0 copies a dim of the source, one -1 stands for the rest.

    Refuses where that does not suffice: two symbols in other places, a -1 beside a symbol (which may be 0 at run time,
    and then the rest is not determined), or a dimension of 0 that is not copied.
    """
    source = match.shape(value)
    target: list[int] = []
    rests = copies = 0
    for axis, dim in enumerate(result):
        if isinstance(dim, int) and dim != 0:
            target.append(dim)
        elif axis < len(source) and source[axis] == dim:
            target.append(0)
            copies += 1
        else:
            match.require(not isinstance(dim, int), "a dimension of 0 would have to be written as 0, which copies")
            target.append(-1)
            rests += 1
    match.require(rests <= 1, "more than one dimension is not known")
    match.require(not (rests and copies), "a -1 is not determined where another dimension may be 0")
    return tuple(target)


def _axes(match: Match, node: ir.Node) -> tuple[int, ...]:
    """The axes of a Squeeze or Unsqueeze, non-negative and sorted; refuses when they are not known."""
    axes = match.parameter(node, "axes")
    source = node.inputs[0]
    match.require(axes and source is not None, f"{nodes.describe(node)} does not say its axes")
    assert axes and source is not None
    if min(axes) >= 0:
        return tuple(sorted(axes))
    rank = match.rank(source) + (len(axes) if node.op_type == "Unsqueeze" else 0)
    return tuple(sorted(axis % rank for axis in axes))


def _inner(match: Match, *types: str) -> tuple[ir.Node, ir.Value]:
    """The node above and its source. It may have other readers: it stays for them, and nothing is added."""
    node = inner_node(match, operand(match), *types, alone=False)
    source = None if node is None else nodes.input_at(node, 0)
    if node is None or source is None:
        match.refuse(f"the operand is not computed by {' or '.join(types)}")
    match.binding.inner.append(node)
    return node, source


@any_node("Unsqueeze", level=1)
def unsqueeze_of_unsqueeze(match: Match) -> Replacement:
    """Unsqueeze(Unsqueeze(x, a), b)  -->  Unsqueeze(x, a and b)"""
    inner, source = _inner(match, "Unsqueeze")
    first, second = _axes(match, inner), _axes(match, match.root)
    return match.op("Unsqueeze", source, attributes={"axes": _inserted(first, second)})


def _inserted(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Places in the result of the dimensions inserted at `first`, and then at `second`."""
    places = list(second)
    kept: list[int] = []
    place = passed = 0
    while len(kept) < len(first):
        if place not in second:
            if passed in first:
                kept.append(place)
            passed += 1
        place += 1
    return tuple(sorted(places + kept))


@any_node("Squeeze", level=1)
def squeeze_of_squeeze(match: Match) -> Replacement:
    """Squeeze(Squeeze(x, a), b)  -->  Squeeze(x, a and b)"""
    inner, source = _inner(match, "Squeeze")
    first, second = _axes(match, inner), _axes(match, match.root)
    # Backwards: the dimensions that the outer one removed are put in, then those that the inner one removed.
    return match.op("Squeeze", source, attributes={"axes": _inserted(second, first)})


@any_node("Squeeze", level=1)
def squeeze_of_unsqueeze(match: Match) -> Replacement:
    """Squeeze(Unsqueeze(x, a), b)  -->  x for equal axes, Unsqueeze(x, rest) or Squeeze(x, rest)

    Leaves alone axes of which both keep some: one node would not do.
    """
    inner, source = _inner(match, "Unsqueeze")
    added, removed = _axes(match, inner), _axes(match, match.root)
    more = [axis for axis in added if axis not in removed]
    less = [axis for axis in removed if axis not in added]
    match.require(not (more and less), "some dimensions are added and others removed")
    if more:
        return match.op(
            "Unsqueeze", source, attributes={"axes": tuple(a - sum(1 for r in removed if r < a) for a in more)}
        )
    if less:
        return match.op("Squeeze", source, attributes={"axes": tuple(r - sum(1 for a in added if a < r) for r in less)})
    return source


@any_node(*RESHAPES, level=1)
def chain_to_own_shape(match: Match) -> Replacement:
    """Unsqueeze(Squeeze(x, a), a)  -->  x,  Reshape(Flatten(x), shape of x)  -->  x

    for any two of Reshape, Flatten, Squeeze, Unsqueeze whose result has the dims of x, symbols included.
    """
    match.require(match.opset >= 5, "before opset 5 Reshape has no shape input")
    _, source = _inner(match, *RESHAPES)
    match.require(match.shape(source) == match.shape(match.output), "the shape may change")
    return source


@any_node("Reshape", level=1)
def reshape_of_reshape(match: Match) -> Replacement:
    """Reshape(Reshape(x, a), b)  -->  Reshape(x, b),  also below Flatten, Squeeze, Unsqueeze

    The inner node may have other readers. Leaves alone a target whose 0 copies a dim of the inner result, unless the
    result can be written from the dims of x.
    """
    match.require(match.opset >= 5, "before opset 5 Reshape has no shape input")
    _, source = _inner(match, *RESHAPES)
    target = operand(match, 1)
    content = match.facts.content(target)
    zeros = None if content is None else [axis for axis, item in enumerate(content.reshape(-1)) if item == 0]
    if zeros == []:
        return match.op("Reshape", source, target, like=match.root)
    match.require(not nodes.int_attribute(match.root, "allowzero", 0), "the target may hold a 0 that is meant as 0")
    shape, given = match.shape(match.output), match.shape(source)
    if zeros is not None and all(axis < len(given) and given[axis] == shape[axis] for axis in zeros):
        return match.op("Reshape", source, target, like=match.root)
    return match.op("Reshape", source, match.ints_constant(*reshape_target(match, source, shape)), like=match.root)


@any_node("Flatten", "Squeeze", "Unsqueeze", level=1)
def chain_to_reshape(match: Match) -> Replacement:
    """Flatten(Reshape(x)), Unsqueeze(Reshape(x)), Squeeze(Flatten(x)), ...  -->  Reshape(x, constant) or Flatten(x)

    Leaves alone what cannot be written as a constant target: more than one unknown dim, say.
    """
    match.require(match.opset >= 5, "before opset 5 Reshape has no shape input")
    inner, source = _inner(match, *RESHAPES)
    pair = {inner.op_type, match.root.op_type}
    match.require(pair == {"Squeeze", "Unsqueeze"} or len(pair) > 1 or pair == {"Flatten"}, "another rule merges these")
    shape, given = match.shape(match.output), match.shape(source)
    if len(shape) == 2:
        least = 0 if match.opset >= 9 else 1
        for axis in range(least, len(given) + 1):
            if shape == (dims.product(given[:axis]), dims.product(given[axis:])):
                return match.op("Flatten", source, attributes={"axis": axis})
    return match.op("Reshape", source, match.ints_constant(*reshape_target(match, source, shape)))


@any_node(*BROADCASTING, level=1, near=("Reshape", "Unsqueeze"))
def ones_before_broadcast(match: Match) -> Replacement:
    """Add(Unsqueeze(x, [0]), y)  -->  Add(x, y),  Add(Reshape(x, [1, 1, 4]), y)  -->  Add(x, y)

    where only dims of 1 are put in front of x, the result has as many dims without them, and nothing else reads them.
    """
    match.require(match.opset >= BROADCASTING[match.root.op_type], "the operator did not broadcast yet")
    result = match.shape(match.output)
    for value in match.root.inputs:
        wider = inner_node(match, value, "Reshape", "Unsqueeze")
        source = None if wider is None else nodes.input_at(wider, 0)
        if wider is None or source is None:
            continue
        before, after = match.facts.shape(source), match.facts.shape(wider.outputs[0])
        if (
            before is None
            or after is None
            or len(after) == len(before)
            or after != (1,) * (len(after) - len(before)) + before
        ):
            continue
        operands = [source if other is value else other for other in match.root.inputs]
        if dims.broadcast(*(None if other is None else match.facts.shape(other) for other in operands)) == result:
            match.binding.inner.append(wider)
            return match.op(match.root.op_type, *operands, like=match.root)
    match.refuse("no operand is only given dims of 1 in front that the other operands have")


RULES: tuple[Rule, ...] = (
    unsqueeze_of_unsqueeze,
    squeeze_of_squeeze,
    squeeze_of_unsqueeze,
    chain_to_own_shape,
    reshape_of_reshape,
    chain_to_reshape,
    ones_before_broadcast,
)
