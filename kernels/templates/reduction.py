"""Reductions of each row to one value: sums, products, extremes, norms, log-sum-exp, and where an extreme is.

NaN wins in "max" and "min", and in "argmax" and "argmin" the first NaN does, as in NumPy. Of no elements "sum" is 0,
"prod" 1, "max" -inf, "mean" NaN. f16 and bf16 are accumulated in f32, every other type in itself; integer sums wrap.
Sums run in several lanes and vectors at once, or in runs where each lane has a row of its own, so their error grows
more slowly than that of one running sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels.dtype import DType
from kernels.kernel import Kernel, operands_of
from kernels.llvm import types
from kernels.llvm.conversion import held_type
from kernels.llvm.emission import emit_all
from kernels.llvm.function import Function, Value, joined
from kernels.llvm.operations import unary
from kernels.size import bound, is_free, nothing
from kernels.target import Target
from kernels.templates.axes import Axis, count, fused, indices_of, place
from kernels.templates.builder import Builder
from kernels.templates.elementwise import Output
from kernels.templates.row_problem import InvalidRows, RowProblem, check_rows, filled
from kernels.templates.rows import (
    RowCandidate,
    each_row,
    lies_across,
    nested,
    places_of,
    reduced_axes,
    row_candidates,
    rows_of,
    side_by_side,
    sweep,
)
from kernels.templates.streams import Stream, ValidLanes, inputs_of, lanes_for, stretch, unrolled, where_valid
from kernels.templates.template import Template
from kernels.tensor.expression import Buffer, Cast, Expression, Index, Position, Variable, dense_strides, index

Op = Literal[
    "sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp", "argmax", "argmin"
]  # fmt: skip
_FLOAT_ONLY = ("mean", "l2", "log_sum_exp")
_SUMS = ("sum", "mean", "l1", "l2", "sum_square", "log_sum_exp")
_Visit = Callable[[Mapping[Axis, Value], tuple[Value, ...]], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Reduction(RowProblem):
    """Outputs of `reduced[()]` for each value of `rows`; argmax and argmin give i64 places in row-major `columns`."""

    rows: tuple[Variable, ...]
    columns: tuple[Variable, ...]
    op: Op
    x: Expression
    outputs: tuple[Output, ...]
    last: bool = False  # of equal extremes the last one, for argmax and argmin

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", filled(self.outputs, self.rows))
        check_rows(self.rows, self.columns, self.x, self.outputs, per_row=True, any_type=True)
        if self.x.dtype is DType.BOOL or (self.op in _FLOAT_ONLY and not self.x.dtype.is_float):
            raise InvalidRows(f"{self.op} of {self.x.dtype.value}: cast to a float type first.")
        if self.op == "log_sum_exp" and self.x.dtype is DType.F64:
            raise InvalidRows("log_sum_exp of f64 is not offered: cast to f32.")

    @property
    def reduced(self) -> Buffer:
        """The stand-in for a row's value."""
        return reduced(self.op, self.x.dtype)


def reduced(op: Op, dtype: DType) -> Buffer:
    """The stand-in for the value of a row of elements of a type."""
    if op in ("argmax", "argmin"):
        return Buffer("reduced", DType.I64, ())
    return Buffer("reduced", dtype.held, ())


