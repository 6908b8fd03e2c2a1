"""Gradients of LSTM, GRU and RNN: backpropagation through time.

The first result holds the hidden states of all steps, so that the gates of all steps are computed again in one product.
The recurrence of the gradient is one Scan from the last step to the first: its body has the product of the gates'
gradients with the recurrent weights, and elementwise work with factors that were computed for all steps together. The
gradients of weights, biases and sequences are products over all steps again. Source: Appleyard, Kocisky and Blunsom,
Optimizing Performance of Recurrent Neural Networks on GPUs (2016).

Steps behind the end of a sequence leave the state as it is: the factors of their gates are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, GradientRule, Gradients
from graphopt.model.operators.gradients.products import product
from graphopt.model.operators.gradients.terms import NoGradient, Term

# The slope of an activation from its result.
SLOPES: dict[str, Callable[[Term], Term]] = {
    "Sigmoid": lambda y: y * (1.0 - y),
    "Tanh": lambda y: 1.0 - y.squared(),
    "Relu": lambda y: (y > 0.0).cast(y.dtype),
}
Stepped = tuple[Sequence[Term], Sequence[Term]]  # states, and what is kept
X, WEIGHTS, RECURRENT, BIASES, LENGTHS, START, CELL, PEEPHOLES = range(8)  # operands


@dataclass(frozen=True, eq=False)
class Layer:
    """One direction of a recurrent layer of H hidden units and G gates, its steps in the order of their computation."""

    back: Backward
    x: Term  # [T, N, I]
    weights: Term  # [G H, I]
    recurrent: Term  # [G H, H]
    biases: Term | None  # [2 G H]: with the input, with the state
    start: Term  # [N, H]
    cell: Term | None  # [N, H]: the first cell of an LSTM
    y: Term  # [T, N, H]
    incoming: tuple[Term | None, ...]  # gradients of the states of all steps, of the last state, and of the last cell
    inside: Term | None  # [T, N, 1]: 1 for steps of a sequence, 0 for those behind its end
    activations: tuple[str, ...]

    @property
    def hidden(self) -> int:
        """H."""
        return self.recurrent.sizes[1]

    @cached_property
    def states(self) -> Term:
        """[T, N, H]: the state that each step starts from."""
        return self.before(self.start, self.y)

    def before(self, first: Term, states: Term) -> Term:
        """[T, N, H]: what each step starts from."""
        return self.y.maker.join([first.unsqueeze(0), states.slice(0, 0, -1)], 0).reshape_like(self.y)

    def by_input(self) -> Term:
        """[T, N, G H]: the input's part of all gates, with its bias."""
        return self._gates(self.x, self.weights, 0, self.weights.sizes[0])

    def by_state(self, states: Term, first: int, end: int) -> Term:
        """[T, N, (end - first) H]: the part of states in a range of gates, with its bias."""
        start, stop, total = first * self.hidden, end * self.hidden, self.recurrent.sizes[0]
        weights = self.recurrent if (start, stop) == (0, total) else self.recurrent.slice(0, start, stop)
        return self._gates(states, weights, total + start, stop - start)

    def _gates(self, rows: Term, weights: Term, bias: int, size: int) -> Term:
        found = product(self.y.maker, _flat(rows), weights, turn_right=True)
        if self.biases is not None:
            found = found + self.biases.slice(0, bias, bias + size)
        return found.reshape(self.y.dim(0), self.y.dim(1), size)

    def part(self, gates: Term, number: int) -> Term:
        """[T, N, H]: one gate of [T, N, G H]."""
        return gates.slice(2, number * self.hidden, (number + 1) * self.hidden)

    def activated(self, gate: Term, activation: int) -> tuple[Term, Term]:
        """An activation's result, and its slope there."""
        result = gate.apply(self.activations[activation])
        return result, SLOPES[self.activations[activation]](result)

    def masked(self, term: Term) -> Term:
        """0 behind the ends of sequences."""
        return term if self.inside is None else term * self.inside

    def passed(self, term: Term) -> Term:
        """1 behind the ends of sequences."""
        return term if self.inside is None else term * self.inside + (1.0 - self.inside)

    def last(self, position: int) -> Term:
        """The gradient of the last state or cell: [N, H]."""
        found = self.incoming[position]
        return self.start.zeros() if found is None else found

    def backwards(
        self,
        states: Sequence[Term],
        factors: Sequence[Term],
        step: Callable[..., Stepped],
    ) -> Stepped:
        """The steps from the last one to the first; each gets the gradient of its state, other states, and factors."""
        dy = self.incoming[0]
        rows = [*([] if dy is None else [self.masked(dy)]), *factors]

        def body(states: Sequence[Term], rows: Sequence[Term]) -> Stepped:
            state = states[0] if dy is None else states[0] + rows[0]
            return step(state, *states[1:], *rows[len(rows) - len(factors) :])

        return self.y.maker.scan(states, rows, body, backwards=True)

    def stay(self) -> list[Term]:
        """The share of a state that a step hands on beside its gates, where sequences have ends: [T, N, 1]."""
        return [] if self.inside is None else [1.0 - self.inside]

    def found(self, gates: Term, start: Term, *, reads: Sequence[tuple[Term, Term]] = (), cell: Term | None = None,
              shared: Term | None = None) -> dict[int, Term]:  # fmt: skip
        """The gradients by operand, from those of the input's part of the gates.

        `reads` are the gradients of the state's part, by ranges of gates, with the states that they met; none: those of
        `gates` and the states before. `shared` is the gradient of the state's bias where that is not the input's.
        """
        maker, flat, given = self.y.maker, _flat(gates), {START: start}
        if self.back.wants(X):
            given[X] = product(maker, flat, self.weights).reshape_like(self.x)
        if self.back.wants(WEIGHTS):
            given[WEIGHTS] = product(maker, flat, _flat(self.x), turn_left=True)
        if self.back.wants(RECURRENT):
            met = reads or [(gates, self.states)]
            parts = [product(maker, _flat(left), _flat(states), turn_left=True) for left, states in met]
            given[RECURRENT] = maker.join(parts, 0)
        if self.back.wants(BIASES):
            bias = gates.sum(0, 1, keep=False)
            given[BIASES] = maker.join([bias, bias if shared is None else shared.sum(0, 1, keep=False)], 0)
        if cell is not None:
            given[CELL] = cell
        return given


