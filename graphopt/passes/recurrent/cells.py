"""One step of a GRU or an LSTM, recognised in the arithmetic that spells it out.

The formulas are those of the ONNX operators: a GRU's new state is (1 - z) n + z h, an LSTM's is o tanh(c) with
c = f c_before + i g. They are compared as polynomials, so that n + z (h - n) and every other association is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.passes.fusion.polynomial import agrees, expand, ingredients
from graphopt.passes.fusion.private import made_by
from graphopt.passes.recurrent.affine import Affine, Matrix, Offset, read

EXACT = 1e-9  # the factors are all 1
NEAREST = 12  # how many values around a root are tried as its state


@dataclass(frozen=True, slots=True)
class Gate:
    """What a gate makes of input and state: x W + h R + b, with the state's own constants apart."""

    x: Matrix
    h: Matrix
    offsets: tuple[Offset, ...]
    state_offsets: tuple[Offset, ...] = ()
    negated: bool = False  # the gate is one minus this


@dataclass(frozen=True, slots=True)
class Cell:
    """One step: from (x, h[, c]) to (h[, c])."""

    kind: str  # "GRU" or "LSTM"
    root: ir.Node
    x: ir.Value
    h: ir.Value | None  # None: a state of zeros that has been folded away
    c: ir.Value | None  # as h; None in a GRU
    new_h: ir.Value
    new_c: ir.Value | None
    gates: tuple[Gate, ...]  # in the order of the operator: z, r, n; or i, o, f, g
    linear_before_reset: bool
    inner: tuple[ir.Node, ...]  # every node of the step, the root included

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two steps of one recurrence."""
        return (self.kind, self.gates, self.linear_before_reset)


def find(facts: Facts, root: ir.Node) -> tuple[Cell, ...]:
    """The cells whose new state the node may compute: two where input and state of an LSTM cannot be told apart."""
    if root.op_type in ("Add", "Sub"):
        cell = _gru(facts, root)
        return () if cell is None else (cell,)
    return _lstm(facts, root)


# -- GRU --------------------------------------------------------------------------------------------------------------


def _gru(facts: Facts, root: ir.Node) -> Cell | None:
    near = ingredients(root.outputs[0])
    update = next((value for value in near if made_by(value, "Sigmoid")), None)
    fresh = next((value for value in near if made_by(value, "Tanh")), None)
    if update is None or fresh is None:
        return None
    for state in near[:NEAREST]:
        if state is root.outputs[0] or state is update or state is fresh:
            continue
        group: dict[ir.Node, None] = {}
        found = expand(facts, root.outputs[0], (update, fresh, state), group)
        plain = agrees(found, {(0, 1, 0): 1.0, (1, 1, 0): -1.0, (1, 0, 1): 1.0}, EXACT)
        negated = agrees(found, {(0, 0, 1): 1.0, (1, 0, 1): -1.0, (1, 1, 0): 1.0}, EXACT)
        if plain or negated:
            return _gru_of(facts, root, group, update, fresh, state, negated)
    return None


def _gru_of(
    facts: Facts,
    root: ir.Node,
    group: dict[ir.Node, None],
    update: ir.Value,
    fresh: ir.Value,
    state: ir.Value,
    negated: bool,
) -> Cell | None:
    z, n = _argument(facts, update), _argument(facts, fresh)
    if z is None or n is None:
        return None
    linear_before_reset = len(n.rest) == 1
    if linear_before_reset:
        product = made_by(n.rest[0], "Mul")
        reset, inner = _reset_and(product, None)
        side = None if inner is None else read(facts, inner)
        if product is None or reset is None or side is None or side.rest:
            return None
        h_terms, state_offsets = side.terms, tuple(side.offsets)
        group.update(side.nodes)
    else:
        product = next((node for term in n.terms if (node := made_by(term.source, "Mul"))), None)
        reset, _ = _reset_and(product, state)
        if n.rest or product is None or reset is None:
            return None
        h_terms = [term for term in n.terms if term.source is product.outputs[0]]
        n.terms = [term for term in n.terms if term.source is not product.outputs[0]]
        state, product_state = state, product.outputs[0]
        state_offsets = ()
        if any(term.source is not product_state for term in h_terms):
            return None
    r = _argument(facts, reset)
    if r is None:
        return None
    group[product] = None
    x, gates = _split(z, r, state=state)
    if x is None or len(n.terms) != 1 or n.terms[0].source is not x or len(h_terms) != 1:
        return None
    if linear_before_reset and h_terms[0].source is not state:
        return None
    first = Gate(gates[0].x, gates[0].h, gates[0].offsets, (), negated)
    last = Gate(n.terms[0].matrix, h_terms[0].matrix, tuple(n.offsets), state_offsets)
    for part in (z, r, n):
        group.update(part.nodes)
    inner_nodes = _with_activations(group, update, fresh, reset, root)
    return Cell(
        "GRU", root, x, state, None, root.outputs[0], None, (first, gates[1], last), linear_before_reset, inner_nodes
    )  # fmt: skip


def _reset_and(product: ir.Node | None, wanted: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """The reset gate of a product and its other factor, which is `wanted` where that is given."""
    if product is None:
        return None, None
    left, right = product.inputs[0], product.inputs[1]
    for gate, other in ((left, right), (right, left)):
        if made_by(gate, "Sigmoid") is not None and (wanted is None or other is wanted):
            return gate, other
    return None, None


# -- LSTM -------------------------------------------------------------------------------------------------------------


def _lstm(facts: Facts, root: ir.Node) -> tuple[Cell, ...]:
    left, right = root.inputs[0], root.inputs[1]
    for output_gate, activated in ((left, right), (right, left)):
        gate, tanh = made_by(output_gate, "Sigmoid"), made_by(activated, "Tanh")
        if gate is None or tanh is None or tanh.inputs[0] is None:
            continue
        assert output_gate is not None and activated is not None, "both have a producer"
        return _lstm_of(facts, root, output_gate, activated, tanh.inputs[0])
    return ()


def _lstm_of(
    facts: Facts, root: ir.Node, output_gate: ir.Value, activated: ir.Value, new_c: ir.Value
) -> tuple[Cell, ...]:
    total = made_by(new_c, "Add")
    if total is None:
        return ()
    first, second = (made_by(value, "Mul") for value in total.inputs)
    for kept, added in ((first, second), (second, first)):
        if kept is None or added is None:
            continue
        input_gate, fresh = _sigmoid_and(added, "Tanh")
        forget_gate, c = _sigmoid_and(kept, None)
        if input_gate is None or fresh is None or forget_gate is None or c is None:
            continue
        values = (input_gate, output_gate, forget_gate, fresh)
        sums = [found for value in values if (found := _argument(facts, value)) is not None and not found.rest]
        if len(sums) < len(values):
            continue
        group: dict[ir.Node, None] = dict.fromkeys([total, kept, added])
        for gate in sums:
            group.update(gate.nodes)
        inner = _with_activations(group, *values, activated, root)
        cells = []
        for h in dict.fromkeys(term.source for term in sums[0].terms):
            x, gates = _split(*sums, state=h)
            if x is not None:
                cells.append(Cell("LSTM", root, x, h, c, root.outputs[0], new_c, gates, False, inner))
        return tuple(cells)
    return ()


def _sigmoid_and(product: ir.Node, wanted: str | None) -> tuple[ir.Value | None, ir.Value | None]:
    """A product's factor that is a Sigmoid, and the other, which is made by `wanted` where that is given."""
    left, right = product.inputs[0], product.inputs[1]
    for gate, other in ((left, right), (right, left)):
        if made_by(gate, "Sigmoid") is not None and (wanted is None or made_by(other, wanted) is not None):
            return gate, other
    return None, None


