"""Numbers that follow from free dims and are computed with: inputs of the model that every run fills itself.

    Shape(past)[2] -> Cast -> Mul(., frequencies) -> Cos      -->   [past] -> Cast -> Mul(., frequencies) -> Cos

At one size such a number is a constant, and all that follows from it too: it would be another constant for every size.
What only says how large something is (a shape, the end of a Slice) stays as it is, and follows from the dims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import lcm

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import dims
from graphopt.model.content import REAL_TYPES
from graphopt.model.facts import Facts
from graphopt.model.nodes import subgraphs
from graphopt.model.reals import Real
from kernels.size import Size

NAME = "size"
INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
# Positions of operands that say how large results are, or where they begin.
DIMS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "Pad": (1,), "Slice": (1, 2, 3, 4),
    "Resize": (1, 2, 3), "Tile": (1,), "TopK": (1,), "Split": (1,), "OneHot": (1,), "CenterCropPad": (1,),
    "Unsqueeze": (1,), "Squeeze": (1,), "If": (0,), "Loop": (0, 1), "Extend": (3,), "DFT": (1,),
}  # fmt: skip
Formula = Callable[[object], "Size | int | None"]  # a dim of the model in those that a run sets; None: it is none


def with_sized_inputs(model: ir.Model, formula: Formula, *, with_ranges: bool = False) -> list[tuple[Size | int, ...]]:
    """Give a model such inputs, behind its own; what each holds, row by row. The model is changed.

    `with_ranges`: every run computes what follows from a Range of no fixed length, from what a CumSum counts, or from
    a Concat of as many numbers as sizes say, as if that was no constant at one size: an input that holds zero is added.
    """
    facts, inputs, sources = Facts(model), _Inputs(model), _Sources()
    for node in tuple(model.graph):
        if node.op_type == "Range" and not node.domain:
            start = node.inputs[0]
            given = None if start is None else inputs.of(facts, start, formula)
            if given is not None:
                _shift(model, node, given, facts)
            elif with_ranges and facts.known(node.outputs[0]).content is None:
                length = (facts.shape(node.outputs[0]) or ("unknown",))[0]
                _add(model, node, node.outputs[0], Given(inputs.holding((), (0,), str(length))), facts)
        elif not all(facts.known(one).content is not None for one in node.outputs):
            for at, value in enumerate(node.inputs):
                if value is not None and not value.is_graph_input() and at not in DIMS.get(node.op_type, ()):
                    given = inputs.of(facts, value, formula)
                    if given is not None:
                        node.replace_input_with(at, _as(model, node, given, value, facts))
            for at, value in _counted(node, facts, sources) if with_ranges else ():
                given = Given(inputs.holding((), (0,), str(facts.shape(value))))
                summed = ir.node("Add", [value, _as(model, node, given, value, facts)])
                summed.outputs[0].name = f"{node.outputs[0].name}/counted{at or ''}"
                model.graph.insert_before(node, summed)
                node.replace_input_with(at, summed.outputs[0])
    for value in dict.fromkeys(model.graph.outputs):
        producer = value.producer()
        given = None if producer is None else inputs.of(facts, value, formula)
        if producer is not None and given is not None:
            _give(model, value, producer, _as(model, producer, given, value, facts))
    return inputs.numbers


class _Sources:
    """Which values follow from constants and sizes alone."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, bool] = {}

    def are_sizes(self, value: ir.Value) -> bool:
        """Whether no data decide what the value holds."""
        pending = [value]
        while pending:
            one = pending[-1]
            producer = one.producer()
            if one in self._known or producer is None or producer.op_type in ("Shape", "Size", "Constant"):
                self._known.setdefault(one, producer is not None or not one.is_graph_input())
                pending.pop()
                continue
            given = [value for value in producer.inputs if value is not None]
            missing = [value for value in given if value not in self._known]
            if not missing:
                is_plain = bool(given) and not subgraphs(producer)
                self._known[one] = is_plain and all(self._known[value] for value in given)
            pending += missing
        return self._known[value]


def _counted(node: ir.Node, facts: Facts, sources: _Sources) -> list[tuple[int, ir.Value]]:
    """Operands of which there are as many as a size says: ones that are counted, strides of all places of a grid."""
    if node.domain or node.op_type not in ("CumSum", "Concat"):
        return []
    given = [(at, value) for at, value in enumerate(node.inputs) if value is not None]
    if node.op_type == "CumSum":
        return given[:1]
    return [
        (at, value) for at, value in given
        if facts.dtype(value) in (*INTEGERS, *REAL_TYPES)
        and not all(isinstance(dim, int) for dim in facts.shape(value) or (1,))
        and facts.known(value).content is None
        and sources.are_sizes(value)
    ]  # fmt: skip


