"""Attention that is spelled out becomes the operator of opset 23, with heads on an axis of their own (four axes).

scores = (q k^T) * scale, bounded by a soft cap, plus masks;  result = Softmax(scores) v
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import dims, nodes
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.fusion.causal import levels
from graphopt.passes.fusion.masks import RAISED, guarded, held, raised
from graphopt.passes.fusion.private import made_by, require_private
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

SINCE = 23  # opset
# For doubles ONNX Runtime's scale is not exact; in float16 its sums are rounded otherwise, and on a CPU it takes half
# as long again as the spelled-out form.
TYPES = frozenset({ir.DataType.FLOAT})
SWAPPED = (0, 1, 3, 2)
SHUT = -1e4  # a score that is replaced by such a number or a lower one weighs nothing


@dataclass(slots=True)
class _Scores:
    """What is known of the scores, read from the Softmax upwards."""

    scale: float = 1.0
    cap: float = 0.0
    masks: list[ir.Value] = field(default_factory=list)
    # Where(condition, scores, number) or Where(condition, number, scores): condition, whether true keeps, number.
    fills: list[tuple[ir.Value, bool, float]] = field(default_factory=list)
    group: list[ir.Node] = field(default_factory=list)


@any_node("MatMul", level=2)
def attention(match: Match) -> Replacement:
    """MatMul(Softmax(MatMul(q, Transpose(k)) * s + mask), v)  -->  Attention(q, k, v, mask, scale=s)      (opset 23 on)

    With a soft cap, scores replaced by a number, and zeros where the Softmax is not a number. Leaves alone other
    types than float, masks that may shut out a whole row and of which the original would make NaN, and scores that
    are read elsewhere.
    Dims that are symbols are taken to be such that the mask does not widen the scores.
    """
    match.require(match.opset >= SINCE, f"Attention came with opset {SINCE}")
    weights, v = match.root.inputs[0], match.root.inputs[1]
    assert weights is not None and v is not None, "a product has two operands"
    match.require(match.rank(match.output) == 4, "the result has not four axes")
    kind = match.dtype(v)
    match.require(kind in TYPES, f"runtimes compute it otherwise for {kind.name}")
    group: list[ir.Node] = []
    softmax, has_guard = _softmax(match, weights, group)
    product, found = _read_scores(match, softmax)
    q, kt = product.inputs[0], product.inputs[1]
    assert q is not None and kt is not None, "a product has two operands"
    group += [softmax, product]
    q, kt = _unscaled(match, q, found), _unscaled(match, kt, found)
    require_private(match, [*group, *found.group])
    k = _keys(match, kt)
    _check_shapes(match, q, k, v)
    causal = _is_causal(match, found, q, k)
    mask = None if causal else _mask(match, found, q, k, has_guard=has_guard, kind=kind)
    attributes = {"scale": found.scale, "softcap": found.cap or None, "is_causal": 1 if causal else None}
    return match.op("Attention", q, k, v, mask, attributes=attributes)


def _softmax(match: Match, weights: ir.Value, group: list[ir.Node]) -> tuple[ir.Node, bool]:
    """The Softmax over the keys, and whether zeros are put where it is not a number."""
    top = made_by(weights, "Where")
    inside = None if top is None else guarded(match, top)
    if top is not None and inside is not None and top.inputs[0] is not None:
        question = top.inputs[0].producer()
        assert question is not None, "guarded has looked"
        group += [top, question]
        weights = inside
    softmax = made_by(weights, "Softmax")
    if softmax is None:
        match.refuse("no operand is a Softmax")
    match.require(nodes.int_attribute(softmax, "axis", -1) in (-1, 3), "the Softmax is not over the keys")
    return softmax, inside is not None


def _read_scores(match: Match, softmax: ir.Node) -> tuple[ir.Node, _Scores]:
    """The product of queries and keys, and what is done to it on the way to the Softmax."""
    found = _Scores()
    value = softmax.inputs[0]
    while True:
        assert value is not None, "an operand is there"
        node = made_by(value, "MatMul", "Add", "Mul", "Div", "Where")
        if node is None:
            match.refuse("no product of queries and keys stands under the Softmax")
        if node.op_type == "MatMul":
            return node, found
        found.group.append(node)
        value = _step(match, node, found)


def _step(match: Match, node: ir.Node, found: _Scores) -> ir.Value:
    """One operator above: note what it does, and give the scores it does it to."""
    if node.op_type == "Add":
        match.require(found.scale == 1 and not found.cap, "a mask is added before the scores are scaled")
        scores, mask = _path(match, node.inputs)
        found.masks.append(mask)
        return scores
    if node.op_type == "Where":
        match.require(found.scale == 1 and not found.cap, "scores are replaced before they are scaled")
        return _fill(match, node, found)
    number = match.facts.scalar(node.inputs[1])
    value = node.inputs[0]
    if number is None and node.op_type == "Mul":
        number, value = match.facts.scalar(node.inputs[0]), node.inputs[1]
    match.require(number is not None and number != 0 and np.isfinite(number), "the scores are not scaled by a number")
    assert number is not None and value is not None, "required just now"
    tanh = made_by(value, "Tanh")
    if tanh is not None and node.op_type == "Mul":
        match.require(found.scale == 1 and not found.cap, "what is bounded is scaled again")
        return _capped(match, tanh, float(number), found)
    found.scale *= float(number) if node.op_type == "Mul" else 1 / float(number)
    return value


def _capped(match: Match, tanh: ir.Node, cap: float, found: _Scores) -> ir.Value:
    """cap * Tanh(scores / cap): the division is left to be read as a scale, which is then too small by the cap."""
    match.require(cap > 0, "the soft cap is not above 0")
    assert tanh.inputs[0] is not None, "Tanh has an operand"
    found.group.append(tanh)
    found.cap, found.scale = cap, cap
    return tanh.inputs[0]


def _path(match: Match, operands: Sequence[ir.Value | None]) -> tuple[ir.Value, ir.Value]:
    """Which of two operands comes from the product, and the other one."""
    left, right = operands[0], operands[1]
    assert left is not None and right is not None, "a sum has two operands"
    for one, other in ((left, right), (right, left)):
        if _leads_to_product(match, one):
            return one, other
    match.refuse("no operand of the sum comes from a product of queries and keys")


def _leads_to_product(match: Match, value: ir.Value) -> bool:
    for _ in range(8):
        node = made_by(value, "MatMul", "Add", "Mul", "Div", "Where", "Tanh")
        if node is None or match.facts.is_constant(value):
            return False
        if node.op_type == "MatMul":
            return True
        operands = [operand for operand in node.inputs if operand is not None]
        if node.op_type == "Where":
            operands = operands[1:]
        varying = [operand for operand in operands if match.facts.scalar(operand) is None]
        if node.op_type == "Add" and len(varying) == 2:
            return any(_leads_to_product(match, operand) for operand in varying)
        if len(varying) != 1:
            return False
        value = varying[0]
    return False


def _fill(match: Match, node: ir.Node, found: _Scores) -> ir.Value:
    condition, left, right = node.inputs[0], node.inputs[1], node.inputs[2]
    assert condition is not None and left is not None and right is not None, "a choice has three operands"
    for scores, filler, keeps in ((left, right, True), (right, left, False)):
        number = match.facts.scalar(filler)
        if number is not None:
            match.require(number <= SHUT, "scores are replaced by a number that does not shut out")
            found.fills.append((condition, keeps, float(number)))
            return scores
    match.refuse("scores are replaced by more than one number")


def _unscaled(match: Match, value: ir.Value, found: _Scores) -> ir.Value:
    """The value before a scale that nothing else reads; the scale is noted."""
    node = made_by(value, "Mul", "Div")
    if node is None or len(value.uses()) != 1 or value.is_graph_output() or node.graph is not match.root.graph:
        return value
    number, inner = match.facts.scalar(node.inputs[1]), node.inputs[0]
    if number is None and node.op_type == "Mul":
        number, inner = match.facts.scalar(node.inputs[0]), node.inputs[1]
    if number is None or inner is None or number == 0 or not np.isfinite(number):
        return value
    if match.facts.shape(inner) != match.facts.shape(value):
        return value
    found.group.append(node)
    found.scale *= float(number) if node.op_type == "Mul" else 1 / float(number)
    return inner


def _keys(match: Match, kt: ir.Value) -> ir.Value:
    """The keys, of which the product has the transpose."""
    node = made_by(kt, "Transpose")
    if node is not None and node.inputs[0] is not None:
        perm = permutation(match, node)
        if perm == SWAPPED:
            return node.inputs[0]
        order = [perm[place] for place in SWAPPED]
        return match.op("Transpose", node.inputs[0], attributes={"perm": order})
    return match.op("Transpose", kt, attributes={"perm": SWAPPED})


def _check_shapes(match: Match, q: ir.Value, k: ir.Value, v: ir.Value) -> None:
    shapes = [match.shape(value) for value in (q, k, v)]
    match.require(all(len(shape) == 4 for shape in shapes), "queries, keys and values have not four axes")
    batches = {shape[0] for shape in shapes}
    match.require(len(batches) == 1, "queries, keys and values are not of one batch")
    heads, kv_heads, v_heads = (shape[1] for shape in shapes)
    match.require(kv_heads == v_heads, "keys and values have not as many heads")
    match.require(
        heads == kv_heads or (isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads == 0),
        "the heads of the queries are no multiple of those of the keys",
    )
    match.require(all(shape[3] != 0 for shape in shapes), "a head is empty")
    match.require(shapes[1][2] != 1 or shapes[2][2] == 1, "the mask widens the scores of a single key")


# -- the mask ---------------------------------------------------------------------------------------------------------


def _mask(
    match: Match, found: _Scores, q: ir.Value, k: ir.Value, *, has_guard: bool, kind: ir.DataType
) -> ir.Value | None:
    """One mask for everything that is added to the scores or put in their place, as ONNX Runtime wants it."""
    parts = [_settled(match, mask, has_guard=has_guard) for mask in found.masks]
    parts += [_of_fill(match, *fill, has_guard=has_guard, kind=kind) for fill in found.fills]
    if not parts:
        return None
    match.require(len(parts) == 1 or not found.fills, "scores are replaced and a mask is added")
    whole = parts[0]
    for part in parts[1:]:
        whole = match.op("Add", whole, part)
    return _widened(match, whole, q, k)


def _is_causal(match: Match, found: _Scores, q: ir.Value, k: ir.Value) -> bool:
    """Whether all that is added or put in place shuts out the later keys, of as many keys as queries."""
    if len(found.masks) + len(found.fills) != 1 or match.shape(q)[2] != match.shape(k)[2]:
        return False
    for mask in found.masks:
        size = match.facts.shape(mask)
        numbers = levels(match.facts, mask)
        return (
            numbers is not None and numbers[0] == 0 and numbers[1] <= SHUT
            and size is not None and len(size) >= 2 and size[-1] == match.shape(k)[2]
        )  # fmt: skip
    condition, keeps, _ = found.fills[0]
    size = match.facts.shape(condition)
    numbers = levels(match.facts, condition)
    wanted = (1.0, 0.0) if keeps else (0.0, 1.0)
    return numbers == wanted and size is not None and size[-1] == match.shape(k)[2]


def _settled(match: Match, mask: ir.Value, *, has_guard: bool) -> ir.Value:
    """The mask, where a row that is shut out altogether means the same to the operator."""
    contents = held(match.facts, mask)
    if contents is None:
        match.refuse(f"it is not known whether a row of '{mask.name}' may be -inf throughout")
    if not contents.may_be_shut:
        return mask
    if contents.infinite:
        match.require(has_guard, "a row may be -inf throughout: NaN here, 0 from the operator")
        match.require(not contents.lowest, "it holds both -inf and the lowest number")
        return mask
    return raised(match, mask)


def _of_fill(
    match: Match, condition: ir.Value, keeps: bool, number: float, *, has_guard: bool, kind: ir.DataType
) -> ir.Value:
    """The mask of scores that are replaced: 0 where they are kept, else a number that no score matters beside."""
    array = match.facts.array(condition) if match.facts.is_constant(condition) else None
    rows_kept = array is not None and array.ndim > 0 and bool((array == keeps).any(axis=-1).all())
    if number == -np.inf:
        match.require(has_guard or rows_kept, "a row may be -inf throughout: NaN here, 0 from the operator")
        filler = -np.inf
    else:
        filler = RAISED
    zero = match.constant(np.zeros((), kind.numpy()), kind)
    shut = match.constant(np.array(filler).astype(kind.numpy()), kind)
    return match.op("Where", condition, *((zero, shut) if keeps else (shut, zero)))


def _widened(match: Match, mask: ir.Value, q: ir.Value, k: ir.Value) -> ir.Value:
    """The mask with all of its rows and columns: ONNX Runtime repeats it over batch and heads only."""
    shape = match.shape(mask)
    (batch, heads, rows, _), columns = match.shape(q), match.shape(k)[2]
    full = (*[1] * (4 - len(shape)), *shape)
    known = _agreed(match, full, batch, heads)
    wanted = (rows, columns)
    if len(shape) >= 2 and all(_same(one, other, known) for one, other in zip(full[2:], wanted, strict=True)):
        return mask
    for one, other in zip(full[2:], wanted, strict=True):
        fits = one == other or one == 1 or not (isinstance(one, int) and isinstance(other, int))
        match.require(fits, "the mask widens the scores")
    if isinstance(rows, int) and isinstance(columns, int):
        size = match.ints_constant(1, 1, rows, columns)
    else:
        lengths = [
            match.op("Shape", value, attributes={"start": 2, "end": 3})
            if not isinstance(length, int)
            else match.ints_constant(length)
            for value, length in ((q, rows), (k, columns))
        ]
        size = match.op("Concat", match.ints_constant(1, 1), *lengths, attributes={"axis": 0})
    return match.op("Expand", mask, size)


def _agreed(match: Match, full: dims.Dims, batch: dims.Dim, heads: dims.Dim) -> dict[sympy.Symbol, dims.Dim]:
    """What the symbols must be for the mask not to widen batch and heads of the scores."""
    known: dict[sympy.Symbol, dims.Dim] = {}
    for given, wanted in zip(full[:2], (batch, heads), strict=True):
        if given in (1, wanted):
            continue
        match.require(not (isinstance(given, int) and isinstance(wanted, int)), "the mask widens the scores")
        match.require(isinstance(given, sympy.Symbol), "whether the mask widens the scores is not known")
        assert isinstance(given, sympy.Symbol), "required just now"
        known[given] = wanted
    return known


def _same(one: dims.Dim, other: dims.Dim, known: dict[sympy.Symbol, dims.Dim]) -> bool:
    if one == other:
        return True
    left, right = (dims.normal(sympy.sympify(dim).subs(known)) for dim in (one, other))
    return left == right


RULES: tuple[Rule, ...] = (attention,)