def candidates(problem: Reduction, target: Target) -> tuple[RowCandidate, ...]:
    """The ways worth trying, the likely best first."""
    rows = rows_of(problem.rows)
    bytes_each = sum(one.dtype.bytes for one in inputs_of((problem.x,)))
    return row_candidates(rows, problem.elements // max(1, rows) * bytes_each, (4, 2))


def build(problem: Reduction, candidate: RowCandidate, target: Target, name: str = "reduction") -> Kernel:
    """The kernel: operands are the buffers that are read, by name, then the outputs."""
    return _ReductionBuilder(problem, candidate, target, name).kernel()


REDUCTION = Template("reduction", Reduction, candidates, build)


class _ReductionBuilder(Builder[Reduction, RowCandidate]):
    def __init__(self, problem: Reduction, candidate: RowCandidate, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.vectors = candidate.vectors
        dtype = problem.reduced.dtype if problem.op not in ("argmax", "argmin") else problem.x.dtype
        self.dtype = dtype.held
        x = problem.x if problem.x.dtype is self.dtype else Cast(self.dtype, problem.x)
        self.with_place = problem.op in ("argmax", "argmin")
        number = Index(())
        sizes = tuple(variable.extent for variable in problem.columns)
        for variable, step in zip(problem.columns, dense_strides(sizes), strict=True):
            number = number + index(variable) * step
        self.read: tuple[Expression, ...] = (x, Position(number)) if self.with_place else (x,)
        self.lanes = lanes_for((x,), target)
        self.kind = held_type(self.dtype, self.lanes)
        self.across = not nothing(problem.elements) and lies_across(problem.rows, problem.columns, problem.x)
        places = [*indices_of((*self.read, *problem.values)), *(place(one) for one in problem.stores)]
        self.rows = fused(problem.rows, places)
        self.columns = reduced_axes(problem.columns, self.read)
        self.block_rows = candidate.rows
        self.blocks = count(self.rows[:-1]) if self.across else -(-count(self.rows) // candidate.rows)

    def kernel(self) -> Kernel:
        problem = self.problem
        inputs = inputs_of((problem.x, *problem.values), (problem.reduced,))
        operands = operands_of(inputs, (output.buffer for output in problem.outputs))
        blocks = 0 if nothing(rows_of(problem.rows)) else self.blocks
        return self.written(operands, blocks, flops=2 * problem.elements)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if nothing(rows_of(self.problem.rows)):
            return
        if self.across:
            self._across(f, pointers, block)
        else:
            each_row(f, block, self.block_rows, count(self.rows), lambda row: self._row(f, pointers, row))

    def _row(self, f: Function, pointers: Mapping[str, Value], row: Value) -> None:
        fixed = places_of(f, row, self.rows)
        wide = side_by_side(self.columns, self.lanes, self.vectors)

        def gather(op: str, shift: Value | None = None) -> tuple[Value, ...]:
            start = tuple(joined([one] * wide) for one in self._start(f, op))
            if self.problem.elements == 0:
                return tuple(Value(one.parts[:1], one.type) for one in start)

            def step(found: tuple[Value, ...], held: tuple[Value, ...], valid: ValidLanes) -> Sequence[Value]:
                return self._step(f, op, found, held, valid, shift)

            return sweep(f, pointers, fixed, self.columns, self.lanes, self.vectors, self.read, step, start)

        if self.problem.op == "log_sum_exp":
            shift = self._finite(f, f.splat(self._single(f, "max", gather("max"))[0], self.lanes))
            total = self._single(f, "log_sum_exp", gather("log_sum_exp", shift))
            result = f.add(f.extract(shift, 0), unary(f, "log", total[0], self.dtype))
        else:
            result = self._final(f, self._single(f, self.problem.op, gather(self.problem.op)))
        stream = Stream(f, pointers, fixed, Axis(), 1).prepare(self.problem.values, self.problem.stores)
        self._finish(f, stream.at(f.integer(0), 1, 1), result, 1)

    def _across(self, f: Function, pointers: Mapping[str, Value], block: Value) -> None:
        """Each lane has a row."""
        along, fixed = self.rows[-1], places_of(f, block, self.rows[:-1])

        def piece(where: Value, several: int, valid: ValidLanes, _: tuple[Value, ...]) -> tuple[Value, ...]:
            def gather(op: str, shift: Value | None = None) -> tuple[Value, ...]:
                def one(at: Mapping[Axis, Value], held: tuple[Value, ...]) -> Sequence[Value]:
                    stream = Stream(f, pointers, at, along, self.lanes).prepare(self.read)
                    found = emit_all(f, self.read, self.lanes, stream.at(where, several, valid))
                    wide = tuple(Value(v.parts * (several // len(v.parts)), v.type) for v in found)
                    return self._step(f, op, wide, held, self.lanes, shift)

                start = tuple(joined([one] * several) for one in self._start(f, op))
                if op in _SUMS and self.dtype.is_float:
                    return self._summed(f, self.columns, fixed, one, start)
                return nested(f, self.columns, fixed, one, start)

            if self.problem.op == "log_sum_exp":
                shift = self._finite(f, gather("max")[0])
                (total,) = gather("log_sum_exp", shift)
                result = f.add(shift, unary(f, "log", total, self.dtype))
            else:
                result = self._final(f, gather(self.problem.op))
            stream = Stream(f, pointers, fixed, along, self.lanes).prepare(self.problem.values, self.problem.stores)
            self._finish(f, stream.at(where, several, valid), result, self.lanes)
            return ()

        stretch(f, along.extent, self.lanes, unrolled(along.extent, self.lanes, self.vectors), piece)

    def _summed(
        self, f: Function, axes: Sequence[Axis], at: Mapping[Axis, Value], visit: _Visit, held: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """A sum over the axes beside what is held, in runs of about the square root of each axis' length."""
        if not axes:
            return tuple(visit(at, held))
        axis, *inner = axes
        length = 1 << bound(axis.extent).bit_length() // 2
        whole = axis.extent // length * length
        nothing = tuple(joined([f.number(self.kind, 0)] * len(value.parts)) for value in held)

        def element(where: Value, kept: tuple[Value, ...]) -> tuple[Value, ...]:
            return self._summed(f, inner, {**at, axis: where}, visit, kept)

        def run(first: Value, kept: tuple[Value, ...]) -> Sequence[Value]:
            found = f.loop(0, length, 1, lambda where, part: element(f.add(first, where), part), nothing)
            return [f.combine("fadd", total, part) for total, part in zip(kept, found, strict=True)]

        held = f.loop(0, whole, length, run, held)
        return f.loop(whole, axis.extent, 1, element, held)

    # -- the operations ---------------------------------------------------------------------------------------------

    def _start(self, f: Function, op: str) -> tuple[Value, ...]:
        """What nothing gives, in every lane."""
        if op in ("argmax", "argmin"):
            (value,) = self._start(f, op[3:])
            places = types.vector("i64", self.lanes)
            return value, f.number(places, -1 if self.problem.last else 2**62)
        if op in ("max", "min"):
            return (f.number(self.kind, _lowest(self.dtype) if op == "max" else _highest(self.dtype)),)
        return (f.number(self.kind, 1 if op == "prod" else 0),)

    def _step(
        self,
        f: Function,
        op: str,
        found: tuple[Value, ...],
        held: tuple[Value, ...],
        valid: ValidLanes,
        shift: Value | None,
    ) -> Sequence[Value]:
        """One more element in every lane; lanes that are not valid count as nothing."""
        neutral = tuple(one for one in self._start(f, op))
        x = found[0]
        if op == "l1":
            x = unary(f, "abs", x, self.dtype)
        if op == "log_sum_exp":
            assert shift is not None
            x = unary(f, "exp", f.sub(x, shift), self.dtype)
        x = where_valid(f, x, neutral[0], valid)
        if op in ("argmax", "argmin"):
            return self._better(f, held, (x, where_valid(f, found[1], neutral[1], valid)))
        if op in ("l2", "sum_square"):
            return [f.fma(x, x, held[0]) if self.dtype.is_float else f.add(held[0], f.mul(x, x))]
        return [f.combine(self._combination(op), held[0], x)]

    def _combination(self, op: str) -> str:
        """The name under which two partial results are combined."""
        floating = self.dtype.is_float
        if op in ("max", "min"):
            return f"{op}imum" if floating else ("s" if self.dtype.is_signed else "u") + op
        if op == "prod":
            return "fmul" if floating else "mul"
        return "fadd" if floating else "add"

    def _single(self, f: Function, op: str, held: tuple[Value, ...]) -> tuple[Value, ...]:
        """All lanes of all parts as one."""
        if op not in ("argmax", "argmin"):
            return (f.reduce(self._combination(op), held[0]),)
        best, *others = zip(*(one.split() for one in held), strict=True)
        for other in others:
            best = self._better(f, best, other)
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            halves = [
                tuple(f.shuffle(one, one, range(part * lanes, (part + 1) * lanes)) for one in best) for part in (0, 1)
            ]
            if lanes == 1:
                halves = [tuple(f.extract(one, part) for one in best) for part in (0, 1)]
            best = self._better(f, *halves)
        return tuple(best)

    def _better(self, f: Function, a: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[Value, ...]:
        """Of two (value, place) the one that argmax or argmin is after; a NaN is better than any number."""
        floating, greater = self.dtype.is_float, self.problem.op == "argmax"
        sign = "" if floating else "s" if self.dtype.is_signed else "u"
        beyond = ("gt" if greater else "lt") if not floating else ("ogt" if greater else "olt")
        is_more = f.compare(sign + beyond, b[0], a[0])
        is_equal = f.compare("oeq" if floating else "eq", a[0], b[0])
        if floating:
            a_nan, b_nan = f.compare("uno", a[0], a[0]), f.compare("uno", b[0], b[0])
            a_number = f.binary("xor", a_nan, f.number(a_nan.type, True))
            is_more = f.binary("or", is_more, f.binary("and", b_nan, a_number))
            is_equal = f.binary("or", is_equal, f.binary("and", a_nan, b_nan))
        nearer = f.compare("sgt" if self.problem.last else "slt", b[1], a[1])
        taken = f.binary("or", is_more, f.binary("and", is_equal, nearer))
        return tuple(f.select(taken, new, old) for new, old in zip(b, a, strict=True))

    def _finite(self, f: Function, largest: Value) -> Value:
        """The maximum as what is subtracted before exp: 0 where it is infinite, so that inf - inf does not arise."""
        infinite = unary(f, "is_inf", largest, self.dtype)
        return f.select(infinite, f.number(largest.type, 0.0), largest)

    def _final(self, f: Function, held: tuple[Value, ...]) -> Value:
        op = self.problem.op
        if op == "mean":
            elements = count(tuple(Axis((variable,)) for variable in self.problem.columns))
            if is_free(elements):
                many = f.convert("uitofp", types.element(held[0].type), f.integer(elements))
                return f.div(held[0], f.splat(many, types.lanes(held[0].type)))
            return f.div(held[0], f.number(held[0].type, float(elements)))
        if op == "l2":
            return unary(f, "sqrt", held[0], self.dtype)
        return held[1] if self.with_place else held[0]

    def _finish(self, f: Function, leaves: Stream, result: Value, lanes: int) -> None:
        bound = leaves.with_stand_ins({self.problem.reduced.name: result})
        for value, output in zip(emit_all(f, self.problem.values, lanes, bound), self.problem.stores, strict=True):
            bound.store(value, output)


def _lowest(dtype: DType) -> float | int:
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)  # type: ignore[type-var]


def _highest(dtype: DType) -> float | int:
    return math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).max)  # type: ignore[type-var]
