"""The nodes that take the place of one, as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.nodes import input_at, ints_attribute, required_input, string_attribute

END = np.iinfo(np.int64).max
FAR = 64  # strides that are added before a division: more than windows without padding may be longer than an image


@dataclass(frozen=True, slots=True)
class Sides:
    """The dims of an operator's image at several sizes, and those of its result."""

    given: tuple[tuple[int, ...], ...]
    made: tuple[tuple[int, ...], ...]

    @property
    def rank(self) -> int:
        """How many sides an image has."""
        return len(self.given[0]) - 2

    @property
    def channels(self) -> int:
        """How many channels it has."""
        return self.given[0][1]

    def fixed(self) -> tuple[int, ...]:
        """The sides, from 0 on, that are the same at all sizes."""
        return tuple(at for at in range(self.rank) if len({dims[2 + at] for dims in self.given}) == 1)


class Writer:
    """The nodes that take the place of one, which stays where nothing is put in its place."""

    def __init__(self, model: ir.Model, facts: Facts, node: ir.Node) -> None:
        self.node, self.facts, self.opset = node, facts, facts.opset(node)
        self.x = required_input(node, 0)
        self._model, self._made = model, list[ir.Node]()

    def divided(self, numbers: ir.Value, strides: Sequence[int]) -> ir.Value:
        """Whole numbers by strides, rounded down: (h - 3) // 2 as (h - 3 + 128) // 2 - 64, with nothing negative."""
        if set(strides) == {1}:
            return numbers
        more, less = FAR * np.array(strides), self.constant(np.full(len(strides), FAR))
        above = self.add("Add", [numbers, self.constant(more)])
        return self.add("Sub", [self.add("Div", [above, self.constant(np.array(strides))]), less])

    def channels_last(self, x: ir.Value, rank: int) -> ir.Value:
        """An image of so many sides, its channels behind them."""
        return self.add("Transpose", [x], {"perm": [0, *range(2, 2 + rank), 1]})

    def channels_first(self, x: ir.Value, rank: int) -> ir.Value:
        """An image of so many sides, its channels before them."""
        return self.add("Transpose", [x], {"perm": [0, 1 + rank, *range(1, 1 + rank)]})

    def of_windows(
        self, result: ir.Value, x: ir.Value, pads: Sequence[int], reach: Sequence[int], strides: Sequence[int]
    ) -> ir.Value:
        """What was made of the windows of an image `x`, channels last, with the dims that the operator gives.

        Slices alone leave them open: of a side that is shorter than a window they would be empty.
        """
        rank = len(strides)
        less = [front + behind - one for front, behind, one in zip(pads[:rank], pads[rank:], reach, strict=True)]
        windows = self.divided(self.add("Add", [self.dims(x, 2, rank), self.constant(np.array(less))]), strides)
        sides = self.add("Add", [windows, self.constant(np.ones(rank, np.int64))])
        return self.reshape(result, [0, sides, self.dims(result, 1 + rank, 1)])

    def add(
        self, operator: str, inputs: Sequence[ir.Value | None], attributes: dict[str, object] | None = None
    ) -> ir.Value:
        """What an operator gives."""
        node = ir.node(operator, inputs, attributes=attributes or {})  # type: ignore[arg-type]
        node.outputs[0].name = f"{self.node.outputs[0].name}/{operator}{len(self._made)}"
        self._made.append(node)
        return node.outputs[0]

    def constant(self, array: npt.ArrayLike) -> ir.Value:
        """A constant."""
        return self.add("Constant", [], {"value": ir.tensor(np.array(array, order="C"))})

    def dims(self, x: ir.Value, first: int, rank: int) -> ir.Value:
        """So many dims of a value from `first` on."""
        return self.add("Gather", [self.add("Shape", [x]), self.constant(np.arange(first, first + rank))])

    def reshape(self, x: ir.Value, dims: Sequence[int | ir.Value]) -> ir.Value:
        """A value in other dims; a number of 0 stands for what it has there, a value for several dims."""
        parts = [self.constant(np.array([one])) if isinstance(one, int) else one for one in dims]
        return self.add("Reshape", [x, self.add("Concat", parts, {"axis": 0})])

    def part(
        self, x: ir.Value, before: Sequence[int], behind: Sequence[int], steps: Sequence[int], first: int
    ) -> ir.Value:
        """A value without so many elements at the begin and end of its sides, one of every step."""
        rows = [
            (start, -stop if stop else END, first + at, step)
            for at, (start, stop, step) in enumerate(zip(before, behind, steps, strict=True))
            if start or stop or step != 1
        ]
        if not rows:
            return x
        return self.add("Slice", [x, *(self.constant(np.array(numbers)) for numbers in zip(*rows, strict=True))])

    def padded(self, x: ir.Value, pads: Sequence[int], first: int = 2, value: ir.Value | None = None) -> ir.Value:
        """An image with so many elements more around its sides: those in front of all, then those behind."""
        if not any(pads):
            return x
        rank = len(pads) // 2
        after = [0] * (2 - first)
        numbers = [*[0] * first, *pads[:rank], *after, *[0] * first, *pads[rank:], *after]
        return self.add("Pad", [x, self.constant(np.array(numbers)), *([] if value is None else [value])])

    def put(self, result: ir.Value) -> None:
        """Whoever reads the node's result reads this instead."""
        output, graph = self.node.outputs[0], self._model.graph
        result.name, output.name = output.name, f"{output.name}/before"
        result.type, result.shape = output.type, output.shape
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        graph.insert_before(self.node, self._made)
        graph.remove(self.node, safe=True)

    def numbers(self, taps: Sequence[int]) -> tuple[tuple[int, ...] | None, tuple[int, ...], tuple[int, ...]]:
        """Pads, strides and dilations of a window of so many taps; no pads where they follow from sides of a run."""
        node, rank = self.node, len(taps)
        strides, dilations = (tuple(ints_attribute(node, one) or (1,) * rank) for one in ("strides", "dilations"))
        pads: tuple[int, ...] | None = tuple(ints_attribute(node, "pads") or (0,) * 2 * rank)
        kind = string_attribute(node, "auto_pad", "NOTSET")
        if kind == "VALID":
            pads = (0,) * 2 * rank
        elif kind != "NOTSET":
            pads = None
            if node.op_type != "ConvTranspose" and set(strides) == {1}:
                around = [(one - 1) * dilation for one, dilation in zip(taps, dilations, strict=True)]
                less, more = [one // 2 for one in around], [one - one // 2 for one in around]
                pads = (*less, *more) if kind == "SAME_UPPER" else (*more, *less)
        return pads, strides, dilations

    def array(self, at: int) -> npt.NDArray[np.generic] | None:
        """The array of an input, of short floats as they are stored; None where it is no constant."""
        value = input_at(self.node, at)
        found = None if value is None else self.facts.array(value)
        maker = None if value is None else value.producer()
        if found is None and maker is not None and maker.op_type == "Cast":
            found = self.facts.array(maker.inputs[0])
        return found
