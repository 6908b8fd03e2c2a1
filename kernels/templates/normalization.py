"""Normalisation: (x - mean) / sqrt(variance + epsilon) of each row, and what follows it.

    rows (i,), columns (j,)             LayerNormalization, RMSNormalization (without the mean)
    rows (n, g), columns (c, s)         GroupNormalization: group g has channels g * size + c
    rows (n, c), columns (s,)           InstanceNormalization

Sum and squares are taken of differences to the row's first element, in one pass over the row. Where the mean is further
than two and a half standard deviations from that element, the difference of the two would cancel (it loses less than
three bits otherwise), and the variance is taken again around the mean, from the row in cache. x may be an expression
(a residual sum); it is computed again in each pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kernels.dtype import DType
from kernels.kernel import Kernel, operands_of
from kernels.llvm import types
from kernels.llvm.emission import emit
from kernels.llvm.function import Function, Value, joined
from kernels.math.rounding import sqrt
from kernels.size import bound, is_free, nothing
from kernels.target import Target
from kernels.templates.axes import Axis, count, distinct, fused, indices_of, place
from kernels.templates.builder import Builder
from kernels.templates.elementwise import Output
from kernels.templates.row_problem import RowProblem, check_rows, filled
from kernels.templates.rows import (
    RowCandidate,
    RowStep,
    Visit,
    next_row,
    over_row,
    places_of,
    reading,
    reduced_axes,
    row_candidates,
    rows_of,
    side_by_side,
    together,
    writing,
)
from kernels.templates.streams import Stream, ValidLanes, inputs_of, where_valid
from kernels.templates.template import Template
from kernels.tensor.expression import Binary, Buffer, Cast, Expression, Unary, Variable

NORMALIZED = Buffer("normalized", DType.F32, ())
_FAR = 6.25  # squared standard deviations between the mean and the first element
_QUICK = ("add", "sub", "mul", "min", "max")
_LONG_ROW = 1536  # bytes; the chain of a shorter one costs more than reading and writing at once saves


@dataclass(frozen=True, slots=True)
class Normalization(RowProblem):
    """Outputs of `NORMALIZED[()]`, computed in f32 from `x` of any float type but f64; see above for rows and columns.

    An output without indices has one dim per row variable and then per column variable.
    """

    rows: tuple[Variable, ...]
    columns: tuple[Variable, ...]
    x: Expression
    outputs: tuple[Output, ...]
    epsilon: float = 1e-5
    center: Literal["mean", "none"] = "mean"  # "none": the root mean square alone

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", filled(self.outputs, (*self.rows, *self.columns)))
        check_rows(self.rows, self.columns, self.x, self.outputs)


def candidates(problem: Normalization, target: Target) -> tuple[RowCandidate, ...]:
    """The ways worth trying, the likely best first."""
    rows = rows_of(problem.rows)
    bytes_each = sum(one.dtype.bytes for one in (*inputs_of((problem.x,)), *(o.buffer for o in problem.outputs)))
    return row_candidates(
        rows, problem.elements // max(1, rows) * bytes_each, (8, 4) if target.vector_registers >= 32 else (4, 2)
    )


def build(problem: Normalization, candidate: RowCandidate, target: Target, name: str = "normalization") -> Kernel:
    """The kernel: operands are the buffers that are read, by name, then the outputs."""
    return _NormalizationBuilder(problem, candidate, target, name).kernel()


NORMALIZATION = Template("normalization", Normalization, candidates, build)


class _NormalizationBuilder(Builder[Normalization, RowCandidate]):
    def __init__(self, problem: Normalization, candidate: RowCandidate, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.x = problem.x if problem.x.dtype is DType.F32 else Cast(DType.F32, problem.x)
        places = [*indices_of((problem.x, *problem.values)), *(place(one) for one in problem.stores)]
        self.rows = fused(problem.rows, places)
        self.inner = reduced_axes(problem.columns, (problem.x,))
        self.outer = reduced_axes(problem.columns, (problem.x, *problem.values), problem.stores)
        self.at_once = (
            self.inner == self.outer
            and target.vector_registers >= 32  # 16 do not hold the sums and what is written
            and bound(count(self.inner)) * DType.F32.bytes >= _LONG_ROW
            and _waits_for_memory((self.x, *problem.values))
        )

    def kernel(self) -> Kernel:
        problem = self.problem
        inputs = inputs_of((problem.x, *problem.values), (NORMALIZED,))
        operands = operands_of(inputs, (output.buffer for output in problem.outputs))
        blocks = 0 if nothing(problem.elements) else -(-rows_of(problem.rows) // self.candidate.rows)
        return self.written(operands, blocks, flops=8 * problem.elements)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if nothing(self.problem.elements):
            return
        rows, size = count(self.rows), self.candidate.rows
        first = f.mul(block, size)
        several = is_free(rows) or rows > 1
        cut = is_free(rows) or rows > size
        last = f.minimum(f.add(first, size), f.integer(rows)) if cut else f.integer(rows)
        held = self._scaling(f, pointers, first)

        def step(row: Value, carried: tuple[Value, ...]) -> tuple[Value, ...]:
            written, following = self._writing(f, pointers, row, carried), f.add(row, 1)
            if self.at_once:
                return self._scaling(f, pointers, following, written)
            found = self._scaling(f, pointers, following)
            self._visit(f, self.outer, written)
            return found

        end = f.sub(last, 1)
        if several and size > 1:
            held = f.loop(first, end, 1, step, held)
        self._visit(f, self.outer, self._writing(f, pointers, end if several and size > 1 else first, held))

    def _scaling(
        self, f: Function, pointers: dict[str, Value], row: Value, beside: Visit | None = None
    ) -> tuple[Value, ...]:
        """The inverse of a row's deviation in every lane, and its mean where it is taken away.

        `beside` is done on the way, in the first sweep over the row.
        """
        fixed = places_of(f, row, self.rows)
        if self.problem.center == "none":
            mean, variance = None, self._squares(f, pointers, fixed, None, beside)
        else:
            mean, variance = self._statistics(f, pointers, fixed, beside)
        variance = f.add(variance, f.number("float", self.problem.epsilon))
        scale = f.splat(f.div(f.number("float", 1.0), sqrt(f, variance)), self.lanes)
        return (scale,) if mean is None else (scale, f.splat(mean, self.lanes))

    def _writing(self, f: Function, pointers: dict[str, Value], row: Value, held: tuple[Value, ...]) -> Visit:
        fixed, scale = places_of(f, row, self.rows), held[0]
        mean = held[1] if len(held) > 1 else None

        def normalized(leaves: Stream) -> dict[str, Value]:
            x = emit(f, self.x, self.lanes, leaves)
            return {NORMALIZED.name: f.mul(x if mean is None else f.sub(x, mean), scale)}

        return writing(
            f, pointers, fixed, self.outer, self.lanes, self.problem.values, self.problem.stores, normalized,
            also_read=(self.x,),
        )  # fmt: skip

    def _statistics(
        self, f: Function, pointers: Mapping[str, Value], fixed: Mapping[Axis, Value], beside: Visit | None
    ) -> tuple[Value, Value]:
        """Mean and variance of a row."""
        start = {**fixed, **{axis: f.integer(0) for axis in self.inner}}
        first = emit(f, self.x, 1, Stream(f, pointers, start, Axis(), 1).prepare((self.x,)))
        shift = f.splat(first, self.lanes)
        zero = self._zero(f)

        def step(x: tuple[Value, ...], held: tuple[Value, ...], valid: ValidLanes) -> list[Value]:
            difference = where_valid(f, f.sub(x[0], shift), zero, valid)
            return [f.add(held[0], difference), f.fma(difference, difference, held[1])]

        sums, squares = self._sweep(f, pointers, fixed, step, 2, beside)
        moved, around = self._share(f, sums), self._share(f, squares)
        mean, square = f.add(first, moved), f.mul(moved, moved)
        variance = f.sub(around, square)
        # Not "less than", which NaN would pass: a NaN stays what it is either way.
        far = f.compare("ogt", square, f.mul(variance, f.number("float", _FAR)))
        (variance,) = f.when(
            far, lambda: [self._squares(f, pointers, fixed, f.splat(mean, self.lanes))], lambda: [variance]
        )
        return mean, variance

    def _squares(
        self,
        f: Function,
        pointers: Mapping[str, Value],
        fixed: Mapping[Axis, Value],
        mean: Value | None,
        beside: Visit | None = None,
    ) -> Value:
        """The mean of the squares of differences to the mean (none: to 0)."""
        zero = self._zero(f)

        def step(x: tuple[Value, ...], held: tuple[Value, ...], valid: ValidLanes) -> list[Value]:
            difference = where_valid(f, x[0] if mean is None else f.sub(x[0], mean), zero, valid)
            return [f.fma(difference, difference, held[0])]

        return self._share(f, *self._sweep(f, pointers, fixed, step, 1, beside))

    def _sweep(
        self,
        f: Function,
        pointers: Mapping[str, Value],
        fixed: Mapping[Axis, Value],
        step: RowStep,
        sums: int,
        beside: Visit | None,
    ) -> tuple[Value, ...]:
        parts = joined([self._zero(f)] * side_by_side(self.inner, self.lanes, self.candidate.vectors))
        ahead = next_row(self.rows, self.inner, self.x)
        read = reading(f, pointers, fixed, self.inner, self.lanes, (self.x,), step, ahead)
        return self._visit(f, self.inner, together(read, beside) if beside else read, (parts,) * sums)

    def _visit(
        self, f: Function, axes: tuple[Axis, ...], visit: Visit, carried: Sequence[Value] = ()
    ) -> tuple[Value, ...]:
        return over_row(f, axes, self.lanes, self.candidate.vectors, visit, carried)

    def _share(self, f: Function, total: Value) -> Value:
        sum_, elements = f.reduce("fadd", total), count(self.inner)
        if is_free(elements):
            return f.div(sum_, f.convert("uitofp", "float", f.integer(elements)))
        return f.mul(sum_, f.number("float", 1 / elements))

    def _zero(self, f: Function) -> Value:
        return f.number(types.vector("float", self.lanes), 0.0)


def _waits_for_memory(values: Sequence[Expression]) -> bool:
    """Whether values are sums and products of f32 alone: functions and conversions keep the core busy without waiting,
    and need the registers."""
    for node in distinct(values):
        if isinstance(node, Unary | Cast) or (isinstance(node, Binary) and node.op not in _QUICK):
            return False
    return True
