"""Numbers that follow from free dims and are computed with: inputs of the model that every run fills itself.

    Shape(past)[2] -> Cast -> Mul(., frequencies) -> Cos      -->   [past] -> Cast -> Mul(., frequencies) -> Cos

At one size such a number is a constant, and all that follows from it too: it would be another constant for every size.
What only says how large something is (a shape, the end of a Slice) stays as it is, and follows from the dims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from graphopt.model.facts import Facts
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

    `with_ranges`: every run computes what follows from a Range of no fixed length, or from what a CumSum counts, as if
    that was no constant at one size: an input that holds zero is added to it.
    """
    facts, inputs = Facts(model), _Inputs(model)
    for node in tuple(model.graph):
        if node.op_type == "Range" and not node.domain:
            start = node.inputs[0]
            given = None if start is None else inputs.of(facts, start, formula)
            if given is not None:
                _shift(model, node, given, facts)
            elif with_ranges and facts.known(node.outputs[0]).content is None:
                length = (facts.shape(node.outputs[0]) or ("unknown",))[0]
                _add(model, node, node.outputs[0], inputs.holding((), (0,), str(length)), facts)
        elif not all(facts.known(one).content is not None for one in node.outputs):
            for at, value in enumerate(node.inputs):
                if value is not None and not value.is_graph_input() and at not in DIMS.get(node.op_type, ()):
                    given = inputs.of(facts, value, formula)
                    if given is not None:
                        node.replace_input_with(at, _as(model, node, given, value, facts))
            counted = node.inputs[0] if with_ranges and node.op_type == "CumSum" and not node.domain else None
            if counted is not None:  # ones, as many as the size says
                zero = _as(model, node, inputs.holding((), (0,), str(facts.shape(counted))), counted, facts)
                summed = ir.node("Add", [counted, zero])
                summed.outputs[0].name = f"{node.outputs[0].name}/counted"
                model.graph.insert_before(node, summed)
                node.replace_input_with(0, summed.outputs[0])
    return inputs.numbers


class _Inputs:
    """The inputs that are added to a model, one for all that hold the same."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._made: dict[tuple[object, ...], ir.Value] = {}
        self.numbers: list[tuple[Size | int, ...]] = []

    def of(self, facts: Facts, value: ir.Value, formula: Formula) -> ir.Value | None:
        """The input that holds what a value holds; None where that is no number that follows from dims."""
        known = facts.known(value)
        if known.content is None or known.dtype not in INTEGERS:
            return None
        found = [one if isinstance(one, int) else formula(one) for one in known.content.reshape(-1).tolist()]
        if all(isinstance(one, int) for one in found) or any(one is None for one in found):
            return None
        return self.holding(known.content.shape, tuple(one for one in found if one is not None))

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


def _as(model: ir.Model, reader: ir.Node, given: ir.Value, like: ir.Value, facts: Facts) -> ir.Value:
    """An input of int64 in the type of the value that it stands for."""
    kind = like.dtype or facts.dtype(like) or ir.DataType.INT64
    if kind is ir.DataType.INT64:
        return given
    cast = ir.node("Cast", [given], {"to": int(kind)})
    cast.outputs[0].name = f"{like.name}/{NAME}"
    model.graph.insert_before(reader, cast)
    return cast.outputs[0]


def _shift(model: ir.Model, node: ir.Node, given: ir.Value, facts: Facts) -> None:
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


def _add(model: ir.Model, node: ir.Node, plain: ir.Value, given: ir.Value, facts: Facts) -> None:
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