def _flat(term: Term) -> Term:
    """[T, N, F] as [T N, F]."""
    return term.reshape(term.maker.ints(-1), term.dim(2))


def _long_short_term(layer: Layer) -> dict[int, Term]:
    """Gates i, o, f and c: C = f C' + i c, H = o h(C). The cells come from a Scan of that sum."""
    maker, first = layer.y.maker, layer.cell
    assert first is not None, "an LSTM has cells"
    gates = layer.by_input() + layer.by_state(layer.states, 0, 4)
    (i, i_slope), (o, o_slope), (f, f_slope) = (layer.activated(layer.part(gates, at), 0) for at in range(3))
    c, c_slope = layer.activated(layer.part(gates, 3), 1)
    passed = layer.passed(f)

    def forwards(states: Sequence[Term], rows: Sequence[Term]) -> Stepped:
        cell = states[0] * rows[0] + rows[1]
        return [cell], [cell]

    cells = maker.scan([first], [passed, layer.masked(i * c)], forwards)[1][0]
    h, h_slope = layer.activated(cells, 2)
    to_cell = layer.masked(o * h_slope)
    factors = layer.masked(maker.join([c * i_slope, h * o_slope, layer.before(first, cells) * f_slope, i * c_slope], 2))

    def step(state: Term, cell: Term, to_cell: Term, factors: Term, passed: Term, *stay: Term) -> Stepped:
        cell = cell + state * to_cell
        gates = maker.join([cell, state, cell, cell], 1) * factors
        before = product(maker, gates, layer.recurrent)
        return [before + state * stay[0] if stay else before, cell * passed], [gates]

    rows = [to_cell, factors, passed, *layer.stay()]
    (start, cell), (found,) = layer.backwards([layer.last(1), layer.last(2)], rows, step)
    return layer.found(found, start, cell=cell)


