"""The pattern language: what a rule looks for, drawn as a tree of operators seen from the last one upwards.

    op("Add", op("Add", var("x"), const("a"), name="inner"), const("b"))

matches `(x + a) + b`. An operator inside the tree must be read by nothing but the tree (its value disappears), unless
it says `shared=True`. Commutative operators are tried with their operands either way round. A failed match says where
and why it failed, so that `graphopt explain` can tell near misses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.table import COMMUTATIVE


@dataclass(frozen=True, slots=True)
class Var:
    """Any value; the same name twice must be the same value."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """A value whose data is known: an initializer, a Constant, or a splat. With `scalar`, one number."""

    name: str
    scalar: bool = False
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """An operator of the standard domain with patterns for its inputs; inputs beyond those given are not looked at."""

    types: tuple[str, ...]
    inputs: tuple[Pattern, ...]
    name: str | None = None
    shared: bool = False
    output: int = 0
    exact: bool = field(default=False)  # True: the node has no inputs beyond the pattern's

    @property
    def commutes(self) -> bool:
        """Whether the two operands may stand either way round."""
        return len(self.inputs) == 2 and all(kind in COMMUTATIVE for kind in self.types)


Pattern = Var | Const | Op


def op(
    types: str | tuple[str, ...],
    *inputs: Pattern,
    name: str | None = None,
    shared: bool = False,
    output: int = 0,
    exact: bool = False,
) -> Op:
    """An operator pattern; `types` may list alternatives."""
    kinds = (types,) if isinstance(types, str) else types
    return Op(kinds, inputs, name, shared, output, exact)


def var(name: str) -> Var:
    """Any value."""
    return Var(name)


def const(name: str) -> Const:
    """A constant."""
    return Const(name)


def scalar(name: str, value: float | None = None) -> Const:
    """A constant of one element (or one repeated value), equal to `value` (to 1e-6 relative) when that is given."""
    return Const(name, True, value)


@dataclass(slots=True)
class Binding:
    """What the parts of a pattern stand for in one place of a graph."""

    values: dict[str, ir.Value]
    nodes: dict[str, ir.Node]
    inner: list[ir.Node]

    def copy(self) -> Binding:
        """An independent copy, for trying an alternative."""
        return Binding(dict(self.values), dict(self.nodes), list(self.inner))


class Miss(Exception):
    """The pattern does not fit here; the text says where."""


Reasons = list[str] | None  # None: nobody asks, so nothing is written


def match(pattern: Op, root: ir.Node, facts: Facts, *, explain: bool = False) -> Binding:
    """The bindings with which `pattern` fits at `root`; raises Miss, with the deepest reason found if `explain`.

    Reasons are only written on request: putting them into words costs more than the matching.
    """
    reason: Reasons = ["the pattern does not fit"] if explain else None
    for binding in _node(pattern, root, root, Binding({}, {}, []), facts, reason):
        return binding
    raise Miss(reason[-1]) if reason is not None else Miss()


CONSTANTS = frozenset({"Constant", "ConstantOfShape"})


def may_match(pattern: Op, node: ir.Node) -> bool:
    """A look at the operands alone: False where `match` would miss for certain, at a small part of its cost."""
    inputs, wanted = node.inputs, pattern.inputs
    if len(inputs) < len(wanted):
        return False
    if pattern.commutes and not (_may_be(wanted[0], inputs[0]) and _may_be(wanted[1], inputs[1])):
        return _may_be(wanted[0], inputs[1]) and _may_be(wanted[1], inputs[0])
    return all(_may_be(part, value) for part, value in zip(wanted, inputs, strict=False))


def _may_be(pattern: Pattern, value: ir.Value | None) -> bool:
    if value is None:
        return False
    if isinstance(pattern, Var):
        return True
    producer = value.producer()
    if isinstance(pattern, Const):
        return producer is None or producer.op_type in CONSTANTS
    return producer is not None and producer.op_type in pattern.types


def _node(
    pattern: Op, node: ir.Node, root: ir.Node, binding: Binding, facts: Facts, reason: Reasons
) -> Iterator[Binding]:
    if node.op_type not in pattern.types or not nodes.is_standard(node):
        if reason is not None:
            reason.append(f"{nodes.describe(node)} stands where {' or '.join(pattern.types)} is wanted")
        return
    if pattern.exact and len(node.inputs) > len(pattern.inputs):
        if reason is not None:
            reason.append(f"{nodes.describe(node)} has more inputs than the pattern allows")
        return
    if node is not root:
        if node.graph is not root.graph:
            if reason is not None:
                reason.append(f"{nodes.describe(node)} belongs to an outer graph")
            return
        if not pattern.shared and not _single_use(node):
            if reason is not None:
                reason.append(f"the result of {nodes.describe(node)} is read elsewhere too")
            return
    if facts.functions and nodes.has_reference_attributes(node):
        if reason is not None:
            reason.append(f"an attribute of {nodes.describe(node)} is given by the function's caller")
        return
    started = binding.copy()
    if pattern.name is not None:
        started.nodes[pattern.name] = node
    started.inner.append(node)
    orders = [pattern.inputs]
    if pattern.commutes:
        orders.append((pattern.inputs[1], pattern.inputs[0]))
    for order in orders:
        yield from _inputs(order, 0, node, root, started, facts, reason)


def _single_use(node: ir.Node) -> bool:
    uses = [use for output in node.outputs for use in output.uses()]
    consumers = {use.node for use in uses}
    return len(consumers) == 1 and not any(output.is_graph_output() for output in node.outputs)


def _inputs(
    order: tuple[Pattern, ...],
    index: int,
    node: ir.Node,
    root: ir.Node,
    binding: Binding,
    facts: Facts,
    reason: Reasons,
) -> Iterator[Binding]:
    if index == len(order):
        yield binding
        return
    value = nodes.input_at(node, index)
    for extended in _value(order[index], value, node, root, binding, facts, reason):
        yield from _inputs(order, index + 1, node, root, extended, facts, reason)


def _value(
    pattern: Pattern,
    value: ir.Value | None,
    user: ir.Node,
    root: ir.Node,
    binding: Binding,
    facts: Facts,
    reason: Reasons,
) -> Iterator[Binding]:
    if value is None:
        if reason is not None:
            reason.append(f"{nodes.describe(user)} lacks an input")
        return
    if isinstance(pattern, Op):
        producer = value.producer()
        if producer is None:
            if reason is not None:
                reason.append(f"'{value.name}' is not computed by {' or '.join(pattern.types)}")
        elif value.index() != pattern.output:
            if reason is not None:
                reason.append(f"'{value.name}' is another output of {nodes.describe(producer)}")
        else:
            yield from _node(pattern, producer, root, binding, facts, reason)
        return
    bound = binding.values.get(pattern.name)
    if bound is not None and bound is not value:
        if reason is not None:
            reason.append(f"'{value.name}' stands where '{bound.name}' is wanted")
        return
    if isinstance(pattern, Const):
        if not facts.is_constant(value):
            if reason is not None:
                reason.append(f"'{value.name}' is not a constant")
            return
        if pattern.scalar:
            number = facts.scalar(value)
            if number is None:
                if reason is not None:
                    reason.append(f"constant '{value.name}' holds more than one number")
                return
            if pattern.value is not None and not abs(number - pattern.value) <= 1e-6 * abs(pattern.value):
                if reason is not None:
                    reason.append(f"constant '{value.name}' is {number}, not {pattern.value}")
                return
    extended = binding.copy()
    extended.values[pattern.name] = value
    yield extended
