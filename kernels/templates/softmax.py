"""Softmax and log-softmax of each row, and what follows them.

A short row stays in registers between its maximum, its sum and its results; a longer one keeps its exponentials in
scratch, in cache. Rows that lie across (an axis with others inside it) are computed a vector of rows at a time.
Rows whose maximum is not finite give NaN, as the formula does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.kernel import Kernel, operands_of
from kernels.llvm import types
from kernels.llvm.emission import emit, emit_all
from kernels.llvm.function import Function, Value, joined
from kernels.math.exponential import exp_nonpositive
from kernels.math.logarithm import log
from kernels.size import bound, is_free, nothing
from kernels.target import Target
from kernels.templates.axes import Axis, count, fused, indices_of, place
from kernels.templates.builder import Builder
from kernels.templates.elementwise import Output
from kernels.templates.row_problem import RowProblem, check_rows, filled
from kernels.templates.rows import (
    RowCandidate,
    each_row,
    lies_across,
    nested,
    places_of,
    row_candidates,
    rows_of,
    side_by_side,
    sweep,
)
from kernels.templates.streams import Stream, ValidLanes, first, inputs_of, stretch, unrolled, where_valid, with_first
from kernels.templates.template import Template
from kernels.tensor.expression import Buffer, Cast, Expression, Variable

SOFTMAX = Buffer("softmax", DType.F32, ())


@dataclass(frozen=True, slots=True)
class Softmax(RowProblem):
    """Outputs of `SOFTMAX[()]` for each value of `rows`, over `columns` together, in f32.

    `x` is of any float type but f64. An output without indices has one dim per row variable and then per column
    variable.
    """

    rows: tuple[Variable, ...]
    columns: tuple[Variable, ...]
    x: Expression
    outputs: tuple[Output, ...]
    logarithm: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", filled(self.outputs, (*self.rows, *self.columns)))
        check_rows(self.rows, self.columns, self.x, self.outputs)


def candidates(problem: Softmax, target: Target) -> tuple[RowCandidate, ...]:
    """The ways worth trying, the likely best first."""
    rows = rows_of(problem.rows)
    bytes_each = sum(one.dtype.bytes for one in (*inputs_of((problem.x,)), *(o.buffer for o in problem.outputs)))
    return row_candidates(rows, problem.elements // max(1, rows) * bytes_each, (2, 4))


def build(problem: Softmax, candidate: RowCandidate, target: Target, name: str = "softmax") -> Kernel:
    """The kernel: operands are the buffers that are read, by name, then the outputs."""
    return _SoftmaxBuilder(problem, candidate, target, name).kernel()


SOFTMAX_ROWS = Template("softmax", Softmax, candidates, build)


class _SoftmaxBuilder(Builder[Softmax, RowCandidate]):
    def __init__(self, problem: Softmax, candidate: RowCandidate, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.vectors = candidate.vectors
        self.kind = types.vector("float", self.lanes)
        self.x = problem.x if problem.x.dtype is DType.F32 else Cast(DType.F32, problem.x)
        everything = (problem.x, *problem.values)
        places = [*indices_of(everything), *(place(one) for one in problem.stores)]
        self.rows = fused(problem.rows, places)
        self.columns = fused(problem.columns, places) or (Axis(),)
        self.across = lies_across(problem.rows, problem.columns, problem.x)
        self.length = count(self.columns)
        if self.across:
            self.along = self.rows[-1]
            self.wide = unrolled(self.along.extent, self.lanes, min(self.vectors, 2))
            self.block_rows = 1
            self.blocks = count(self.rows[:-1])
            self.scratch_bytes = self.length * self.wide * self.lanes * 4
            return
        self.block_rows = candidate.rows
        self.blocks = -(-count(self.rows) // candidate.rows)
        # 32 registers hold 12 vectors and what exp needs; 16 hold 4.
        most = 12 if target.vector_registers >= 32 else 4
        pieces = -(-bound(self.columns[-1].extent) // self.lanes)
        fixed = not is_free(self.columns[-1].extent)
        self.in_registers = fixed and len(self.columns) == 1 and pieces <= most
        self.scratch_bytes = 0 if self.in_registers or problem.logarithm else self.length * 4

    def kernel(self) -> Kernel:
        problem = self.problem
        inputs = inputs_of((problem.x, *problem.values), (SOFTMAX,))
        operands = operands_of(inputs, (output.buffer for output in problem.outputs))
        blocks = 0 if nothing(problem.elements) else self.blocks
        scratch = 0 if nothing(problem.elements) else self.scratch_bytes
        return self.written(operands, blocks, scratch_bytes=scratch, flops=12 * problem.elements)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if nothing(self.problem.elements):
            return
        if self.across:
            self._across(f, pointers, block, scratch)
        elif self.in_registers:
            each_row(f, block, self.block_rows, count(self.rows), lambda row: self._short(f, pointers, row))
        else:
            each_row(f, block, self.block_rows, count(self.rows), lambda row: self._long(f, pointers, row, scratch))

    def _short(self, f: Function, pointers: Mapping[str, Value], row: Value) -> None:
        along = self.columns[-1]
        fixed = places_of(f, row, self.rows)
        stream = Stream(f, pointers, fixed, along, self.lanes)
        stream.prepare((self.x, *self.problem.values), self.problem.stores)
        several = -(-along.extent // self.lanes)
        valid = along.extent - (several - 1) * self.lanes
        leaves = stream.at(f.integer(0), several, valid)
        x = where_valid(f, _spread(emit(f, self.x, self.lanes, leaves), several), self._lowest(f), valid)
        largest = f.splat(_reduced(f, "larger", x), self.lanes)
        difference = f.sub(x, largest)
        powers = exp_nonpositive(f, difference)
        total = _reduced(f, "fadd", powers)
        result = self._result(f, difference, powers, f.splat(total, self.lanes))
        self._finish(f, leaves, result)

    def _long(self, f: Function, pointers: Mapping[str, Value], row: Value, scratch: Value) -> None:
        fixed = places_of(f, row, self.rows)
        lowest, zero = self._lowest(f), f.number(self.kind, 0.0)
        wide = side_by_side(self.columns, self.lanes, self.vectors)

        def larger(x: tuple[Value, ...], held: tuple[Value, ...], valid: ValidLanes) -> list[Value]:
            return [_larger(f, held[0], where_valid(f, x[0], lowest, valid))]

        (found,) = sweep(
            f, pointers, fixed, self.columns, self.lanes, self.vectors, (self.x,), larger, (joined([lowest] * wide),),
        )  # fmt: skip
        largest = f.splat(_reduced(f, "larger", found), self.lanes)
        *outer, along = self.columns
        strides = _strides(self.columns)

        def powers(at: Mapping[Axis, Value], kept: tuple[Value, ...]) -> tuple[Value, ...]:
            stream = Stream(f, pointers, at, along, self.lanes).prepare((self.x,))
            start = self._scratch_row(f, scratch, at, outer, strides)

            def piece(where: Value, several: int, valid: ValidLanes, held: tuple[Value, ...]) -> list[Value]:
                x = _spread(emit(f, self.x, self.lanes, stream.at(where, several, valid)), several)
                found = exp_nonpositive(f, f.sub(x, largest))
                if bound(self.scratch_bytes):
                    self._keep(f, found, f.at(start, where), valid)
                counted = where_valid(f, found, zero, valid)
                return [with_first(held[0], f.add(first(held[0], several), counted))]

            return stretch(f, along.extent, self.lanes, wide, piece, kept)

        (sums,) = nested(f, outer, fixed, powers, (joined([zero] * wide),))
        total = f.splat(_reduced(f, "fadd", sums), self.lanes)
        factor = None if self.problem.logarithm else f.div(f.number(self.kind, 1.0), total)
        if self.problem.logarithm:
            total = f.add(largest, log(f, total))

        def results(at: Mapping[Axis, Value], _: tuple[Value, ...]) -> tuple[Value, ...]:
            stream = Stream(f, pointers, at, along, self.lanes)
            stream.prepare((self.x, *self.problem.values), self.problem.stores)
            start = self._scratch_row(f, scratch, at, outer, strides)

            def piece(where: Value, several: int, valid: ValidLanes, _: tuple[Value, ...]) -> tuple[Value, ...]:
                leaves = stream.at(where, several, valid)
                if factor is None:
                    result = f.sub(_spread(emit(f, self.x, self.lanes, leaves), several), total)
                else:
                    result = f.mul(self._kept(f, f.at(start, where), several, valid), factor)
                self._finish(f, leaves, result)
                return ()

            return stretch(f, along.extent, self.lanes, wide, piece)

        nested(f, outer, fixed, results)

    def _across(self, f: Function, pointers: Mapping[str, Value], block: Value, scratch: Value) -> None:
        """Each lane has a row: maximum, exponentials into scratch, results."""
        fixed = places_of(f, block, self.rows[:-1])
        strides = _strides(self.columns)

        def piece(where: Value, several: int, valid: ValidLanes, _: tuple[Value, ...]) -> tuple[Value, ...]:
            def x(at: Mapping[Axis, Value]) -> Value:
                stream = Stream(f, pointers, at, self.along, self.lanes).prepare((self.x,))
                return _spread(emit(f, self.x, self.lanes, stream.at(where, several, valid)), several)

            def place_of(at: Mapping[Axis, Value]) -> Value:
                start = self._scratch_row(f, f.at(scratch, 0), at, self.columns, strides, several * self.lanes)
                return start

            lowest = joined([self._lowest(f)] * several)
            (largest,) = nested(f, self.columns, fixed, lambda at, held: [_larger(f, held[0], x(at))], (lowest,))

            def power(at: Mapping[Axis, Value], held: tuple[Value, ...]) -> list[Value]:
                found = exp_nonpositive(f, f.sub(x(at), largest))
                if not self.problem.logarithm:
                    self._keep(f, found, place_of(at), self.lanes)
                return [f.add(held[0], found)]

            zero = joined([f.number(self.kind, 0.0)] * several)
            (total,) = nested(f, self.columns, fixed, power, (zero,))
            factor = f.div(f.number(self.kind, 1.0), total)
            subtracted = f.add(largest, log(f, total)) if self.problem.logarithm else total

            def result(at: Mapping[Axis, Value], _: tuple[Value, ...]) -> tuple[Value, ...]:
                stream = Stream(f, pointers, at, self.along, self.lanes)
                stream.prepare(self.problem.values, self.problem.stores)
                if self.problem.logarithm:
                    found = f.sub(x(at), subtracted)
                else:
                    found = f.mul(self._kept(f, place_of(at), several, self.lanes), factor)
                self._finish(f, stream.at(where, several, valid), found)
                return ()

            nested(f, self.columns, fixed, result)
            return ()

        stretch(f, self.along.extent, self.lanes, self.wide, piece)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _lowest(self, f: Function) -> Value:
        return f.number(self.kind, -math.inf)

    def _result(self, f: Function, difference: Value, powers: Value, total: Value) -> Value:
        if self.problem.logarithm:
            return f.sub(difference, log(f, total))
        return f.mul(powers, f.div(f.number(self.kind, 1.0), total))

    def _finish(self, f: Function, leaves: Stream, result: Value) -> None:
        bound = leaves.with_stand_ins({SOFTMAX.name: result})
        for value, output in zip(emit_all(f, self.problem.values, self.lanes, bound), self.problem.stores, strict=True):
            bound.store(value, output)

    def _keep(self, f: Function, value: Value, start: Value, valid: ValidLanes) -> None:
        """Exponentials into scratch."""
        parts = value.split()
        for part, one in enumerate(parts):
            address = f.at(start, part * self.lanes)
            if part == len(parts) - 1 and valid != self.lanes:
                f.masked_store(one, address, f.first_lanes(valid, self.lanes))
            else:
                f.store(one, address)

    def _kept(self, f: Function, start: Value, several: int, valid: ValidLanes) -> Value:
        found = []
        for part in range(several):
            address = f.at(start, part * self.lanes)
            if part == several - 1 and valid != self.lanes:
                found.append(f.masked_load(self.kind, address, f.first_lanes(valid, self.lanes)))
            else:
                found.append(f.load(self.kind, address))
        return joined(found)

    def _scratch_row(
        self,
        f: Function,
        scratch: Value,
        at: Mapping[Axis, Value],
        axes: list[Axis] | tuple[Axis, ...],
        strides: Mapping[Axis, int],
        size: int = 1,
    ) -> Value:
        offset = f.integer(0)
        for axis in axes:
            offset = f.add(offset, f.mul(at[axis], strides[axis] * size))
        return f.at(scratch, offset)


def _strides(axes: tuple[Axis, ...]) -> dict[Axis, int]:
    found, step = {}, 1
    for axis in reversed(axes):
        found[axis] = step
        step *= axis.extent
    return found


def _spread(value: Value, several: int) -> Value:
    """A value of one part as one of several."""
    return value if len(value.parts) == several else Value(value.parts * several, value.type)


def _larger(f: Function, held: Value, x: Value) -> Value:
    """The larger one in one instruction; a NaN may get lost here, but not in the sum of the exponentials."""
    return f.select(f.compare("ogt", held, x), held, x)


def _reduced(f: Function, name: str, value: Value) -> Value:
    """All lanes of all parts combined by "larger" or "fadd"."""
    parts = list(value.split())
    while len(parts) > 1:
        pairs = [
            _larger(f, a, b) if name == "larger" else f.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)
        ]
        parts = [*pairs, *parts[2 * len(pairs) :]]
    (one,) = parts
    lanes = types.lanes(one.type)
    while lanes > 1:
        lanes //= 2
        low, high = (f.shuffle(one, one, range(part * lanes, (part + 1) * lanes)) for part in (0, 1))
        if lanes == 1:
            low, high = f.extract(one, 0), f.extract(one, 1)
        one = _larger(f, low, high) if name == "larger" else f.add(low, high)
    return one