# -- both -------------------------------------------------------------------------------------------------------------


def _argument(facts: Facts, activated: ir.Value | None) -> Affine | None:
    """What a Sigmoid or Tanh is applied to, as a sum."""
    node = None if activated is None else activated.producer()
    value = None if node is None else nodes.input_at(node, 0)
    return None if value is None else read(facts, value)


def _split(*sums: Affine, state: ir.Value) -> tuple[ir.Value | None, tuple[Gate, ...]]:
    """The input that the sums share beside the state, and each as a gate; no input where they are no such gates."""
    x: ir.Value | None = None
    gates: list[Gate] = []
    for part in sums:
        inputs = [term for term in part.terms if term.source is not state]
        states = [term for term in part.terms if term.source is state]
        if part.rest or len(inputs) != 1 or len(states) != 1 or (x is not None and inputs[0].source is not x):
            return None, ()
        x = inputs[0].source
        gates.append(Gate(inputs[0].matrix, states[0].matrix, tuple(part.offsets)))
    return x, tuple(gates)


def _with_activations(group: dict[ir.Node, None], *values: ir.Value | ir.Node | None) -> tuple[ir.Node, ...]:
    for value in values:
        node = value if isinstance(value, ir.Node) else None if value is None else value.producer()
        if node is not None:
            group[node] = None
    return tuple(group)
