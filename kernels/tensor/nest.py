"""Loop nests: in which order, and in what groups, the elements of a program are computed.

    Nest       := Node*
    Node       := Loop | Allocate | Store | Accumulate
    Loop       := for variable in 0..extent (serial, vectorized, unrolled or parallel): Node*
    Allocate   := a temporary that lives until the end of the body it stands in; its contents are undefined
    Store      := buffer[indices] = value
    Accumulate := buffer[indices] = op(buffer[indices], value)

`nest_of` gives the plain nest of a program: one group of serial loops per stage, in order, where a reduction runs in an
accumulator of its own. The names of all loops are different, and so are those of all buffers. The schedule primitives
turn one nest into another that computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kernels.dtype import DType
from kernels.tensor.expression import (
    Buffer,
    Cast,
    Expression,
    Index,
    Load,
    Number,
    ReduceOp,
    Variable,
    index,
)
from kernels.tensor.program import Program, Stage
from kernels.tensor.scalars import identity
from kernels.tensor.traverse import loads, rebuild, substitute, substitute_index

LoopKind = Literal["serial", "vectorized", "unrolled", "parallel"]


@dataclass(frozen=True, slots=True)
class Loop:
    """The body for each value of the variable. Iterations of a parallel loop run in any order, on any worker.

    A block runs `chunk` of them, counted over this loop and the parallel loops that it directly holds.
    """

    variable: Variable
    body: tuple[Node, ...]
    kind: LoopKind = "serial"
    chunk: int = 1

    @property
    def name(self) -> str:
        """The name of the variable, by which primitives find the loop."""
        return self.variable.name


@dataclass(frozen=True, slots=True)
class Allocate:
    """A temporary."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[indices] = value."""

    buffer: Buffer
    indices: tuple[Index, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class Accumulate:
    """buffer[indices] = op(buffer[indices], value)."""

    buffer: Buffer
    indices: tuple[Index, ...]
    op: ReduceOp
    value: Expression


Statement = Store | Accumulate
Node = Loop | Allocate | Store | Accumulate


@dataclass(frozen=True, slots=True)
class Nest:
    """A program and one order of computing it."""

    program: Program
    body: tuple[Node, ...]


def nest_of(program: Program) -> Nest:
    """The plain nest: every temporary allocated first, then the stages in order."""
    taken: set[str] = {buffer.name for buffer in (*program.inputs, *program.outputs, *program.temporaries)}
    loops: set[str] = set()
    body: list[Node] = [Allocate(buffer) for buffer in program.temporaries]
    for stage in program.stages:
        body += stage_nodes(stage, loops, taken)
    return Nest(program, tuple(body))


def stage_nodes(stage: Stage, loops: set[str], buffers: set[str]) -> tuple[Node, ...]:
    """The loops of one stage, under names that are not among those given; its own names are added to them."""
    reduction = stage.reduction
    renamed: dict[Variable, Variable] = {}
    for axis in stage.axes + (reduction.axes if reduction else ()):
        name = axis.name if axis.name not in loops else free_name(f"{axis.name}.{stage.name}", loops)
        loops.add(name)
        renamed[axis] = Variable(name, axis.extent)
    by = {old: index(new) for old, new in renamed.items() if old != new}
    place = tuple(substitute_index(one, by) for one in stage.indices)
    if reduction is None:
        inner: tuple[Node, ...] = (Store(stage.buffer, place, substitute(stage.value, by)),)
    else:
        dtype = accumulator_type(stage.buffer.dtype)
        name = free_name(f"{stage.name}.acc", buffers)
        buffers.add(name)
        total = Buffer(name, dtype, ())
        operand = converted(substitute(reduction.operand, by), dtype)
        step: Node = Accumulate(total, (), reduction.op, operand)
        for axis in reversed(reduction.axes):
            step = Loop(renamed[axis], (step,))
        start = Store(total, (), Number(identity(reduction.op, dtype), dtype))
        inner = (Allocate(total), start, step, Store(stage.buffer, place, converted(total[()], stage.buffer.dtype)))
    for axis in reversed(stage.axes):
        inner = (Loop(renamed[axis], inner),)
    return inner


def accumulator_type(dtype: DType) -> DType:
    """The type in which elements of `dtype` are summed up: f32 for the half-width floats."""
    return dtype.held


def converted(value: Expression, dtype: DType) -> Expression:
    """The value in a type; itself where it has that type."""
    return value if value.dtype is dtype else Cast(dtype, value)


def free_name(name: str, taken: set[str]) -> str:
    """The name, or the first of name2, name3, ... that is not taken."""
    if name not in taken:
        return name
    number = 2
    while f"{name}{number}" in taken:
        number += 1
    return f"{name}{number}"


def walk(body: tuple[Node, ...]) -> Iterator[Node]:
    """Every node, loops before what they hold."""
    for node in body:
        yield node
        if isinstance(node, Loop):
            yield from walk(node.body)


def statements(body: tuple[Node, ...]) -> Iterator[Statement]:
    """Every store and accumulation, in the order of the text."""
    return (node for node in walk(body) if isinstance(node, Store | Accumulate))


def with_loops(body: tuple[Node, ...], around: tuple[Loop, ...] = ()) -> Iterator[tuple[tuple[Loop, ...], Statement]]:
    """Every statement with the loops around it, outermost first."""
    for node in body:
        if isinstance(node, Loop):
            yield from with_loops(node.body, (*around, node))
        elif isinstance(node, Store | Accumulate):
            yield around, node


def loop_names(body: tuple[Node, ...]) -> set[str]:
    """The names of all loops."""
    return {node.name for node in walk(body) if isinstance(node, Loop)}


def allocated(body: tuple[Node, ...]) -> set[str]:
    """The names of all temporaries that the body allocates, at any depth."""
    return {node.buffer.name for node in walk(body) if isinstance(node, Allocate)}


def written(body: tuple[Node, ...]) -> set[str]:
    """The names of all buffers that the body stores to."""
    return {statement.buffer.name for statement in statements(body)}


def read(body: tuple[Node, ...]) -> set[str]:
    """The names of all buffers that the body loads from; an accumulation loads what it stores."""
    found = {load.buffer.name for statement in statements(body) for load in loads(statement.value)}
    return found | {one.buffer.name for one in statements(body) if isinstance(one, Accumulate)}


def edit(body: tuple[Node, ...], change: Callable[[Node], tuple[Node, ...]]) -> tuple[Node, ...]:
    """Every node replaced by what `change` makes of it, from the inside out; unchanged loops are the same objects."""
    made: list[Node] = []
    for node in body:
        if isinstance(node, Loop):
            inner = edit(node.body, change)
            same = len(inner) == len(node.body) and all(a is b for a, b in zip(inner, node.body, strict=True))
            made += change(node if same else replace(node, body=inner))
        else:
            made += change(node)
    return tuple(made)


def with_variables(body: tuple[Node, ...], by: Mapping[Variable, Index]) -> tuple[Node, ...]:
    """The body with variables replaced in every index."""

    def change(node: Node) -> tuple[Node, ...]:
        if isinstance(node, Store | Accumulate):
            place = tuple(substitute_index(one, by) for one in node.indices)
            return (replace(node, indices=place, value=substitute(node.value, by)),)
        return (node,)

    return edit(body, change)


def with_buffers(body: tuple[Node, ...], by: Mapping[str, Buffer]) -> tuple[Node, ...]:
    """The body with buffers of as many dims in place of those of the given names."""

    def leaf(node: Expression) -> Expression:
        if isinstance(node, Load) and node.buffer.name in by:
            return Load(by[node.buffer.name], node.indices)
        return node

    return with_leaves(body, leaf, by)


def with_leaves(
    body: tuple[Node, ...], leaf: Callable[[Expression], Expression], targets: Mapping[str, Buffer]
) -> tuple[Node, ...]:
    """The body with `leaf` applied to the leaves of every value, and other buffers to write to."""

    def change(node: Node) -> tuple[Node, ...]:
        if isinstance(node, Allocate):
            return (Allocate(targets.get(node.buffer.name, node.buffer)),)
        if isinstance(node, Store | Accumulate):
            buffer = targets.get(node.buffer.name, node.buffer)
            return (replace(node, buffer=buffer, value=rebuild(node.value, leaf)),)
        return (node,)

    return edit(body, change)
