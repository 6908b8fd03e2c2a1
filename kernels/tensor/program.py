"""Tensor programs: stages that compute buffers from one another, with the checks that make every later step safe.

    Program := inputs, outputs, Stage*
    Stage   := buffer[indices] = value     for every value of the axes

A stage reads only inputs and buffers of earlier stages. A value may have a Reduce as its outermost node; what surrounds
the reduction is a following stage. Several stages may write one buffer (a concatenation does); together they write
each of its elements exactly once. A buffer that is neither input nor output is a temporary.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernels.errors import KernelsError
from kernels.tensor.check import check_loads, check_types, check_variables
from kernels.tensor.expression import (
    Buffer,
    Expression,
    Index,
    IndexLike,
    Reduce,
    Variable,
    dense_strides,
    index,
)
from kernels.tensor.ranges import bounds, injective, never_equal
from kernels.tensor.traverse import loads


class InvalidProgram(KernelsError):
    """A tensor program that does not say what every element is worth."""


@dataclass(frozen=True, slots=True)
class Stage:
    """buffer[indices] = value, for every value of `axes`. No indices given: the axes themselves, one per dim."""

    buffer: Buffer
    axes: tuple[Variable, ...]
    value: Expression
    indices: tuple[Index, ...] = ()

    def __post_init__(self) -> None:
        if not self.indices:
            object.__setattr__(self, "indices", tuple(index(axis) for axis in self.axes))

    @property
    def name(self) -> str:
        """The name of the buffer."""
        return self.buffer.name

    @property
    def reduction(self) -> Reduce | None:
        """The outermost Reduce; None where the value is elementwise."""
        return self.value if isinstance(self.value, Reduce) else None

    @property
    def elements(self) -> int:
        """How many elements the stage writes."""
        return prod(axis.extent for axis in self.axes)


def stage(buffer: Buffer, axes: tuple[Variable, ...], value: Expression, *at: IndexLike) -> Stage:
    """A stage; `at` are the indices of the element that is written, by default the axes."""
    return Stage(buffer, axes, value, tuple(index(one) for one in at))


@dataclass(frozen=True, slots=True)
class Program:
    """Stages in order. Raises InvalidProgram or InvalidExpression where the text above is not kept."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        _check_names(self)
        written: dict[str, list[Stage]] = {}
        inputs = {buffer.name for buffer in self.inputs}
        read: set[str] = set()
        for position, one in enumerate(self.stages):
            if one.name in inputs:
                raise InvalidProgram(f"stage {position} writes the input '{one.name}': write to a buffer of its own")
            if one.name in read:
                raise InvalidProgram(f"stage {position} writes to '{one.name}' after an earlier stage has read it")
            _check_reads(one, position, inputs, written)
            read.update(load.buffer.name for load in loads(one.value))
            _check_writes(one, written.setdefault(one.name, []))
            written[one.name].append(one)
        for name, writers in written.items():
            count, size = sum(one.elements for one in writers), prod(writers[0].buffer.shape)
            if count != size:
                raise InvalidProgram(f"buffer '{name}' has {size} elements, of which the stages write {count}")
        for buffer in self.outputs:
            if buffer.name not in written:
                raise InvalidProgram(f"no stage writes the output '{buffer.name}'")

    @property
    def temporaries(self) -> tuple[Buffer, ...]:
        """The buffers that are neither inputs nor outputs, in the order they are written."""
        outputs = {buffer.name for buffer in self.outputs}
        return tuple({s.name: s.buffer for s in self.stages if s.name not in outputs}.values())


def _check_names(program: Program) -> None:
    known: dict[str, Buffer] = {}
    used = [*program.inputs, *program.outputs]
    for one in program.stages:
        used += [one.buffer, *(load.buffer for load in loads(one.value))]
    for buffer in used:
        if known.setdefault(buffer.name, buffer) != buffer:
            raise InvalidProgram(f"two different buffers are called '{buffer.name}'")
    ends = [buffer.name for buffer in (*program.inputs, *program.outputs)]
    for name in ends:
        if ends.count(name) > 1:
            raise InvalidProgram(f"'{name}' is listed twice among inputs and outputs")


def _check_reads(one: Stage, position: int, inputs: set[str], written: dict[str, list[Stage]]) -> None:
    check_types(one.value)
    axes = one.axes + (one.reduction.axes if one.reduction else ())
    names = [axis.name for axis in axes]
    if len(set(names)) != len(names):
        raise InvalidProgram(f"stage {position} ('{one.name}') has two axes of one name: {', '.join(names)}")
    check_variables(one.value, frozenset(axes))
    if all(axis.extent > 0 for axis in axes):
        check_loads(one.value)
    for load in loads(one.value):
        if load.buffer.name == one.name:
            raise InvalidProgram(f"stage {position} reads '{one.name}', which it writes")
        if load.buffer.name not in inputs and load.buffer.name not in written:
            raise InvalidProgram(
                f"stage {position} ('{one.name}') reads '{load.buffer.name}', which is no input and which no "
                f"earlier stage writes"
            )


def _check_writes(one: Stage, earlier: list[Stage]) -> None:
    buffer = one.buffer
    if one.value.dtype is not buffer.dtype:
        raise InvalidProgram(f"'{buffer.name}' is {buffer.dtype.value} and its stage computes {one.value.dtype.value}")
    if len(one.indices) != len(buffer.shape):
        raise InvalidProgram(
            f"'{buffer.name}' has {len(buffer.shape)} dims and is written with {len(one.indices)} indices"
        )
    if one.elements == 0:
        return
    for dim, (at, size) in enumerate(zip(one.indices, buffer.shape, strict=True)):
        low, high = bounds(at)
        if low < 0 or high >= size:
            raise InvalidProgram(
                f"'{buffer.name}' has {size} elements in dim {dim} and is written from {low} to {high}"
            )
        unknown = [variable.name for variable, _ in at.terms if variable not in one.axes]
        if unknown:
            raise InvalidProgram(f"'{buffer.name}' is written at {', '.join(unknown)}, which is no axis of its stage")
    place = Index(())
    for at, step in zip(one.indices, dense_strides(buffer.shape), strict=True):
        place = place + at * step
    if not injective(place, one.axes):
        raise InvalidProgram(f"the stage of '{buffer.name}' may write an element twice")
    for other in earlier:
        if other.elements and not any(never_equal(a, b) for a, b in zip(one.indices, other.indices, strict=True)):
            raise InvalidProgram(f"two stages may write the same element of '{buffer.name}'")