def _gated(layer: Layer) -> dict[int, Term]:
    """Gates z, r and h: H = (1 - z) h + z H', where r meets the states H' before or after their product."""
    maker, before = layer.y.maker, layer.states
    by_input, by_state = layer.by_input(), layer.by_state(before, 0, 2)
    (z, z_slope), (r, r_slope) = (
        layer.activated(layer.part(by_input, at) + layer.part(by_state, at), 0) for at in range(2)
    )
    behind = bool(layer.back.integer("linear_before_reset", 0))
    read = layer.by_state(before, 2, 3) if behind else layer.by_state(r * before, 2, 3)
    h, h_slope = layer.activated(layer.part(by_input, 2) + (r * read if behind else read), 1)
    to_z = layer.masked((before - h) * z_slope)
    to_h = layer.masked((1.0 - z) * h_slope)
    last, passed, size = layer.last(1), layer.passed(z), layer.hidden
    if behind:
        factors = maker.join([to_z, to_h * read * r_slope, to_h * r], 2)

        def after(state: Term, factors: Term, to_h: Term, passed: Term) -> Stepped:
            gates = maker.join([state, state, state], 1) * factors
            return [product(maker, gates, layer.recurrent) + state * passed], [gates, state * to_h]

        (start,), (gates, hidden) = layer.backwards([last], [factors, to_h, passed], after)
        found = maker.join([gates.slice(2, 0, 2 * size), hidden], 2)
        return layer.found(found, start, reads=[(gates, before)], shared=gates)
    first, second = layer.recurrent.slice(0, 0, 2 * size), layer.recurrent.slice(0, 2 * size, 3 * size)
    to_r = before * r_slope

    def ahead(state: Term, to_z: Term, to_r: Term, to_h: Term, r: Term, passed: Term) -> Stepped:
        hidden = state * to_h
        met = product(maker, hidden, second)
        gates = maker.join([state * to_z, met * to_r], 1)
        return [product(maker, gates, first) + met * r + state * passed], [gates, hidden]

    (start,), (gates, hidden) = layer.backwards([last], [to_z, to_r, to_h, r, passed], ahead)
    found = maker.join([gates, hidden], 2)
    return layer.found(found, start, reads=[(gates, before), (hidden, r * before)])


def _plain(layer: Layer) -> dict[int, Term]:
    """H = f(x W + H' R): the slope of f at H is all that a step needs."""
    maker = layer.y.maker
    slope = layer.masked(SLOPES[layer.activations[0]](layer.y))

    def step(state: Term, slope: Term, *stay: Term) -> Stepped:
        gates = state * slope
        before = product(maker, gates, layer.recurrent)
        return [before + state * stay[0] if stay else before], [gates]

    (start,), (gates,) = layer.backwards([layer.last(1)], [slope, *layer.stay()], step)
    return layer.found(gates, start)


def _recurrence(defaults: Sequence[str], rule: Callable[[Layer], dict[int, Term]]) -> GradientRule:
    """The rule of a recurrent layer from that of one direction."""

    def gradient(back: Backward) -> Gradients:
        directions = {"forward": (False,), "reverse": (True,)}.get(back.text("direction", "forward"), (False, True))
        activations = _activations(back, defaults, len(directions))
        inside = _inside(back)
        found: list[dict[int, Term]] = []
        for number, backwards in enumerate(directions):
            layer = _layer(back, number, backwards, inside, activations[number * len(defaults) :][: len(defaults)])
            given = rule(layer)
            if X in given:
                given[X] = _turned(back, given[X], backwards)
            found.append(given)
        return tuple(_joined([given.get(position) for given in found], position) for position in range(CELL + 1))

    return gradient


