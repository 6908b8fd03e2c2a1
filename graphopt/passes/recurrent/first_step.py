"""The first step of a chain, whose state is zero, after folding has taken the state's products out of it.

What is left of the cell is compared with the step that follows it: the same matrices for the input, and constants that
add up to the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.constants import Array
from graphopt.model.facts import Facts
from graphopt.passes.fusion.polynomial import Powers, agrees, expand, ingredients
from graphopt.passes.fusion.private import made_by
from graphopt.passes.recurrent.affine import LARGEST_OFFSET, Affine, Offset, read
from graphopt.passes.recurrent.cells import EXACT, Cell, Gate

CLOSE = 1e-6  # relative; the constants were added up in another order


def is_zero(facts: Facts, value: ir.Value) -> bool:
    """Whether the value is all zeros, also when only its shape is not known."""
    expanded = made_by(value, "Expand")
    source = value if expanded is None else expanded.inputs[0]
    tensor = None if source is None else facts.tensor(source)
    if tensor is not None and tensor.size > LARGEST_OFFSET:
        return False
    array = facts.array(source)
    return array is not None and array.dtype.kind == "f" and not array.any()


def step_before(facts: Facts, following: Cell) -> Cell | None:
    """The step from a zero state to the state that `following` starts from; None when there is no such step."""
    root = None if following.h is None else following.h.producer()
    if root is None or following.h is None or root.graph is not following.root.graph:
        return None
    reader = _Reader(facts, following)
    if following.kind == "GRU":
        return _gru(reader, root, following.h)
    return _lstm(reader, root, following)


class _Reader:
    """Compares what activations are applied to with the gates of the following step."""

    def __init__(self, facts: Facts, following: Cell) -> None:
        self.facts = facts
        self.following = following
        self.x: ir.Value | None = None
        self.inner: dict[ir.Node, None] = {}

    def is_gate(self, activated: ir.Value | None, gate: Gate) -> bool:
        """Whether the value is the gate's activation of x W + b."""
        found = self.argument(activated)
        return found is not None and not found.rest and self.agrees(found, gate)

    def argument(self, activated: ir.Value | None) -> Affine | None:
        """What the activation is applied to, without products with zero."""
        node = None if activated is None else activated.producer()
        value = None if node is None else nodes.input_at(node, 0)
        found = None if value is None else read(self.facts, value)
        if found is None or node is None:
            return None
        found.terms = [term for term in found.terms if not is_zero(self.facts, term.source)]
        self.inner[node] = None
        self.inner.update(found.nodes)
        return found

    def agrees(self, found: Affine, gate: Gate) -> bool:
        """Whether the sum is the input's side of the gate."""
        if len(found.terms) != 1 or found.terms[0].matrix != gate.x:
            return False
        if self.x is not None and found.terms[0].source is not self.x:
            return False
        self.x = found.terms[0].source
        return self.same(found.offsets, gate.offsets, gate)

    def same(self, left: Sequence[Offset], right: Sequence[Offset], gate: Gate) -> bool:
        """Whether two sums of constants are the same numbers."""
        size = gate.x.columns[1] - gate.x.columns[0]
        one, other = (_total(self.facts, offsets, size) for offsets in (left, right))
        return bool(np.allclose(one, other, rtol=CLOSE, atol=CLOSE * float(np.abs(other).max(initial=0))))

    def cell(self, root: ir.Node, group: dict[ir.Node, None]) -> Cell | None:
        """The step, when its input was found."""
        if self.x is None:
            return None
        following = self.following
        inner = tuple(dict.fromkeys([*group, *self.inner, root]))
        assert following.h is not None, "the caller has looked"
        return Cell(
            following.kind, root, self.x, None, None, following.h, following.c, following.gates,
            following.linear_before_reset, inner,
        )  # fmt: skip


def _total(facts: Facts, offsets: Sequence[Offset], size: int) -> Array:
    total = np.zeros(size, np.float64)
    for offset in offsets:
        total = total + offset.read(facts, size)
    return total


def _gru(reader: _Reader, root: ir.Node, new_h: ir.Value) -> Cell | None:
    facts = reader.facts
    update_gate, reset_gate, fresh_gate = reader.following.gates
    near = ingredients(new_h)
    update = next((value for value in near if made_by(value, "Sigmoid")), None)
    fresh = next((value for value in near if made_by(value, "Tanh")), None)
    if update is None or fresh is None:
        return None
    group: dict[ir.Node, None] = {}
    zeros = [value for value in near if is_zero(facts, value)]
    expanded = expand(facts, new_h, (update, fresh, *zeros), group)
    found = {powers[:2]: factor for powers, factor in (expanded or {}).items() if not any(powers[2:])}
    wanted: dict[Powers, float] = {(1, 1): 1.0} if update_gate.negated else {(0, 1): 1.0, (1, 1): -1.0}
    argument = reader.argument(fresh)
    if not agrees(found, wanted, EXACT) or argument is None or not reader.is_gate(update, update_gate):
        return None
    left: list[Offset] = []
    if argument.rest:
        product = made_by(argument.rest[0], "Mul") if len(argument.rest) == 1 else None
        factors = [] if product is None else [value for value in product.inputs if value is not None]
        reset = next((value for value in factors if made_by(value, "Sigmoid")), None)
        side = next((read(facts, value) for value in factors if value is not reset), None)
        if product is None or reset is None or side is None or side.rest:
            return None
        if any(not is_zero(facts, term.source) for term in side.terms) or not reader.is_gate(reset, reset_gate):
            return None
        group[product] = None
        group.update(side.nodes)
        left = side.offsets
    if not reader.agrees(argument, fresh_gate) or not reader.same(left, fresh_gate.state_offsets, fresh_gate):
        return None
    return reader.cell(root, group)


def _lstm(reader: _Reader, root: ir.Node, following: Cell) -> Cell | None:
    input_gate, output_gate, forget_gate, fresh_gate = following.gates
    c = following.c
    tanh = next((node for value in root.inputs if (node := made_by(value, "Tanh"))), None)
    output = next((value for value in root.inputs if made_by(value, "Sigmoid")), None)
    if root.op_type != "Mul" or tanh is None or c is None or tanh.inputs[0] is not c:
        return None
    group: dict[ir.Node, None] = {tanh: None}
    added = made_by(c, "Mul")
    total = made_by(c, "Add")
    if total is not None:
        products = [node for value in total.inputs if (node := made_by(value, "Mul"))]
        kept = next((node for node in products if _has_zero(reader.facts, node)), None)
        added = next((node for node in products if node is not kept), None)
        if kept is None or len(products) != 2:
            return None
        forget = next((value for value in kept.inputs if made_by(value, "Sigmoid")), None)
        if not reader.is_gate(forget, forget_gate):
            return None
        group[total] = group[kept] = None
    if added is None:
        return None
    gate = next((value for value in added.inputs if made_by(value, "Sigmoid")), None)
    fresh = next((value for value in added.inputs if made_by(value, "Tanh")), None)
    group[added] = None
    if not all(
        reader.is_gate(value, wanted)
        for value, wanted in ((output, output_gate), (gate, input_gate), (fresh, fresh_gate))
    ):
        return None
    return reader.cell(root, group)


def _has_zero(facts: Facts, node: ir.Node) -> bool:
    return any(value is not None and is_zero(facts, value) for value in node.inputs)
