"""A region: the values that have another form because a Transpose gives it, and those they are bound to by operators.

Every value of a region has two forms, called 0 and 1: the one it has and its transposed one. The sides tell which is
which: a Transpose that leads from one form of a tensor to the other ends up with one tensor on both of its ends, so
values on either side of it are the same tensor, and the Transpose itself need not be.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.passes.layout.flip import Flat, Flip, Label, Question, permutation
from graphopt.passes.layout.permute import inverse
from graphopt.passes.operands import GROWTH
from graphopt.rewrite.rule import READ_LIMIT, Refused

Answer = Callable[[Question], Flip]
SOME = 16  # elements; what a dim is taken for whose size is not known


@dataclass(frozen=True, slots=True)
class Form:
    """What leads to a value's other form, and which of the two forms (0 or 1) the value has."""

    label: Label
    side: int


@dataclass(slots=True)
class Region:
    """Values with two forms, and what the operators around them can do."""

    forms: dict[ir.Value, Form] = field(default_factory=dict)
    flips: dict[ir.Node, Flip] = field(default_factory=dict)  # operators that can work on either form
    sides: dict[ir.Node, int] = field(default_factory=dict)  # the form on which they work now
    ties: dict[ir.Node, None] = field(default_factory=dict)  # Transposes between the two forms of one tensor
    refusals: dict[ir.Node, str] = field(default_factory=dict)  # operators that cannot, and why

    def root(self, value: ir.Value) -> ir.Value:
        """The value that this is a form of."""
        producer = value.producer()
        while producer is not None and producer in self.ties:
            assert producer.inputs[0] is not None, "a tie has its operand"
            value = producer.inputs[0]
            producer = value.producer()
        return value


def explore(facts: Facts, graph: ir.Graph | ir.Function, value: ir.Value, form: Form, answer: Answer) -> Region:
    """The region around a value whose form is given, within one graph: its subgraphs and outer graphs are ends."""
    region = Region({value: form})
    pending = deque([value])
    while pending:
        value = pending.popleft()
        form = region.forms[value]
        producer = value.producer()
        if producer is not None and producer.graph is graph:
            place = next(index for index, output in enumerate(producer.outputs) if output is value)
            _visit(facts, region, Question(facts, producer, form.label, True), place, form, answer, pending)
        for reader, place in tuple(value.uses()):
            if reader.graph is graph:
                _visit(facts, region, Question(facts, reader, form.label, False), place, form, answer, pending)
    return region


def _visit(
    facts: Facts, region: Region, question: Question, place: int, form: Form, answer: Answer, pending: deque[ir.Value]
) -> None:
    """Ask a node once whether it can work on the other form, and give its other values theirs."""
    node = question.node
    if node in region.flips or node in region.ties:
        return
    if node.op_type == "Transpose" and _tie(facts, region, question, form, pending):
        return
    try:
        flip = answer(question)
    except Refused as refused:
        region.refusals.setdefault(node, str(refused))
        return
    own = flip.outputs if question.back else flip.inputs
    if own.get(place) != form.label:
        return
    told: dict[ir.Value, Form] = {}
    for values, labels in ((node.inputs, flip.inputs), (node.outputs, flip.outputs)):
        for index, label in labels.items():
            value = values[index]
            if value is None or (values is node.inputs and facts.is_constant(value)):
                if value is not None and not _may_permute(facts, value):
                    region.refusals.setdefault(node, f"the constant '{value.name}' is too large to permute")
                    return
                continue
            if region.forms.get(value, told.get(value, Form(label, form.side))) != Form(label, form.side):
                region.refusals.setdefault(node, f"'{value.name}' stands in another layout")
                return
            told[value] = Form(label, form.side)
    region.flips[node], region.sides[node] = flip, form.side
    region.refusals.pop(node, None)
    _tell(region, told, pending)


def _tell(region: Region, told: dict[ir.Value, Form], pending: deque[ir.Value]) -> None:
    for value, form in told.items():
        if value not in region.forms:
            region.forms[value] = form
            pending.append(value)


def _may_permute(facts: Facts, value: ir.Value) -> bool:
    tensor = facts.tensor(value)
    return tensor is None or tensor.nbytes <= (GROWTH if len(value.uses()) > 1 else READ_LIMIT)


def _tie(facts: Facts, region: Region, question: Question, form: Form, pending: deque[ir.Value]) -> bool:
    """Whether the Transpose leads from this form of the value to the other one (or back)."""
    node = question.node
    perm = permutation(facts, node)
    if perm is None or isinstance(form.label, Flat):
        return False
    if (inverse(perm) if question.back else perm) != form.label:
        return False
    other = node.inputs[0] if question.back else node.outputs[0]
    if other is None or facts.is_constant(other):
        return False
    wanted = Form(inverse(form.label), 1 - form.side)
    if region.forms.get(other, wanted) != wanted:
        return False
    region.ties[node] = None
    _tell(region, {other: wanted}, pending)
    return True


def elements(facts: Facts, value: ir.Value) -> int:
    """How many elements a value has; dims that are not known are taken for `SOME`."""
    shape = facts.shape(value) or ()
    known = [dim if isinstance(dim, int) else SOME for dim in shape]
    return math.prod(known)
