"""Chains of elementwise operations, of any length and rank, in one pass over memory.

    out[i, j] = tanh(x[i, j] * scale[j] + bias[j])        out2[i, j] = ...

Axes that all operands run through densely become one; the innermost is cut into vectors, several of which are computed
side by side, as a chain of dependent operations alone would leave the processor waiting. What turns two axes passes in
squares (kernels/templates/turned.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel, operands_of
from kernels.llvm.emission import emit_all
from kernels.llvm.function import Function, Value
from kernels.size import bound, is_free
from kernels.target import Target
from kernels.templates.axes import Axis, count, distinct, distinct_loads, fused, indices_of, place, spread
from kernels.templates.builder import Builder
from kernels.templates.streams import (
    Piece,
    Stream,
    ValidLanes,
    between,
    check_value,
    groups_end,
    inputs_of,
    lanes_for,
    rest,
    stretch,
    unrolled,
    whole_groups,
)
from kernels.templates.template import Template
from kernels.templates.turned import Row, Squares, squares_of, strips_of_block, write_copies, write_strips
from kernels.tensor.expression import Binary, Buffer, Expression, Index, Load, Unary, Variable, index
from kernels.tensor.ranges import lies_inside
from kernels.tensor.work import POLYNOMIALS

MOST_NODES = 16  # of what is computed between turning a square and storing it, once for each row
BLOCK_BYTES = 64 << 10  # of traffic: many blocks for the workers, and little per block to claim it


class InvalidElementwise(KernelsError):
    """Elementwise outputs that do not fit their axes."""


@dataclass(frozen=True, slots=True)
class Output:
    """buffer[indices] = value; no indices given: the axes themselves, one per dim."""

    buffer: Buffer
    value: Expression
    indices: tuple[Index, ...] = ()


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Outputs that are all computed for every value of `axes`.

    Raises InvalidElementwise or InvalidExpression. A buffer is never both read and written; equal storage is allowed
    where every element is read by the loop step that writes it, as each step reads before it writes.
    """

    axes: tuple[Variable, ...]
    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        read = {buffer.name for buffer in inputs_of(output.value for output in self.outputs)}
        for output in self.outputs:
            if not output.indices:
                full = Output(output.buffer, output.value, tuple(index(axis) for axis in self.axes))
                object.__setattr__(self, "outputs", tuple(full if one is output else one for one in self.outputs))
        for output in self.outputs:
            name = output.buffer.name
            if name in read:
                raise InvalidElementwise(f"'{name}' is read and written: give the output a name of its own.")
            if output.buffer.dtype is not output.value.dtype:
                raise InvalidElementwise(
                    f"'{name}' is {output.buffer.dtype.value} and its value {output.value.dtype.value}: cast it."
                )
            if self.elements != 0:
                check_value(output.value, self.axes)
                check_value(self.load(output), self.axes)

    def load(self, output: Output) -> Load:
        """The element that an output writes, as a load of it."""
        return Load(output.buffer, output.indices)

    @property
    def elements(self) -> int:
        """How many elements each output has."""
        return prod(axis.extent for axis in self.axes)

    @property
    def values(self) -> tuple[Expression, ...]:
        """What the outputs are worth."""
        return tuple(output.value for output in self.outputs)


@dataclass(frozen=True, slots=True)
class ElementwiseCandidate:
    """How many vectors are computed side by side, and how many elements a block has."""

    vectors: int
    block: int

    def __str__(self) -> str:
        return f"{self.vectors} vectors, blocks of {self.block:,}"