def _joined(terms: Sequence[Term | None], position: int) -> Term | None:
    """The gradient of an operand from those of the directions: the input's add up, others lie one behind the other."""
    there = [term for term in terms if term is not None]
    if not there:
        return None
    if position == X:
        return there[0] if len(there) == 1 else there[0] + there[1]
    return there[0].maker.join([term.unsqueeze(0) for term in there], 0)


def _activations(back: Backward, defaults: Sequence[str], directions: int) -> tuple[str, ...]:
    """The activations of all directions; raises NoGradient for attributes that have no rule."""
    if back.optional(PEEPHOLES) is not None:
        raise NoGradient("there is no rule for its peepholes")
    if back.real("clip", 0.0) or back.integer("input_forget", 0) or back.integer("layout", 0):
        named = [name for name in ("clip", "input_forget", "layout") if name in back.node.attributes]
        raise NoGradient(f"there is no rule for its {' and '.join(named)}")
    given = tuple(name.title() for name in back.texts("activations") or tuple(defaults) * directions)
    for name in given:
        if name not in SLOPES:
            raise NoGradient(f"there is no rule for its activation {name}, but for {', '.join(SLOPES)}")
    return given


def _inside(back: Backward) -> Term | None:
    """[T, N, 1]: 1 for each step that a sequence has, else 0; None where all have all steps."""
    lengths = back.optional(LENGTHS)
    if lengths is None:
        return None
    x, maker = back.x(X), back.maker
    zero, one = (maker.array(np.array(number, np.int64)) for number in (0, 1))
    steps = maker.op("Range", zero, x.dim(0).squeeze(0), one)
    return (steps.unsqueeze(1, 2) < lengths.cast(ir.DataType.INT64).unsqueeze(1)).cast(x.dtype)


def _layer(back: Backward, number: int, backwards: bool, inside: Term | None, activations: tuple[str, ...]) -> Layer:
    """One direction of the node."""

    def chosen(term: Term, axis: int) -> Term:
        one = term if term.shape[axis] == 1 else term.slice(axis, number, number + 1)
        return one.squeeze(axis)

    def of(term: Term | None) -> Term | None:
        return None if term is None else chosen(term, 0)

    def over_steps(term: Term) -> Term:
        return _turned(back, chosen(term, 1), backwards)

    x, y = back.x(X), back.y()
    weights, recurrent = chosen(back.x(WEIGHTS), 0), chosen(back.x(RECURRENT), 0)
    filler = ir.Tensor(np.zeros(1, x.dtype.numpy()), dtype=x.dtype)

    def state(position: int) -> Term:
        given = of(back.optional(position))
        if given is None:
            sizes = back.maker.join([x.dim(1), recurrent.dim(1)], 0)
            given = back.maker.op("ConstantOfShape", sizes, attributes={"value": filler})
        return given

    dy = back.incoming[0]
    last = [of(back.incoming[at]) if at < len(back.incoming) else None for at in (1, 2)]
    return Layer(
        back=back,
        x=_turned(back, x, backwards),
        weights=weights,
        recurrent=recurrent,
        biases=of(back.optional(BIASES)),
        start=state(START),
        cell=state(CELL) if back.node.op_type == "LSTM" else None,
        y=over_steps(y),
        incoming=(None if dy is None else over_steps(dy), *last),
        inside=inside,
        activations=activations,
    )


def _turned(back: Backward, term: Term, backwards: bool) -> Term:
    """[T, N, F] in the other order of steps, each sequence within its length."""
    if not backwards:
        return term
    lengths = back.optional(LENGTHS)
    if lengths is None:
        return term.slice(0, -1, -(1 << 62), -1)
    return back.maker.op(
        "ReverseSequence", term, lengths.cast(ir.DataType.INT64), attributes={"batch_axis": 1, "time_axis": 0}
    )


long_short_term = _recurrence(("Sigmoid", "Tanh", "Tanh"), _long_short_term)
gated = _recurrence(("Sigmoid", "Tanh"), _gated)
plain = _recurrence(("Tanh",), _plain)
