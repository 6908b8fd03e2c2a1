"""The nodes that take the place of one, as they are written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.model.dims import Dims
from graphopt.model.facts import Facts
from graphopt.model.nodes import OF_ANY_SIDES, input_at, ints_attribute, required_input, string_attribute
from graphopt.model.operators.table import ARITHMETIC, UNARY
from graphopt.program.steps import Formula
from kernels.size import Dim, Size
from kernels.target import Target

END = np.iinfo(np.int64).max
SAME = ("SAME_UPPER", "SAME_LOWER")
Weights = npt.NDArray[Any]
PLAIN_RANK = 3  # of a single number at most, which adds no dim to any image
FOLLOWING = 4  # nodes at most that are taken along behind one
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

    def __init__(
        self, model: ir.Model, facts: Facts, node: ir.Node, dims: Dims | None, formula: Formula, *,
        exact: bool, target: Target | None,
    ) -> None:  # fmt: skip
        """`dims` are the image's, and `formula` gives them.

        `exact`: nothing is rounded otherwise than a plain sum is. `target` is that of kernels which take sides from the
        run; None: there are none.
        """
        self.node, self.facts, self.opset, self.exact, self.target = node, facts, facts.opset(node), exact, target
        self.steps: list[Size | int] = []  # numbers of what was cut in pieces of several
        self._given, self._formula = dims, formula
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
    ) -> ir.Value:  # fmt: skip
        """What was made of the windows of an image `x`, channels last, with the dims that the operator gives.

        Slices alone leave them open: of a side that is shorter than a window they would be empty.
        """
        rank = len(strides)
        sides = self._windows(x, pads, reach, strides)
        return self.reshape(result, [0, sides, self.dims(result, 1 + rank, 1)])

    def keep(self, pads: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> None:
        """Let the node stand, which has a kernel that takes sides from the run, with the dims that its windows give."""
        node = self.node
        if set(strides) == {1}:
            node.metadata_props[OF_ANY_SIDES] = ""
            return
        made = self.add(node.op_type, node.inputs, dict(node.attributes))
        self._made[-1].name = node.name
        self._made[-1].metadata_props.update(node.metadata_props | {OF_ANY_SIDES: ""})
        self.put(self.reshape(made, [0, 0, self._windows(self.x, pads, reach, strides)]))

    def _windows(self, x: ir.Value, pads: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> ir.Value:
        """How many windows there are along each side of an image."""
        rank = len(strides)
        less = [front + behind - one for front, behind, one in zip(pads[:rank], pads[rank:], reach, strict=True)]
        windows = self.divided(self.add("Add", [self.dims(x, 2, rank), self.constant(np.array(less))]), strides)
        return self.add("Add", [windows, self.constant(np.ones(rank, np.int64))])

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

    def parts(
        self, x: ir.Value, taps: Sequence[int], dilations: Sequence[int], strides: Sequence[int], first: int
    ) -> list[ir.Value]:
        """What each tap of a window meets, one tap after the other."""
        parts = []
        for place in itertools.product(*map(range, taps)):
            before = [at * dilation for at, dilation in zip(place, dilations, strict=True)]
            behind = [(count - 1 - at) * dilation for at, count, dilation in zip(place, taps, dilations, strict=True)]
            parts.append(self.part(x, before, behind, strides, first))
        return parts

    def padded(self, x: ir.Value, pads: Sequence[int], first: int = 2, value: ir.Value | None = None) -> ir.Value:
        """An image with so many elements more around its sides: those in front of all, then those behind."""
        if not any(pads):
            return x
        rank = len(pads) // 2
        after = [0] * (2 - first)
        numbers = [*[0] * first, *pads[:rank], *after, *[0] * first, *pads[rank:], *after]
        return self.add("Pad", [x, self.constant(np.array(numbers)), *([] if value is None else [value])])

    def surrounded(self, x: ir.Value, taps: Sequence[int], value: ir.Value | None = None) -> ir.Value | None:
        """An image with what SAME_UPPER or SAME_LOWER puts around it at the sides of a run, channels first.

        More is put around it than any sides ask for, and what these do not is cut off: so much in front of it as the
        last window's part of the image decides. None where windows are shorter than their strides, but for single
        pixels, where sides are quotients already, and where the node says its pads.
        """
        kind, (_, strides, dilations) = string_attribute(self.node, "auto_pad", "NOTSET"), self.numbers(taps)
        reach = [(count - 1) * dilation + 1 for count, dilation in zip(taps, dilations, strict=True)]
        if set(reach) == {1} and kind in SAME:
            return x
        is_short = any(one < step for one, step in zip(reach, strides, strict=True))
        if kind not in SAME or is_short or not self._has_plain_sides():
            return None
        rank, more = len(taps), int(kind == "SAME_LOWER")
        # By side what stands before the image where a stride begins with 1, 2 ... of its last pixels.
        before = [
            [(one - last + more) // 2 for last in range(1, step + 1)] for one, step in zip(reach, strides, strict=True)
        ]
        turns = [[last for last in range(1, len(some)) if some[last - 1] > some[last]] for some in before]
        sides = self.dims(x, 2, rank)
        first = [some[0] - some[-1] - len(found) for some, found in zip(before, turns, strict=True)]
        start, begun = self.constant(np.array(first)), self._begun(sides, strides, strides)
        for turn in range(max(map(len, turns))):
            lasts = [found[turn] if turn < len(found) else step for found, step in zip(turns, strides, strict=True)]
            start = self.add("Add", [start, self.add("Sub", [self._begun(sides, strides, lasts), begun])])
        spanned = self.add("Mul", [begun, self.constant(np.array(strides))])
        ends = self.add("Add", [self.add("Add", [start, spanned]), self.constant(np.array(reach))])
        behind = [one - 1 - some[0] for one, some in zip(reach, before, strict=True)]
        padded = self.padded(x, (*(some[0] for some in before), *behind), 2, value)
        return self.add("Slice", [padded, start, ends, self.constant(np.arange(2, 2 + rank))])

    def _has_plain_sides(self) -> bool:
        """Whether no side of the image is a quotient: products of four of them are found at too few sizes."""
        sizes = [None] if self._given is None else [self._formula(dim) for dim in self._given[2:]]
        terms = [term for size in sizes if isinstance(size, Size) for term in size.terms]
        return None not in sizes and all(isinstance(atom, Dim) for product, _ in terms for atom in product)

    def _begun(self, sides: ir.Value, strides: Sequence[int], lasts: Sequence[int]) -> ir.Value:
        """How many strides a side begins, less one where the last of them has no more than so many pixels."""
        for side, (step, last) in enumerate(zip(strides, lasts, strict=True)):
            size = None if self._given is None else self._formula(self._given[2 + side])
            if size is not None:
                self.steps.append((size + step - 1 - last) // step)
        more = [step - 1 - last for step, last in zip(strides, lasts, strict=True)]
        return self.divided(self.add("Add", [sides, self.constant(np.array(more))]), strides)

    def put(self, result: ir.Value) -> None:
        """Whoever reads the node's result reads this instead.

        What alone follows, element by element, is done before its channels go first: a product takes it along.
        """
        nodes, producer = [self.node], result.producer()
        if producer is not None and producer.op_type == "Transpose":
            behind = self._behind()
            if behind:
                result = self._before(producer, behind)
                nodes += behind
        output, last, graph = nodes[-1].outputs[0], nodes[-1], self._model.graph
        result.name, output.name = output.name, f"{output.name}/before"
        result.type, result.shape = output.type, output.shape or self.node.outputs[0].shape
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        graph.insert_before(last, self._made)
        for node in reversed(nodes):
            graph.remove(node, safe=True)

    def _behind(self) -> list[ir.Node]:
        """Nodes that read nothing but the node's result, each other's and single numbers, element by element.

        All but the last are read by these alone.
        """
        inside, found, longest = {self.node.outputs[0]}, list[ir.Node](), 0
        while len(found) < FOLLOWING:
            users = {use.node: None for value in inside for use in value.uses()}
            following = next((node for node in users if node not in found and self._is_alone(node, inside)), None)
            if following is None:
                break
            found.append(following)
            inside.add(following.outputs[0])
            leaving = [
                value for value in inside
                if value.is_graph_output() or any(use.node not in found for use in value.uses())
            ]  # fmt: skip
            if leaving == [following.outputs[0]]:
                longest = len(found)
        return found[:longest]

    def _is_alone(self, node: ir.Node, inside: set[ir.Value]) -> bool:
        """Whether a node computes each element from those of some values in one place, and from single numbers."""
        if node.domain or node.op_type not in UNARY | ARITHMETIC or node.graph is not self.node.graph:
            return False
        others = [self.facts.array(value) for value in node.inputs if value is not None and value not in inside]
        return all(one is not None and one.size == 1 and one.ndim <= PLAIN_RANK for one in others)

    def _before(self, turned: ir.Node, behind: Sequence[ir.Node]) -> ir.Value:
        """What nodes behind make of what a Transpose turns, which is turned then."""
        self._made.remove(turned)
        known: dict[ir.Value | None, ir.Value | None] = {self.node.outputs[0]: turned.inputs[0]}
        value = turned.inputs[0]
        for node in behind:
            value = self.add(node.op_type, [known.get(one, one) for one in node.inputs], dict(node.attributes))
            self._made[-1].name = node.name
            self._made[-1].metadata_props.update(node.metadata_props)
            known[node.outputs[0]] = value
        return self.add("Transpose", [value], dict(turned.attributes))

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
