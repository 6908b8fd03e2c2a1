"""Sizes at which a number turns: below 8 rows x[:, :8] has as many as x, and 8 above.

A Slice's bounds are clamped to what is there. Where a range goes over the size at which that happens, a number of the
program is the smaller one of two, or the greater one, which no polynomial of the dims gives: those of both sides are
found with it as one more unknown (polynomials), at samples that lie on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.nodes import describe, input_at, ints_attribute
from kernels.errors import KernelsError
from kernels.size import Dim, Operation, Size, greatest, least

Formula = Callable[[object], "Size | int | None"]  # a dim of the model in those that a run sets; None: it is none


@dataclass(frozen=True, slots=True)
class Kink:
    """The smaller or greater one of two numbers, and the size of a dim from which on it is the other one."""

    operation: Operation
    dim: Dim
    size: int
    node: str
    is_length: bool  # of what a Slice gives; up to the size it gives nothing

    def __str__(self) -> str:
        upto = f"{self.dim.name}={self.size}"
        if self.is_length:
            return f"{self.node} leaves nothing up to {upto}, which a range from {self.size + 1} on does without"
        return f"{self.node} cuts at {self.operation.text}, which turns at {upto}"


def said_of(kinks: Sequence[Kink]) -> str:
    """The kinks for an error; of those that leave nothing alone where there are any."""
    empty = [kink for kink in kinks if kink.is_length]
    return "".join(f"; {text}" for text in dict.fromkeys(map(str, empty or kinks)))


def kinks_of(model: ir.Model, formula: Formula) -> tuple[Kink, ...]:
    """Those of the Slices of the main graph that one dim decides, each operation once."""
    facts, found = Facts(model), dict[Operation, Kink]()
    for node in model.graph:
        if node.op_type == "Slice" and not node.domain:
            for number, is_length in _lengths(facts, node, formula):
                for operation in _operations(number):
                    kink = _kink(operation, describe(node), is_length and operation.kind == "greatest")
                    if kink is not None:
                        found.setdefault(operation, kink)
    return tuple(found.values())


def _lengths(facts: Facts, node: ir.Node, formula: Formula) -> Iterator[tuple[Size | int, bool]]:
    """How much a Slice gives along each axis, where it begins and where it ends; whether it is the first of these."""
    shape = None if node.inputs[0] is None else facts.shape(node.inputs[0])
    starts, ends = (_numbers(facts, node, name, place) for place, name in ((1, "starts"), (2, "ends")))
    if not shape or starts is None or ends is None:
        return
    axes = _numbers(facts, node, "axes", 3) or list(range(len(starts)))
    for axis, begin, finish in zip(axes, starts, ends, strict=False):
        size = formula(shape[int(str(axis)) % len(shape)])
        start, end = (one if isinstance(one, int) else formula(one) for one in (begin, finish))
        if not isinstance(size, Size) or start is None or end is None:
            continue
        try:
            first, last = _clamped(size, start), _clamped(size, end)
            behind = -start if start < 0 else size - start  # rows from the start to the end of the axis
            yield from ((greatest(least(last, last - size + behind), 0), True), (first, False), (last, False))
        except KernelsError:  # a bound that may be of either sign
            continue


def _numbers(facts: Facts, node: ir.Node, name: str, place: int) -> list[object] | None:
    """What an attribute or an operand of a Slice holds, with dims in it; None where that is not known."""
    given = ints_attribute(node, name)
    value = input_at(node, place)
    if given is not None or value is None:
        return None if given is None else list(given)
    content = facts.content(value)
    return None if content is None else content.reshape(-1).tolist()


def _clamped(size: Size, at: Size | int) -> Size | int:
    """A bound as a place from 0 to the size; raises KernelsError where its sign depends on the run."""
    return greatest(size + at, 0) if at < 0 else least(size, at)


def _operations(number: Size | int) -> Iterator[Operation]:
    """The smaller and greater ones of two in a number, those inside of others first."""
    for product, _ in number.terms if isinstance(number, Size) else ():
        for atom in product:
            if isinstance(atom, Operation) and atom.kind != "quotient":
                yield from _operations(atom.left)
                yield from _operations(atom.right)
                yield atom


def _kink(operation: Operation, node: str, is_length: bool) -> Kink | None:
    """Where an operation of one dim turns, by bisection; None where several dims decide it."""
    apart = operation.left - operation.right
    if not isinstance(apart, Size) or len(apart.dims) != 1:
        return None
    (dim,) = apart.dims
    low, high = dim.least, dim.most

    def side(size: int) -> bool:
        return apart.at({dim.name: size}) > 0

    if side(low) == side(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if side(middle) == side(low) else (low, middle)
    return Kink(operation, dim, low, node, is_length)


def samples_below(kinks: Sequence[Kink], dim: Dim, count: int) -> list[int]:
    """Sizes of a dim up to each of its kinks, the greatest first; one, of which dims are dropped, only in need."""
    turns = sorted({kink.size for kink in kinks if kink.dim == dim})
    found: list[int] = []
    for before, turn in zip((dim.least - 1, *turns), turns, strict=False):
        inside = [size for size in range(turn, before, -1) if size > 0][:count]
        usual = [size for size in inside if size > 1]
        found += usual if len(usual) > 1 else inside
    return list(dict.fromkeys(found))
