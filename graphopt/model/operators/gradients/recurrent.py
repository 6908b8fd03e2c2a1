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

import numpy as np
import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, GradientRule, Gradients
from graphopt.model.operators.gradients.layer import (
    BIASES,
    CELL,
    LENGTHS,
    PEEPHOLES,
    RECURRENT,
    SLOPES,
    START,
    WEIGHTS,
    Layer,
    Stepped,
    X,
)
from graphopt.model.operators.gradients.products import product
from graphopt.model.operators.gradients.terms import NoGradient, Term


def _long_short_term(layer: Layer) -> dict[int, Term]:
    """Gates i, o, f and c: C = f C' + i c, H = o h(C). The cells come from a Scan of that sum.

    With peepholes i and f also read C' and o reads C, so that the Scan has these gates inside. With input_forget f is
    1 - i.
    """
    maker, first, seen = layer.y.maker, layer.cell, layer.peepholes
    assert first is not None, "an LSTM has cells"
    coupled, size = bool(layer.back.integer("input_forget", 0)), layer.hidden
    gates = layer.by_input() + layer.by_state(layer.states, 0, 4)
    to_i, to_o, to_f = (layer.part(gates, at) for at in range(3))
    c, c_slope = layer.activated(layer.part(gates, 3), 1)
    looks = [None if seen is None else seen.slice(0, at * size, (at + 1) * size) for at in range(3)]

    def shares(to_i: Term, to_f: Term, cell: Term) -> tuple[tuple[Term, Term], tuple[Term, Term] | None]:
        """The gates i and f with their slopes; f is none of its own where it is coupled."""
        to_i, to_f = (
            to if look is None else to + look * cell for to, look in ((to_i, looks[0]), (to_f, looks[2]))
        )  # fmt: skip
        return layer.activated(to_i, 0), None if coupled else layer.activated(to_f, 0)

    def kept(i: tuple[Term, Term], f: tuple[Term, Term] | None) -> Term:
        return 1.0 - i[0] if f is None else f[0]

    def forwards(states: Sequence[Term], rows: Sequence[Term]) -> Stepped:
        if seen is None:
            cell = states[0] * rows[0] + rows[1]
            return [cell], [cell]
        i, f = shares(rows[0], rows[1], states[0])
        cell = states[0] * kept(i, f) + i[0] * rows[2]
        if layer.inside is not None:
            cell = cell * rows[3] + states[0] * (1.0 - rows[3])
        return [cell], [cell]

    if seen is None:
        i, f = shares(to_i, to_f, c)
        rows = [layer.passed(kept(i, f)), layer.masked(i[0] * c)]
    else:
        rows = [to_i, to_f, c, *([] if layer.inside is None else [layer.inside])]
    cells = maker.scan([first], rows, forwards)[1][0]
    before = layer.before(first, cells)
    if seen is not None:
        i, f = shares(to_i, to_f, before)
    o, o_slope = layer.activated(to_o if looks[1] is None else to_o + looks[1] * cells, 0)
    h, h_slope = layer.activated(cells, 2, of_cells=True)
    by_o, by_i = h * o_slope, (c if f is not None else c - before) * i[1]
    by_f = None if f is None else before * f[1]
    onto = o * h_slope if looks[1] is None else o * h_slope + by_o * looks[1]
    passed = kept(i, f)
    for part, look in ((by_i, looks[0]), (by_f, looks[2])):
        passed = passed if part is None or look is None else passed + part * look
    passed, to_cell = layer.passed(passed), layer.masked(onto)
    factors = layer.masked(maker.join([by_i, by_o, by_i.zeros() if by_f is None else by_f, i[0] * c_slope], 2))

    def step(state: Term, cell: Term, to_cell: Term, factors: Term, passed: Term, *stay: Term) -> Stepped:
        cell = cell + state * to_cell
        gates = maker.join([cell, state, cell, cell], 1) * factors
        back = product(maker, gates, layer.recurrent)
        return [back + state * stay[0] if stay else back, cell * passed], [gates]

    rows = [to_cell, factors, passed, *layer.stay()]
    (start, cell), (found,) = layer.backwards([layer.last(1), layer.last(2)], rows, step)
    given = layer.found(found, start, cell=cell)
    if layer.back.wants(PEEPHOLES):
        met = maker.join([before, cells, before], 2)
        given[PEEPHOLES] = (found.slice(2, 0, 3 * size) * met).sum(0, 1, keep=False)
    return given


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
    """H = f(x W + H' R): the slope of f at H is all that a step needs, where nothing is clipped."""
    maker = layer.y.maker
    slope = SLOPES[layer.activations[0]](layer.y)
    if layer.clip:
        slope = layer.activated(layer.by_input() + layer.by_state(layer.states, 0, 1), 0)[1]
    slope = layer.masked(slope)

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
        joined = [_joined([given.get(position) for given in found], position) for position in range(PEEPHOLES + 1)]
        if back.integer("layout", 0):
            for position in (X, START, CELL):
                term = joined[position]
                joined[position] = None if term is None else term.transpose(1, 0, 2)
        return joined

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
    """The activations of all directions; raises NoGradient for one that has no rule."""
    given = tuple(name.title() for name in back.texts("activations") or tuple(defaults) * directions)
    for name in given:
        if name not in SLOPES:
            raise NoGradient(f"there is no rule for its activation {name}, but for {', '.join(SLOPES)}")
    return given


def _rows(back: Backward) -> Term:
    """[T, N, I]: the input, whose first axis is that of steps or that of sequences."""
    return back.x(X).transpose(1, 0, 2) if back.integer("layout", 0) else back.x(X)


def _inside(back: Backward) -> Term | None:
    """[T, N, 1]: 1 for each step that a sequence has, else 0; None where all have all steps."""
    lengths = back.optional(LENGTHS)
    if lengths is None:
        return None
    x, maker = _rows(back), back.maker
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

    behind = bool(back.integer("layout", 0))  # axes of steps and directions lie behind that of sequences

    def over_steps(term: Term) -> Term:
        return _turned(back, chosen(term.transpose(1, 2, 0, 3) if behind else term, 1), backwards)

    def of_state(term: Term | None) -> Term | None:
        return of(term.transpose(1, 0, 2) if term is not None and behind else term)

    x, y = _rows(back), back.y()
    weights, recurrent = chosen(back.x(WEIGHTS), 0), chosen(back.x(RECURRENT), 0)
    filler = ir.Tensor(np.zeros(1, x.dtype.numpy()), dtype=x.dtype)

    def state(position: int) -> Term:
        given = of_state(back.optional(position))
        if given is None:
            sizes = back.maker.join([x.dim(1), recurrent.dim(1)], 0)
            given = back.maker.op("ConstantOfShape", sizes, attributes={"value": filler})
        return given

    dy = back.incoming[0]
    last = [of_state(back.incoming[at]) if at < len(back.incoming) else None for at in (1, 2)]
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
        peepholes=of(back.optional(PEEPHOLES)) if back.node.op_type == "LSTM" else None,
        clip=back.real("clip", 0.0),
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
