"""Transposes that meet: composed, cancelled, also across reshapes and chains of elementwise operators."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.operators.movement import permutation as permutation_of
from graphopt.model.operators.table import ARITHMETIC, RESHAPES, UNARY
from graphopt.passes.algebra.reshape import reshape_target
from graphopt.passes.operands import inner_node, operand
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node, rule

LONGEST = 64  # nodes; a longer chain between two Transposes is not looked along


def permutation(match: Match, node: ir.Node) -> tuple[int, ...]:
    """The permutation of a Transpose, non-negative; the reverse order when it is not given."""
    source = nodes.given_input(node)
    perm = permutation_of(node, match.facts.rank(source))
    return permutation_of(node, match.rank(source)) if perm is None else perm


def _composed(match: Match, inner: tuple[int, ...], outer: tuple[int, ...]) -> tuple[int, ...]:
    match.require(len(inner) == len(outer), "the permutations are of different rank")
    return tuple(inner[axis] for axis in outer)


@rule(op("Transpose", op("Transpose", var("x"), name="inner", shared=True)), level=1)
def transpose_of_transpose(match: Match) -> Replacement:
    """Transpose(Transpose(x, p), q)  -->  Transpose(x, p of q), or x when that is in order

    The inner Transpose may have other readers: it stays for them.
    """
    perm = _composed(match, permutation(match, match.node("inner")), permutation(match, match.root))
    if perm == tuple(range(len(perm))):
        return match["x"]
    return match.op("Transpose", match["x"], attributes={"perm": perm})


@any_node("Transpose", level=1)
def transpose_across_elementwise(match: Match) -> Replacement:
    """Transpose(Relu(... Transpose(x, p)), q)  -->  Transpose(Relu(... x), p of q), without it when that is in order

    across elementwise operators of one tensor (and numbers), each read only by the next. The upper Transpose may have
    other readers only where the two cancel, so that there are always fewer nodes.
    """
    chain: list[tuple[ir.Node, int]] = []
    value: ir.Value = operand(match)
    while True:
        upper = inner_node(match, value, "Transpose", alone=False)
        if upper is not None:
            break
        node = inner_node(match, value, *UNARY, *ARITHMETIC)
        if node is None or len(chain) == LONGEST:
            match.refuse("no Transpose stands above, with only elementwise operators in between that are read once")
        place = _varying(match, node)
        chain.append((node, place))
        below = node.inputs[place]
        assert below is not None, "a varying operand is present"
        value = below
    match.require(chain, "the Transposes are next to each other, another rule merges them")
    perm = _composed(match, permutation(match, upper), permutation(match, match.root))
    in_order = perm == tuple(range(len(perm)))
    alone = inner_node(match, value, "Transpose") is not None
    match.require(in_order or alone, "the upper Transpose is read elsewhere too and would stay")
    match.binding.inner.extend([*(node for node, _ in chain), upper])
    result = nodes.given_input(upper)
    for node, place in reversed(chain):
        inputs = list(node.inputs)
        inputs[place] = result
        copy = match.node_of(node.op_type, *inputs, like=node)
        copy.name, copy.doc_string = node.name, node.doc_string
        copy.metadata_props.update(node.metadata_props)
        result = copy.outputs[0]
    return result if in_order else match.op("Transpose", result, attributes={"perm": perm})


def _varying(match: Match, node: ir.Node) -> int:
    """Which input the elements come from; refuses when another input is more than one number."""
    if node.op_type in UNARY:
        return 0
    match.require(match.opset >= 8, "before opset 8 the operands broadcast by attributes")
    match.require(len(node.inputs) == 2, f"{nodes.describe(node)} has not two operands")
    for place in (0, 1):
        other = node.inputs[1 - place]
        if other is not None and match.facts.scalar(other) is not None and match.facts.rank(other) == 0:
            return place
    match.refuse(f"{nodes.describe(node)} has no operand that is one number of rank 0")


# -- across reshapes ----------------------------------------------------------------------------------------------

# A piece of a dimension: where it comes from (axis, then outer or inner part at each cut) and its length. Sorted by the
# first, pieces lie in the order of memory of the source.
Piece = tuple[tuple[int, ...], dims.Dim]


def _reshaped(order: list[list[Piece]], target: dims.Dims) -> list[list[Piece]] | None:
    """The pieces of each dimension after a row-major reshape to `target`; None where one would be cut unevenly."""
    pieces = [piece for dim in order for piece in dim]
    result: list[list[Piece]] = []
    place = 0
    for dim in target:
        held: list[Piece] = []
        rest = dim
        while rest != 1:
            if place == len(pieces):
                return None
            key, size = pieces[place]
            whole = dims.quotient(rest, size)
            if whole is not None:
                held.append(pieces[place])
                rest = whole
                place += 1
                continue
            part = dims.quotient(size, rest)
            if part is None:
                return None
            held.append(((*key, 0), rest))
            pieces[place] = ((*key, 1), part)
            rest = 1
        result.append(held)
    return result if place == len(pieces) else None


def _moves_nothing(match: Match, chain: list[ir.Node]) -> bool:
    """Whether the chain of Transposes and Reshapes (first to last) leaves the elements in their order of memory."""
    source = match.shape(nodes.given_input(chain[0]))
    if any(dim == 0 for dim in source):
        return False
    order: list[list[Piece]] = [[] if dim == 1 else [((axis,), dim)] for axis, dim in enumerate(source)]
    for node in chain:
        if node.op_type == "Transpose":
            perm = permutation(match, node)
            if len(perm) != len(order):
                return False
            order = [order[axis] for axis in perm]
        else:
            reshaped = _reshaped(order, match.shape(node.outputs[0]))
            if reshaped is None:
                return False
            order = reshaped
    keys = [key for dim in order for key, _ in dim]
    return keys == sorted(keys)


@any_node("Transpose", *RESHAPES, level=1)
def transposes_around_reshape(match: Match) -> Replacement:
    """Transpose(Reshape(Transpose(x)))  -->  Reshape(x), or x, when the elements stay in their order of memory

    Also a Transpose that moves only dimensions of 1, above or below a Reshape. Every inner node is read once. Leaves
    alone what cannot be written as one constant target.
    """
    chain = [match.root]
    while len(chain) < 3:
        wanted = RESHAPES if chain[0].op_type == "Transpose" else ("Transpose",)
        node = inner_node(match, nodes.input_at(chain[0], 0), *wanted)
        if node is None:
            break
        chain.insert(0, node)
    match.require(match.opset >= 5, "before opset 5 Reshape has no shape input")
    match.require(len(chain) > 1, "no Reshape and Transpose stand next to each other")
    while len(chain) > 1 and not _moves_nothing(match, chain):
        chain.pop(0)
    match.require(len(chain) > 1, "the elements change their order")
    source = nodes.given_input(chain[0])
    match.binding.inner.extend(chain[:-1])
    shape = match.shape(match.output)
    if match.shape(source) == shape:
        return source
    return match.op("Reshape", source, match.ints_constant(*reshape_target(match, source, shape)))


RULES: tuple[Rule, ...] = (transpose_of_transpose, transpose_across_elementwise, transposes_around_reshape)
