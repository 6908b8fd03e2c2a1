"""Reverse mode: the gradients of one number with respect to values of a graph, as nodes behind it.

Nodes are visited from the last to the first. Each gives the gradients of its operands from those of its results by the
rule of its operator; the contributions of all readers of a value add up. Source: Griewank and Walther, Evaluating
Derivatives, 2nd ed. (2008), chapter 3: one sweep costs a small multiple of the graph, however many gradients are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import onnx_ir as ir

from graphopt.errors import ModelError
from graphopt.gradient.maker import GradientMaker
from graphopt.model import dims, nodes
from graphopt.model.known import Knowledge
from graphopt.model.operators.gradients.backward import Backward
from graphopt.model.operators.gradients.terms import FLOATS, NoGradient, Term
from graphopt.model.operators.table import operator_of


def active_nodes(
    order: Iterable[ir.Node], facts: Knowledge, wanted: Iterable[ir.Value], ends: Iterable[ir.Value]
) -> list[ir.Node]:
    """The nodes through which a wanted value reaches an end, in their order."""
    reached = set(wanted)
    forward = []
    for node in order:
        if any(value in reached for value in _reads(node)):
            forward.append(node)
            reached.update(output for output in node.outputs if _may_vary(output, facts))
    needed = set(ends)
    found = []
    for node in reversed(forward):
        if any(output in needed for output in node.outputs):
            found.append(node)
            needed.update(value for value in _reads(node) if value in reached)
    return found[::-1]


def _may_vary(value: ir.Value, facts: Knowledge) -> bool:
    """Whether a value has a gradient: floats, values of which nothing is known, and quantized numbers.

    Integers stand for floats where they are quantized, and only to be dequantized.
    """
    if facts.dtype(value) is None or facts.dtype(value) in FLOATS:
        return True
    producer = value.producer()
    return (
        producer is not None and producer.op_type == "QuantizeLinear" and nodes.is_standard(producer)
        and all(node.op_type == "DequantizeLinear" and index == 0 for node, index in value.uses())
    )  # fmt: skip


def _reads(node: ir.Node) -> list[ir.Value]:
    """What a node reads, in its subgraphs too."""
    found = [value for value in node.inputs if value is not None]
    for graph in nodes.subgraphs(node):
        for inner in graph:
            found += _reads(inner)
    return found


def gradients(maker: GradientMaker, loss: ir.Value, wanted: Sequence[ir.Value]) -> Mapping[ir.Value, ir.Value]:
    """The gradient of `loss`, a float of one element, with respect to each wanted value that it depends on.

    Raises ModelError, naming each operator in the way, where a node has no rule.
    """
    active = active_nodes(maker.graph, maker.facts, wanted, [loss])
    _require_rules(active)
    if not active:
        return {}
    if maker.facts.shape(loss) is None:
        raise ModelError(f"the dims of '{loss.name}' do not follow from the model, so that it has no gradient.")
    maker.serve(active[-1])
    one = maker.term(loss)
    found = {loss: one.number(1.0) if one.rank == 0 else one.zeros() + 1.0}
    _sweep(maker, active, wanted, found)
    return {value: found[value].value for value in wanted if value in found}


def _sweep(
    maker: GradientMaker, active: Sequence[ir.Node], wanted: Sequence[ir.Value], found: dict[ir.Value, Term]
) -> None:
    """Add the gradients of what active nodes read to those of what they give."""
    useful = {output for node in active for output in node.outputs} | set(wanted)
    for node in reversed(active):
        _visit(maker, node, useful, found)


def _through(
    maker: GradientMaker,
    body: ir.Graph,
    given: Sequence[Term],
    incoming: Sequence[Term | None],
    wanted: Sequence[ir.Value],
) -> Sequence[Term | None]:
    """The gradients of values that a body reads, from those of its outputs; the body is computed again for them."""
    order, places = maker.copied(body, given)
    found: dict[ir.Value, Term] = {}
    for output, term in zip(body.outputs, incoming, strict=False):
        if term is not None:
            end = places.get(output, output)
            shape = maker.facts.shape(end)
            if shape is None or not dims.may_be_same(shape, term.shape):
                raise NoGradient(f"the dims of '{output.name}' in it change from step to step, or are not known")
            found[end] = found[end] + term if end in found else term
    targets = [places.get(value, value) for value in wanted]
    active = active_nodes(order, maker.facts, targets, list(found))
    _require_rules(active)
    _sweep(maker, active, targets, found)
    return [found.get(value) for value in targets]


def has_rule(node: ir.Node) -> bool:
    """Whether the operator of a node has a gradient rule."""
    operator = operator_of(node)
    return operator is not None and operator.gradient is not None


def _require_rules(active: Sequence[ir.Node]) -> None:
    lacking: dict[str, list[ir.Node]] = {}
    for node in active:
        if not has_rule(node):
            lacking.setdefault(
                node.op_type if nodes.is_standard(node) else f"{node.domain}::{node.op_type}", []
            ).append(node)
    if lacking:
        listed = ", ".join(f"{name} ('{there[0].name or there[0].outputs[0].name}')" for name, there in lacking.items())
        raise ModelError(f"there is no gradient rule for {listed}; name values that lie behind with --with-respect-to.")


def _visit(maker: GradientMaker, node: ir.Node, useful: set[ir.Value], found: dict[ir.Value, Term]) -> None:
    """Add what flows from a node's results to its operands."""
    incoming = tuple(found.get(output) for output in node.outputs)
    if all(one is None for one in incoming):
        return
    operator = operator_of(node)
    assert operator is not None and operator.gradient is not None, "the rules are there"
    operands = [*node.inputs, *(nodes.implicit_inputs(node) if nodes.has_subgraphs(node) else ())]
    wanted = tuple(value is not None and value in useful for value in operands)
    maker.serve(node)
    back = Backward(maker, node, incoming, wanted, partial(_through, maker))
    try:
        contributions = operator.gradient(back)
        for value, asked, term in zip(operands, wanted, contributions, strict=False):
            if value is None or not asked or term is None:
                continue
            term = term.sum_to(maker.term(value))
            found[value] = found[value] + term if value in found else term
    except NoGradient as reason:
        raise ModelError(f"{nodes.describe(node)} has no gradient: {reason}.") from None
