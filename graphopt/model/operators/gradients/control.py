"""Gradients of Scan: a Scan that takes the steps from the last one to the first.

The Scan of the model also gives the state that each step starts from. A step of the gradient computes the body again
and goes through it in reverse; its states are the gradients of the states, and the sums of those of captured values.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.model import nodes
from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import FLOATS, NoGradient, Term


def scanned(back: Backward) -> Gradients:
    """To the first states, to the rows, and to captured values."""
    node, maker = back.node, back.maker
    (body,) = nodes.subgraphs(node)
    count = len(node.inputs) - back.integer("num_scan_inputs", 1)
    backwards = _direction(back)
    captured = [value for at, value in enumerate(nodes.implicit_inputs(node)) if back.wants(len(node.inputs) + at)]
    states = [back.x(at) for at in range(count)]
    rows = [back.x(at) for at in range(count, len(node.inputs))]
    learned = [at for at, term in enumerate(states) if term.dtype in FLOATS]
    moved = [at for at, term in enumerate(rows) if term.dtype in FLOATS]
    last = [back.incoming[at] or states[at].zeros() for at in learned]
    sums = [maker.term(value).zeros() for value in captured]
    kept = {at: term for at, term in enumerate(back.incoming[count:]) if term is not None}
    outputs = len(body.outputs)
    before = [maker.term(maker.before(node, at)) for at in range(count)]

    def step(after: Sequence[Term], given: Sequence[Term]) -> tuple[Sequence[Term], Sequence[Term]]:
        operands = given[: len(node.inputs)]
        incoming: list[Term | None] = [None] * outputs
        for at, term in zip(learned, after, strict=False):
            incoming[at] = term
        for at, term in zip(kept, given[len(node.inputs) :], strict=True):
            incoming[count + at] = term
        found = back.through(body, operands, incoming, [*body.inputs, *captured])
        to_states = [found[at] or operands[at].zeros() for at in learned]
        to_rows = [found[count + at] or operands[count + at].zeros() for at in moved]
        parts = zip(after[len(learned) :], found[len(node.inputs) :], strict=True)
        return [*to_states, *(total if part is None else total + part for total, part in parts)], to_rows

    ends, gradients = maker.scan([*last, *sums], [*before, *rows, *kept.values()], step, backwards=not backwards)
    result: dict[int, Term] = dict(zip(learned, ends, strict=False))
    result.update({count + at: term for at, term in zip(moved, gradients, strict=True)})
    places = [len(node.inputs) + at for at in range(len(nodes.implicit_inputs(node)))]
    result.update(zip([at for at in places if back.wants(at)], ends[len(learned) :], strict=True))
    return [result.get(at) for at in range(len(node.inputs) + len(places))]


def _direction(back: Backward) -> bool:
    """Whether steps go from the last row to the first; raises NoGradient where rows and results differ in it."""
    axes = {*(back.integers("scan_input_axes") or ()), *(back.integers("scan_output_axes") or ())}
    if axes - {0}:
        raise NoGradient("there is no rule for rows along other axes than the first one")
    (body,) = nodes.subgraphs(back.node)
    rows = back.integer("num_scan_inputs", 1)
    collected = len(body.outputs) - (len(back.node.inputs) - rows)
    given = back.integers("scan_input_directions") or (0,) * rows
    found = {*given, *(back.integers("scan_output_directions") or (0,) * collected)}
    if len(found) > 1:
        raise NoGradient("there is no rule for rows that are read or written in both directions")
    return found == {1}
