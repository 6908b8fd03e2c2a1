"""A scheduled nest as machine code: one kernel whose blocks are the iterations of the parallel loops.

Temporaries without dims, and those that are accessed lane by lane, live in registers; the others in the worker's
scratch memory. What does not change in a loop is computed before it: the parts of addresses, and whole subexpressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from kernels.dtype import DType
from kernels.kernel import Kernel, operands_of, write_kernel
from kernels.llvm import types
from kernels.llvm.emission import emit
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.target import Target
from kernels.tensor.expression import (
    Binary,
    BinaryOp,
    Buffer,
    Expression,
    Index,
    Load,
    Number,
    Position,
    ReduceOp,
    Unary,
    Variable,
)
from kernels.tensor.nest import (
    Accumulate,
    Allocate,
    Loop,
    Nest,
    Node,
    Statement,
    Store,
    allocated,
    edit,
    statements,
    walk,
    written,
)
from kernels.tensor.ranges import holds
from kernels.tensor.storage import extent
from kernels.tensor.traverse import loads, nodes, postorder, with_operands
from kernels.tensor.vectors import OUTSIDE, Elements, lanes_of, moved, register_names, widest_lanes

_ALIGNMENT = 64  # bytes
_COMBINE: dict[ReduceOp, BinaryOp] = {"sum": "add", "prod": "mul", "min": "min", "max": "max"}


@dataclass(frozen=True, slots=True)
class _Piece:
    """What some blocks run: `chunk` iterations each of parallel loops, or nodes that one block runs."""

    loops: tuple[Loop, ...]
    body: tuple[Node, ...]
    chunk: int = 1
    after: tuple[Node, ...] = ()  # run by the last block, after its own part

    @property
    def iterations(self) -> int:
        return prod(loop.variable.extent for loop in self.loops)

    @property
    def blocks(self) -> int:
        return -(-self.iterations // self.chunk)


def lower(nest: Nest, target: Target, name: str | None = None) -> Kernel:
    """A kernel that computes the nest's program; its operands are the program's inputs and outputs, by name."""
    program = nest.program
    name = name or program.name
    module = Module(target)
    buffers = (*program.inputs, *program.outputs)
    vectorized = {
        node.name: node.variable for node in walk(nest.body) if isinstance(node, Loop) and node.kind == "vectorized"
    }
    registers = register_names(nest, vectorized)
    scratch: dict[str, int] = {}
    size = 0
    for node in walk(nest.body):
        if isinstance(node, Allocate) and node.buffer.name not in registers:
            scratch[node.buffer.name] = size
            size += -(-extent(node.buffer) * node.buffer.dtype.bytes // _ALIGNMENT) * _ALIGNMENT
    pieces = _pieces(nest)

    def body(function: Function, pointers: dict[str, Value], block: Value, memory: Value) -> None:
        elements = Elements(function)
        elements.bases.update(pointers)
        for buffer, offset in scratch.items():
            elements.bases[buffer] = function.at(memory, offset, "i8")
        _NestWriter(function, elements, registers, widest_lanes(nest, target)).pieces(pieces, block)

    return write_kernel(
        module, name, operands_of(program.inputs, program.outputs), sum(piece.blocks for piece in pieces), body,
        scratch_bytes=size, flops=_flops(nest), traffic=sum(prod(one.shape) * one.dtype.bytes for one in buffers),
    )  # fmt: skip


def _pieces(nest: Nest) -> tuple[_Piece, ...]:
    """The parallel loops; what stands beside them (the tails of splits) goes to the last block of the last of them."""
    rest = tuple(node for node in nest.body if not (isinstance(node, Loop) and node.kind == "parallel"))
    found = []
    for node in nest.body:
        if isinstance(node, Loop) and node.kind == "parallel":
            chain, body = [node], node.body
            while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind == "parallel":
                chain.append(body[0])
                body = body[0].body
            found.append(_Piece(tuple(chain), body, node.chunk))
    found = [piece for piece in found if piece.blocks > 0]
    if not found:
        return (_Piece((), rest),)
    return (*found[:-1], replace(found[-1], after=rest))


def _flops(nest: Nest) -> int:
    total = 0
    for stage in nest.program.stages:
        count = sum(isinstance(node, Unary | Binary) for node in nodes(stage.value))
        reduction = stage.reduction
        total += stage.elements * ((count + 1) * prod(axis.extent for axis in reduction.axes) if reduction else count)
    return total


class _NestWriter:
    """Writes nodes as instructions, in order."""

    def __init__(self, function: Function, elements: Elements, registers: frozenset[str], widest: int) -> None:
        self._f = function
        self._elements = elements
        self._registers = registers
        self._widest = widest
        self._names = 0

    def pieces(self, pieces: Sequence[_Piece], block: Value) -> None:
        """The piece that a block belongs to."""
        first, rest = pieces[0], pieces[1:]
        if not rest:
            self._piece(first, block)
            return
        f = self._f
        mine = f.compare("slt", block, f.integer(first.blocks))
        f.when(mine, lambda: self._piece(first, block), lambda: self.pieces(rest, f.sub(block, first.blocks)))

    def _piece(self, piece: _Piece, block: Value) -> None:
        f = self._f
        if piece.chunk == 1:
            self._iteration(piece, block)
        else:
            start = f.mul(block, piece.chunk)
            stop = f.minimum(f.add(start, piece.chunk), f.integer(piece.iterations))
            f.loop(start, stop, 1, lambda number, _: self._iteration(piece, number))
        if any(not isinstance(node, Allocate) for node in piece.after):
            last = f.compare("eq", block, f.integer(piece.blocks - 1))
            f.when(last, lambda: self._body(piece.after))

    def _iteration(self, piece: _Piece, number: Value) -> None:
        f, rest = self._f, number
        values = []
        for position, loop in enumerate(reversed(piece.loops)):
            count = f.integer(loop.variable.extent)
            if position == len(piece.loops) - 1:
                values.append(rest)
            else:
                values.append(f.binary("urem", rest, count))
                rest = f.div(rest, count, signed=False)
        for loop, value in zip(piece.loops, reversed(values), strict=True):
            self._elements.enter(loop.variable, value)
        self._body(piece.body)
        for loop in reversed(piece.loops):
            self._elements.leave(loop.variable)

    def _body(self, body: tuple[Node, ...]) -> None:
        for node in body:
            match node:
                case Loop():
                    self._loop(node)
                case Store() | Accumulate():
                    self._statement(node)

    def _loop(self, loop: Loop) -> None:
        if loop.variable.extent == 0:
            return
        if loop.variable.extent > 1:
            loop = self._without_invariants(loop)
        if loop.kind == "vectorized":
            place = lanes_of(loop.variable, self._widest)
            if place.lanes == 1:
                self._iterate(loop)
            else:
                before = self._elements.in_lanes(place)
                self._body(loop.body)
                self._elements.in_lanes(before)
        elif _alternates(loop) and lanes_of(loop.body[0].variable, self._widest).lanes > 1:  # type: ignore[union-attr]
            self._interleaved(loop)
        elif loop.kind == "unrolled":
            turned = self._turned(loop)
            for value in range(loop.variable.extent):
                self._elements.enter(loop.variable, self._f.integer(value))
                self._elements.turned = {place: columns[value] for place, columns in turned.items()}
                self._body(loop.body)
                self._elements.turned = {}
                self._elements.leave(loop.variable)
        else:
            self._iterate(loop)

    def _interleaved(self, loop: Loop) -> None:
        """All values of an unrolled loop that `_alternates`, and one pass over the memory for all of them."""
        elements, inner = self._elements, loop.body[0]
        assert isinstance(inner, Loop) and isinstance(inner.body[0], Store)
        statement = inner.body[0]
        place = lanes_of(inner.variable, self._widest)
        values = []
        for value in range(loop.variable.extent):
            elements.enter(loop.variable, self._f.integer(value))
            before = elements.in_lanes(place)
            values.append(self._emitted(statement.value))
            elements.in_lanes(before)
            elements.leave(loop.variable)
        before = elements.in_lanes(place)
        elements.store_interleaved(statement.buffer, statement.indices, values)
        elements.in_lanes(before)

    def _turned(self, loop: Loop) -> dict[tuple[str, tuple[Index, ...]], list[Value]]:
        """Loads that run along the memory with the unrolled loop and jump with the lanes inside it: a transposition."""
        inner = loop.body[0]
        if len(loop.body) != 1 or not isinstance(inner, Loop) or inner.kind != "vectorized":
            return {}
        lanes = lanes_of(inner.variable, self._widest)
        if lanes.parts != 1 or lanes.lanes == 1 or any(isinstance(node, Loop) for node in inner.body):
            return {}
        own = allocated((loop,)) | written((loop,))
        found = {}
        for one in statements(inner.body):
            for load in loads(one.value):
                position = load.buffer.position(load.indices)
                jumps = position.factor(inner.variable) not in (0, 1)
                if jumps and position.factor(loop.variable) == 1 and load.buffer.name not in own and _is_inside(load):
                    found[load.buffer.name, load.indices] = self._elements.columns(load, loop.variable, lanes)
        return found

    def _iterate(self, loop: Loop) -> None:
        elements = self._elements
        own = allocated(loop.body)
        carried = sorted(name for name in written(loop.body) if name in elements.registers and name not in own)
        for one in statements(loop.body):
            elements.prepare(one.buffer, one.indices)
            for load in loads(one.value):
                elements.prepare(load.buffer, load.indices)

        def body(counter: Value, given: tuple[Value, ...]) -> tuple[Value, ...]:
            elements.registers.update(zip(carried, given, strict=True))
            elements.enter(loop.variable, counter)
            self._body(loop.body)
            elements.leave(loop.variable)
            return tuple(elements.registers[name] for name in carried)

        results = self._f.loop(0, loop.variable.extent, 1, body, [elements.registers[name] for name in carried])
        elements.registers.update(zip(carried, results, strict=True))

    def _statement(self, statement: Statement) -> None:
        elements, name, place = self._elements, statement.buffer.name, self._elements.place
        if isinstance(statement, Accumulate) and place.variable is not None and self._is_total(statement):
            value = self._emitted(statement.value)
            total = elements.total(statement.op, statement.buffer.dtype, value)
            elements.place, before = OUTSIDE, elements.place
            part = Buffer(f".total{self._count()}", statement.buffer.dtype, ())
            elements.registers[part.name] = total
            self._statement(replace(statement, value=part[()]))
            elements.place = before
            return
        value_of = statement.value
        if isinstance(statement, Accumulate):
            value_of = Binary(_COMBINE[statement.op], Load(statement.buffer, statement.indices), value_of)
        value = self._emitted(value_of)
        if name in self._registers:
            if place.parts > 1 and len(value.parts) == 1:
                value = Value(value.parts * place.parts, value.type)
            elements.registers[name] = value
        else:
            elements.store(statement.buffer, statement.indices, value)

    def _emitted(self, value: Expression) -> Value:
        """An expression's elements in the lanes of this place, as memory takes them."""
        return moved(self._f, emit(self._f, value, self._elements.place.lanes, self._elements), value.dtype)

    def _is_total(self, statement: Accumulate) -> bool:
        """Whether all lanes go into one element."""
        variable, name = self._elements.place.variable, statement.buffer.name
        assert variable is not None
        if name in self._registers and not statement.buffer.shape:
            # Allocated outside of the vectorized loop, it holds one element.
            held = self._elements.registers.get(name)
            return held is not None and types.lanes(held.type) == 1
        return statement.buffer.position(statement.indices).factor(variable) == 0

    def _without_invariants(self, loop: Loop) -> Loop:
        """The loop with what it does not change computed before it."""
        changing = written(loop.body) | allocated(loop.body)
        inner = {loop.variable} | {node.variable for node in walk(loop.body) if isinstance(node, Loop)}
        computed: dict[int, Expression] = {}

        def before(value: Expression) -> Expression:
            """What stands for a subexpression that the loop does not change."""
            if isinstance(value, Number | Position):
                return value
            if isinstance(value, Load) and value.buffer.name in self._elements.registers:
                return value
            if id(value) not in computed:
                buffer = Buffer(f".before{self._count()}", value.dtype, ())
                made = self._emitted(value)
                self._elements.registers[buffer.name] = made
                computed[id(value)] = buffer[()]
            return computed[id(value)]

        def without(value: Expression) -> Expression:
            made: dict[int, Expression] = {}
            fixed: set[int] = set()
            for node in postorder(value):
                known = all(id(operand) in fixed for operand in node.operands)
                if known and _is_fixed(node, changing, inner):
                    fixed.add(id(node))
                    made[id(node)] = node
                    continue
                made[id(node)] = with_operands(
                    node, tuple(before(o) if id(o) in fixed else made[id(o)] for o in node.operands)
                )
            return before(value) if id(value) in fixed else made[id(value)]

        def change(node: Node) -> tuple[Node, ...]:
            if isinstance(node, Store | Accumulate):
                new = without(node.value)
                return (node,) if new is node.value else (replace(node, value=new),)
            return (node,)

        return replace(loop, body=edit(loop.body, change))

    def _count(self) -> int:
        self._names += 1
        return self._names