def candidates(problem: Elementwise, target: Target) -> tuple[ElementwiseCandidate, ...]:
    """The ways worth trying, the likely best first."""
    inputs = inputs_of(problem.values)
    bytes_each = sum(one.dtype.bytes for one in (*inputs, *(output.buffer for output in problem.outputs)))
    block = max(1, BLOCK_BYTES // max(1, bytes_each))
    heavy = any(isinstance(node, Unary | Binary) and node.op in POLYNOMIALS for node in distinct(problem.values))
    order = (2, 4, 1) if heavy and target.vector_registers < 32 else (4, 2, 1)
    return tuple(ElementwiseCandidate(vectors, block) for vectors in order)


def build(problem: Elementwise, candidate: ElementwiseCandidate, target: Target, name: str = "elementwise") -> Kernel:
    """The kernel: operands are the buffers that are read, by name, then the outputs."""
    return _ElementwiseBuilder(problem, candidate, target, name).kernel()


ELEMENTWISE = Template("elementwise", Elementwise, candidates, build)


class _ElementwiseBuilder(Builder[Elementwise, ElementwiseCandidate]):
    def __init__(self, problem: Elementwise, candidate: ElementwiseCandidate, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.stores = tuple(problem.load(output) for output in problem.outputs)
        self.lanes = lanes_for(problem.values, target)
        places = [*indices_of(problem.values), *(place(one) for one in self.stores)]
        axes = fused(problem.axes, places)
        self.along = vector_axis(axes, self.stores, places)
        self.outer = tuple(axis for axis in axes if axis != self.along)
        self.vectors = unrolled(self.along.extent, self.lanes, candidate.vectors)
        self.rows = count(self.outer)
        step = self.lanes * self.vectors
        self.squares = _squares(problem, axes, target)
        if is_free(self.along.extent):
            self.chunk = max(step, candidate.block // step * step)
            self.chunks = -(-self.along.extent // self.chunk) if bound(self.along.extent) > self.chunk else 1
            self.rows_of_block = 1 if self.chunks != 1 else max(1, candidate.block // bound(self.along.extent))
            return
        # Long rows are cut into chunks; short ones are put together.
        self.chunk = max(step, candidate.block // step * step)
        self.chunks = max(1, groups_end(self.along.extent, self.lanes, self.vectors) // self.chunk)
        if self.chunks > 1:
            self.chunk = -(-self.along.extent // self.chunks // step) * step
            self.chunks = -(-self.along.extent // self.chunk)
        several = max(1, candidate.block // max(1, self.along.extent))
        most = several if is_free(self.rows) else max(1, min(self.rows, several))
        self.rows_of_block = 1 if self.chunks > 1 else most

    def kernel(self) -> Kernel:
        problem = self.problem
        operands = operands_of(inputs_of(problem.values), (output.buffer for output in problem.outputs))
        blocks = self.chunks * -(-self.rows // self.rows_of_block) if problem.elements != 0 else 0
        if blocks and self.squares is not None:
            blocks = -(-self.squares.strips // strips_of_block(self.squares, self.candidate.block))
        operations = sum(isinstance(node, Unary | Binary) for node in distinct(problem.values))
        return self.written(operands, blocks, flops=operations * problem.elements)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if self.problem.elements == 0:
            return
        if self.squares is not None:
            self._turned(f, pointers, block, self.squares)
            return
        if self.chunks != 1:
            row = f.binary("udiv", block, f.integer(self.chunks)) if self.rows != 1 else f.integer(0)
            self._chunk(f, pointers, row, f.sub(block, f.mul(row, self.chunks)))
            return
        first = f.mul(block, self.rows_of_block)
        last = f.minimum(f.add(first, self.rows_of_block), f.integer(self.rows))

        def one(row: Value, _: tuple[Value, ...]) -> None:
            stream = self._stream(f, pointers, row)
            stretch(f, self.along.extent, self.lanes, self.vectors, self._piece(f, stream))

        if self.rows_of_block == 1:
            one(first, ())
        elif not is_free(self.rows) and self.rows_of_block >= self.rows:
            f.loop(0, self.rows, 1, one)
        else:
            f.loop(first, last, 1, one)

    def _turned(self, f: Function, pointers: dict[str, Value], block: Value, squares: Squares) -> None:
        """The strips of a block."""
        strips = strips_of_block(squares, self.candidate.block)
        first = f.mul(block, strips)
        last = f.minimum(f.add(first, strips), f.integer(squares.strips))
        sources = [pointers[load.buffer.name] for load in squares.loads]
        if isinstance(self.problem.values[0], Load):
            write_copies(f, squares, sources[0], pointers[squares.store.buffer.name], first, last)
            return

        def begun(at: Mapping[Axis, Value], rows: int) -> Row:
            places = [{**at, squares.across: f.add(at[squares.across], row)} for row in range(rows)]
            streams = [Stream(f, pointers, place, squares.along, self.lanes) for place in places]
            for one in streams:
                one.prepare(self.problem.values, self.stores)

            def row(number: int, turned: Sequence[Value], start: Value, lanes: int) -> None:
                known = {load.buffer.name: one for load, one in zip(squares.loads, turned, strict=True)}
                self._write(f, streams[number].at(start, 1, lanes, known))

            return row

        write_strips(f, squares, sources, first, last, begun)

    def _chunk(self, f: Function, pointers: dict[str, Value], row: Value, chunk: Value) -> None:
        piece = self._piece(f, self._stream(f, pointers, row))
        first = f.mul(chunk, self.chunk)
        if is_free(self.along.extent):
            last = f.minimum(f.add(first, self.chunk), f.integer(self.along.extent))
            between(f, first, last, self.lanes, self.vectors, piece)
            return
        end = groups_end(self.along.extent, self.lanes, self.vectors)
        last = f.minimum(f.add(first, self.chunk), f.integer(end))
        whole_groups(f, first, last, self.lanes, self.vectors, piece)
        if end < self.along.extent:
            final = f.compare("eq", chunk, f.integer(self.chunks - 1))

            def remaining() -> None:
                rest(f, self.along.extent, self.lanes, self.vectors, piece)

            f.when(final, remaining)

    def _stream(self, f: Function, pointers: dict[str, Value], row: Value) -> Stream:
        stream = Stream(f, pointers, spread(f, row, self.outer), self.along, self.lanes)
        return stream.prepare(self.problem.values, self.stores)

    def _piece(self, f: Function, stream: Stream) -> Piece:
        def piece(where: Value, vectors: int, valid: ValidLanes, _: tuple[Value, ...]) -> tuple[Value, ...]:
            self._write(f, stream.at(where, vectors, valid))
            return ()

        return piece

    def _write(self, f: Function, leaves: Stream) -> None:
        for value, store in zip(emit_all(f, self.problem.values, self.lanes, leaves), self.stores, strict=True):
            leaves.store(value, store)


def _squares(problem: Elementwise, axes: tuple[Axis, ...], target: Target) -> Squares | None:
    """The squares of what turns two axes: a copy, or few operations in float32; None for what else there is."""
    value, output = problem.outputs[0].value, problem.outputs[0]
    loads = distinct_loads((value,))
    if len(problem.outputs) > 1 or problem.elements == 0 or not all(map(lies_inside, loads)):
        return None
    found = squares_of(axes, loads, problem.load(output), target)
    if found is None or isinstance(value, Load):
        return found
    names = [load.buffer.name for load in loads]
    is_plain = all(one.dtype is DType.F32 for one in distinct((value,))) and len(set(names)) == len(names)
    beside = all(0 <= found.along.factor(place(load)) <= 1 for load in loads if load not in found.loads)
    is_light = sum(1 for _ in distinct((value,))) <= MOST_NODES
    return found if is_plain and beside and is_light and found.side == lanes_for((value,), target) else None


def vector_axis(axes: tuple[Axis, ...], stores: tuple[Load, ...], places: list[Index]) -> Axis:
    """The axis along which most operands lie side by side, outputs first; of equals the innermost."""
    if not axes:
        return Axis()

    def side_by_side(position: int) -> tuple[int, int, int]:
        axis = axes[position]
        outputs = sum(axis.factor(place(one)) == 1 for one in stores)
        return outputs, sum(axis.factor(one) == 1 for one in places), position

    return axes[max(range(len(axes)), key=side_by_side)]
