"""Gradients of Scan, Loop and If.

The Scan or Loop of the model also gives the state that each step starts from. The gradient of either is a Scan that
takes the steps from the last one to the first: a step computes the body again and goes through it in reverse; its
states are the gradients of the states, and the sums of those of captured values. The gradient of an If is an If, whose
branches compute those of the model again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import FLOATS, NoGradient, Term


@dataclass(frozen=True, eq=False)
class Steps:
    """How a node steps through its body. Positions count the body's inputs, or its outputs for `results`."""

    body: ir.Graph
    states: Sequence[Term]  # what the first step starts from
    before: Sequence[Term]  # what each step starts from: a row each
    rows: Sequence[Term]  # what else a step reads
    operands: Callable[[Sequence[Term], Sequence[Term]], Sequence[Term]]  # of the body, from states and rows
    state_at: int
    row_at: int
    results: int  # outputs in front of the states
    backwards: bool


def scanned(back: Backward) -> Gradients:
    """To the first states, to the rows, and to captured values."""
    node, maker = back.node, back.maker
    (body,) = nodes.subgraphs(node)
    count = len(node.inputs) - back.integer("num_scan_inputs", 1)
    backwards = _direction(back)
    states = [back.x(at) for at in range(count)]
    rows = [back.x(at) for at in range(count, len(node.inputs))]
    before = [maker.term(maker.before(node, at)) for at in range(count)]
    steps = Steps(body, states, before, rows, lambda given, more: [*given, *more], 0, count, 0, backwards)
    return _through_steps(back, steps, [*range(len(node.inputs))])


def looped(back: Backward) -> Gradients:
    """To the first states, and to captured values. How often it ran is seen from what it gives."""
    node, maker = back.node, back.maker
    (body,) = nodes.subgraphs(node)
    count = len(node.inputs) - 2
    states = [back.x(2 + at) for at in range(count)]
    for term in states:
        if not isinstance(back.facts.known(term.value).type, ir.TensorType):
            raise NoGradient(f"its state '{term.value.name}' is no tensor")
    before = [maker.term(maker.before(node, at)) for at in range(count)]
    seen = [*before, *(term for term in back.incoming[count:] if term is not None)]
    zero, one = (maker.array(np.array(number, np.int64)) for number in (0, 1))
    trips = maker.op("Range", zero, seen[0].dim(0).squeeze(0), one)
    trips = trips.unsqueeze(*range(1, 1 + len(body.inputs[0].shape or ())))
    goes = maker.array(np.ones((1,) * len(body.inputs[1].shape or ()), np.bool_))
    steps = Steps(body, states, before, [trips], lambda given, more: [more[0], goes, *given], 2, 0, 1, False)
    return _through_steps(back, steps, [*range(2, len(node.inputs))])


def _through_steps(back: Backward, steps: Steps, operands: Sequence[int]) -> Gradients:
    """The gradients of states and rows, which are these operands of the node, and those of captured values."""
    node, maker, body = back.node, back.maker, steps.body
    count, given_count = len(steps.states), len(steps.states) + len(steps.rows)
    captured = [value for at, value in enumerate(nodes.implicit_inputs(node)) if back.wants(len(node.inputs) + at)]
    learned = [at for at, term in enumerate(steps.states) if term.dtype in FLOATS]
    moved = [at for at, term in enumerate(steps.rows) if term.dtype in FLOATS]
    last = [back.incoming[at] or steps.states[at].zeros() for at in learned]
    sums = [maker.term(value).zeros() for value in captured]
    kept = {at: term for at, term in enumerate(back.incoming[count:]) if term is not None}
    outputs = len(body.outputs)

    def step(after: Sequence[Term], given: Sequence[Term]) -> tuple[Sequence[Term], Sequence[Term]]:
        states, rows = given[:count], given[count:given_count]
        incoming: list[Term | None] = [None] * outputs
        for at, term in zip(learned, after, strict=False):
            incoming[steps.results + at] = term
        for at, term in zip(kept, given[given_count:], strict=True):
            incoming[steps.results + count + at] = term
        found = back.through(body, steps.operands(states, rows), incoming, [*body.inputs, *captured])
        to_states = [found[steps.state_at + at] or states[at].zeros() for at in learned]
        to_rows = [found[steps.row_at + at] or rows[at].zeros() for at in moved]
        parts = zip(after[len(learned) :], found[len(body.inputs) :], strict=True)
        return [*to_states, *(total if part is None else total + part for total, part in parts)], to_rows

    read = [*steps.before, *steps.rows, *kept.values()]

    def taken() -> tuple[Sequence[Term], Sequence[Term]]:
        return maker.scan([*last, *sums], read, step, backwards=not steps.backwards)

    trips = read[0].shape[0]
    ends: Sequence[Term] = [*last, *sums]
    gradients: Sequence[Term] = []
    if node.op_type == "Scan" or (isinstance(trips, int) and trips):
        ends, gradients = taken()
    elif not isinstance(trips, int):  # ONNX Runtime has no Scan over no rows
        some = read[0].dim(0).squeeze(0) > 0
        ends = maker.choose(some, lambda: taken()[0], lambda: [*last, *sums], ends)
    result = {operands[at]: term for at, term in zip(learned, ends, strict=False)}
    result.update({operands[count + at]: term for at, term in zip(moved, gradients, strict=True)})
    places = [len(node.inputs) + at for at in range(len(nodes.implicit_inputs(node)))]
    result.update(zip([at for at in places if back.wants(at)], ends[len(learned) :], strict=True))
    return [result.get(at) for at in range(len(node.inputs) + len(places))]


def chosen(back: Backward) -> Gradients:
    """To captured values, by the branch that runs."""
    node, maker = back.node, back.maker
    places = [at for at in range(1, 1 + len(nodes.implicit_inputs(node))) if back.wants(at)]
    captured = [nodes.implicit_inputs(node)[at - 1] for at in places]

    def through(branch: ir.Graph) -> Sequence[Term]:
        terms = [maker.term(value) for value in captured]
        found = back.through(branch, [], back.incoming, captured)
        return [term.zeros() if one is None else one.sum_to(term) for term, one in zip(terms, found, strict=True)]

    then, otherwise = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    likes = [maker.term(value) for value in captured]
    results = maker.choose(back.x(0), partial(through, then), partial(through, otherwise), likes)
    gradients = dict(zip(places, results, strict=True))
    return [gradients.get(at) for at in range(1 + len(nodes.implicit_inputs(node)))]


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