def _alternates(loop: Loop) -> bool:
    """Whether an unrolled loop fills the memory between the lanes inside it: y[2*i + q], i in lanes, q unrolled."""
    inner = loop.body[0] if len(loop.body) == 1 else None
    if loop.kind != "unrolled" or not isinstance(inner, Loop) or inner.kind != "vectorized" or len(inner.body) != 1:
        return False
    statement, count = inner.body[0], loop.variable.extent
    if not isinstance(statement, Store) or not 2 <= count <= 4:
        return False
    position = statement.buffer.position(statement.indices)
    reads = {load.buffer.name for load in loads(statement.value)}
    fills = position.factor(loop.variable) == 1 and position.factor(inner.variable) == count
    return fills and statement.buffer.name not in reads


def _is_fixed(node: Expression, changing: set[str], inner: set[Variable]) -> bool:
    """Whether a loop leaves a node alone, given that it leaves the operands alone."""
    match node:
        case Number():
            return True
        case Position(index):
            return not any(variable in inner for variable, _ in index.terms)
        case Load(buffer, indices):
            moves = any(variable in inner for one in indices for variable, _ in one.terms)
            return buffer.name not in changing and not moves and _is_inside(node)
    # A value in a register is as it is stored; of these types it is held in another form between operations.
    return node.dtype.held is node.dtype and node.dtype is not DType.BOOL


def _is_inside(load: Load) -> bool:
    """Whether a load lies in its buffer whatever conditions hold."""
    return all(
        holds(one, ()) and holds(one * -1 + (size - 1), ())
        for one, size in zip(load.indices, load.buffer.shape, strict=True)
    )