def _give(model: ir.Model, value: ir.Value, producer: ir.Node, told: ir.Value) -> None:
    """Let an output of the model be what an input tells, and not what its producer computes."""
    copy = ir.node("Identity", [told])
    new = copy.outputs[0]
    new.type, new.shape, new.name = value.type, value.shape, value.name
    value.name = f"{value.name}/plain"
    model.graph.insert_after(producer, copy)
    model.graph.outputs[:] = [new if one is value else one for one in model.graph.outputs]


@dataclass(frozen=True, slots=True)
class Given:
    """An input of int64, and by what its numbers are divided: of ceil(height / 2) / 4 by 4."""

    value: ir.Value
    parts: int = 1


class _Inputs:
    """The inputs that are added to a model, one for all that hold the same."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._made: dict[tuple[object, ...], ir.Value] = {}
        self.numbers: list[tuple[Size | int, ...]] = []

    def of(self, facts: Facts, value: ir.Value, formula: Formula) -> Given | None:
        """The input that holds what a value holds; None where that is no number that follows from dims."""
        known = facts.known(value)
        if known.content is None or known.dtype not in (*INTEGERS, *REAL_TYPES):
            return None
        numbers = [one.value if isinstance(one, Real) else one for one in known.content.reshape(-1).tolist()]
        parts = lcm(*(int(sympy.fraction(sympy.together(one))[1]) for one in numbers if isinstance(one, sympy.Expr)))
        if parts > 1 and known.dtype in INTEGERS:  # a dim that is a part of another, exactly
            return None
        whole = [dims.normal(parts * one) for one in numbers]
        found = [one if isinstance(one, int) else formula(one) for one in whole]
        if all(isinstance(one, int) for one in found) or any(one is None for one in found):
            return None
        return Given(self.holding(known.content.shape, tuple(one for one in found if one is not None)), parts)

    def holding(self, shape: tuple[int, ...], numbers: tuple[Size | int, ...], purpose: str = "") -> ir.Value:
        """The input of int64 that holds the numbers, for one purpose: what differs is not equal at some sizes alone."""
        key = shape, tuple(map(str, numbers)), purpose
        if key not in self._made:
            name = f"{NAME}:{len(self.numbers)}"
            made = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(shape))
            self._model.graph.inputs.append(made)
            self.numbers.append(numbers)
            self._made[key] = made
        return self._made[key]


def _as(model: ir.Model, reader: ir.Node, given: Given, like: ir.Value, facts: Facts) -> ir.Value:
    """What an input holds in the type of the value that it stands for."""
    kind, found = like.dtype or facts.dtype(like) or ir.DataType.INT64, given.value
    if kind is ir.DataType.INT64:
        return found
    steps = [ir.node("Cast", [found], {"to": int(kind)})]
    if given.parts > 1:
        parts = ir.node("Constant", [], {"value": ir.tensor(np.array(given.parts, kind.numpy()))})
        steps += [parts, ir.node("Div", [steps[0].outputs[0], parts.outputs[0]])]
    for number, step in enumerate(steps):
        step.outputs[0].name = f"{like.name}/{NAME}{number or ''}"
    model.graph.insert_before(reader, steps)
    return steps[-1].outputs[0]


def _shift(model: ir.Model, node: ir.Node, given: Given, facts: Facts) -> None:
    """Range(start, limit, delta) as Range(0, limit - start, delta) + start, where an input holds the start."""
    start, limit, delta = node.inputs
    if start is None or limit is None:
        return
    out = node.outputs[0]
    zero = ir.node("Constant", [], {"value": ir.tensor(np.zeros((), (start.dtype or ir.DataType.INT64).numpy()))})
    length = ir.node("Sub", [limit, start])
    plain = ir.node("Range", [zero.outputs[0], length.outputs[0], delta])
    for one, word in ((zero, "zero"), (length, "length"), (plain, "plain")):
        one.outputs[0].name = f"{out.name}/{word}"
        one.outputs[0].type = out.type
    model.graph.insert_before(node, [zero, length, plain])
    _add(model, node, plain.outputs[0], given, facts)
    model.graph.remove(node, safe=True)


def _add(model: ir.Model, node: ir.Node, plain: ir.Value, given: Given, facts: Facts) -> None:
    """Whoever reads what a Range gives reads the sum of `plain` and an input instead."""
    out = node.outputs[0]
    moved = ir.node("Add", [plain, _as(model, node, given, out, facts)])
    moved.outputs[0].name, moved.outputs[0].type, moved.outputs[0].shape = f"{out.name}/moved", out.type, out.shape
    ir.convenience.replace_all_uses_with(out, moved.outputs[0])
    for position, value in enumerate(model.graph.outputs):
        if value is out:
            model.graph.outputs[position] = moved.outputs[0]
    if plain is out:
        moved.replace_input_with(0, out)
    model.graph.insert_after(node, moved)
