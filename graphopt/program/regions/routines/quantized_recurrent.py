"""DynamicQuantizeLSTM of com.microsoft: an LSTM whose weights are bytes, and whose inputs are quantized as they come.

The input of all steps is quantized by its range at once, the state of all sequences by its range before each step, both
to uint8 as DynamicQuantizeLinear does. Products are summed as integers, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from graphopt.model.operators import linear
from graphopt.program.regions.routines.stage import Defined, Definition, Stage
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, both, eq, maximum, minimum, number, pick
from kernels.tensor.expression import Expression, Unary, clip

F32, I32, I64 = DType.F32, DType.I32, DType.I64
_GATES = 4  # in the order input, output, forget, cell
_USUAL = ("sigmoid", "tanh", "tanh")


def lstm(node: Defined) -> None:
    """The layer: codes of the input, their products with W, and the steps of each direction."""
    x = node.input(0)
    (steps, batch, inputs), (directions, _, width) = x.shape, node.shape(1)
    given = node.texts("activations") or _USUAL * directions
    node.require(
        tuple(one.lower() for one in given) == _USUAL * directions, "has other activations than the usual ones"
    )
    node.require(not (node.has(4) or node.has(7) or node.number("clip", 0.0)), "has lengths, peepholes or a clip")
    codes, zero_point = node.temporary(DType.U8, (steps * batch, inputs)), node.temporary(DType.U8, (1,))
    scale_of_x, sums = node.temporary(F32, (1,)), node.temporary(I32, (directions, steps * batch, width))
    with node.stage() as w:
        source, code, numbers = w.reads(x), w.writes(codes), (w.writes(scale_of_x), w.writes(zero_point))
        with w.shared():
            scale, zero = _quantization(w, source.at, prod(x.shape))
            numbers[0].put(0, scale)
            numbers[1].put(0, as_type(zero, DType.U8))
            with w.loop(prod(x.shape)) as at:
                code.put(at, _code(source.at(at), scale, zero))
    for direction in range(directions):
        node.byte_product(codes, zero_point, (1, 9), direction, sums)
    rows = _Rows.of(node, 2)
    with node.stage() as w:
        _steps(node, w, (w.reads(sums), w.reads(scale_of_x)), rows, (steps, batch, directions, width // _GATES))


def _steps(node: Defined, w: Stage, given: tuple[Grid, Grid], rows: _Rows, sizes: tuple[int, int, int, int]) -> None:
    """The steps of each direction, one after the other; `given` are the sums of the input, and its scale."""
    steps, batch, directions, hidden = sizes
    results = [w.writes(node.output(at)) if node.wants(at) else None for at in range(3)]
    first = [w.reads(node.input(at)) if node.has(at) else None for at in (5, 6)]
    bias = w.reads(node.input(3)) if node.has(3) else None
    of_input, of_state = _Scales(node, w, 8), _Scales(node, w, 10)
    product = _Product(w, rows, of_state)
    h, c = w.scratch(F32, (batch * hidden,)), w.scratch(F32, (batch * hidden,))
    codes = w.scratch(DType.U8, (batch * hidden,))
    backwards = number(node.text("direction", "forward") == "reverse", DType.BOOL)
    coupled = bool(node.integer("input_forget", 0))
    with w.shared(directions) as (direction,):
        state = w.local(I64, direction * (batch * hidden))
        for held, begin in zip((h, c), first, strict=True):
            with w.loop(batch * hidden) as at:
                held[at] = number(0, F32) if begin is None else begin.at(state + at)
        with w.loop(steps) as turn:
            turned = backwards if directions == 1 else eq(direction, 1)
            step = w.local(I64, pick(turned, steps - 1 - turn, turn))
            scale, zero = _quantization(w, h.at, batch * hidden)
            with w.loop(batch * hidden) as at:
                codes[at] = _code(h[at], scale, zero)
            with w.loop(batch) as item:
                start = w.local(I64, item * hidden)
                product.run(direction, codes, start, zero)
                line = w.local(I64, direction * (steps * batch) + step * batch + item)
                with w.loop(hidden) as at:

                    def gate(number_of_gate: int, at: Expression = at, line: Expression = line) -> Expression:
                        column = at + number_of_gate * hidden
                        place = direction * (_GATES * hidden) + column
                        found = as_type(given[0].at(line * (_GATES * hidden) + column), F32)
                        found = found * (given[1].at(0) * of_input.scale(direction, place))
                        if bias is not None:
                            beside = place + direction * (_GATES * hidden)
                            found = found + bias.at(beside) + bias.at(beside + _GATES * hidden)
                        total = as_type(product.totals[number_of_gate, at], F32)
                        return w.local(F32, found + total * (scale * of_state.scale(direction, place)))

                    entry = w.local(F32, Unary("sigmoid", gate(0)))
                    forget = 1.0 - entry if coupled else Unary("sigmoid", gate(2))
                    cell = w.local(F32, forget * c[start + at] + entry * Unary("tanh", gate(3)))
                    c[start + at] = cell
                    h[start + at] = Unary("sigmoid", gate(1)) * Unary("tanh", cell)
                    if results[0] is not None:
                        place = ((step * directions + direction) * batch + item) * hidden + at
                        results[0].put(place, h[start + at])
        for held, result in zip((h, c), results[1:], strict=True):
            if result is not None:
                with w.loop(batch * hidden) as at:
                    result.put(state + at, held[at])


class _Scales:
    """The scales and zero points of a matrix of bytes: of a direction, or of a column of it."""

    def __init__(self, node: Defined, w: Stage, at: int) -> None:
        self._scale, self._zero = w.reads(node.input(at)), w.reads(node.input(at + 1))

    def scale(self, direction: Expression, place: Expression) -> Expression:
        """That of a column, which is the one at a place when those of all directions are counted."""
        return self._scale.at(direction if len(self._scale.shape) < 2 else place)

    def zero(self, direction: Expression, place: Expression) -> Expression:
        """The zero point of a column as an i32."""
        return as_type(self._zero.at(direction if len(self._zero.shape) < 2 else place), I32)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The columns of a matrix of bytes for each direction as rows, so that sums run over neighbours, and their sums."""

    matrix: View  # [directions, columns, depth]
    sums: View  # [directions, columns]

    @classmethod
    def of(cls, node: Defined, at: int) -> _Rows:
        """Those of an input: made now where it is a constant, else by the run."""
        constant = node.constant(at)
        if constant is not None:
            turned = np.ascontiguousarray(constant.transpose(0, 2, 1))
            return cls(node.table(turned), node.table(turned.sum(2, dtype=np.int32)))
        directions, depth, columns = node.shape(at)
        made = cls(
            node.temporary(node.dtype(at), (directions, columns, depth)), node.temporary(I32, (directions, columns))
        )
        with node.stage() as w:
            source, matrix, sums = w.reads(node.input(at)), w.writes(made.matrix), w.writes(made.sums)
            with w.shared(directions, columns) as (direction, column):
                total = w.local(I32, 0)
                with w.loop(depth) as k:
                    matrix[direction, column, k] = source[direction, k, column]
                    w.set(total, total + as_type(source[direction, k, column], I32))
                sums[direction, column] = total
        return made


class _Product:
    """A row of codes times a matrix of bytes, exactly.

    The sum of (code - zero) (weight - zero) is taken apart, so that its long loop multiplies bytes as they are. Sums
    of a hidden unit's gates are made side by side: they share the codes and do not wait for one another.
    """

    def __init__(self, w: Stage, rows: _Rows, scales: _Scales) -> None:
        self._w, self._matrix, self._sums, self._scales = w, w.reads(rows.matrix), w.reads(rows.sums), scales
        self.totals = w.scratch(I32, (_GATES, self._matrix.shape[1] // _GATES))

    def run(self, direction: Expression, codes: Grid, start: Expression, zero: Expression) -> None:
        """Sum the products of all columns with the codes from a place on."""
        w, (_, width, depth), hidden = self._w, self._matrix.shape, self.totals.shape[1]
        code_zero, of_codes = w.local(I32, as_type(zero, I32)), w.local(I32, 0)
        with w.loop(depth) as k:
            w.set(of_codes, of_codes + as_type(codes.at(start + k), I32))
        w.set(of_codes, of_codes - code_zero * depth)
        with w.loop(hidden) as at:
            lines = [w.local(I64, direction * width + gate * hidden + at) for gate in range(_GATES)]
            places = [w.local(I64, line * depth) for line in lines]
            totals = [w.local(I32, 0) for _ in lines]
            with w.loop(depth) as k:
                code = w.local(I32, as_type(codes.at(start + k), I32))
                for total, place in zip(totals, places, strict=True):
                    w.set(total, total + code * as_type(self._matrix.at(place + k), I32))
            for gate, (total, line) in enumerate(zip(totals, lines, strict=True)):
                left_out = code_zero * self._sums.at(line) + self._scales.zero(direction, line) * of_codes
                self.totals[gate, at] = total - left_out


def _quantization(w: Stage, at: Callable[[Expression], Expression], count: int) -> tuple[Expression, Expression]:
    """Scale and zero point, both as float32, of numbers whose range with 0 inside is that of uint8."""
    low, high = w.local(F32, 0.0), w.local(F32, 0.0)
    with w.loop(count) as one:
        w.set(low, minimum(low, at(one)))
        w.set(high, maximum(high, at(one)))
    scale = w.local(F32, pick(both(eq(low, 0.0), eq(high, 0.0)), number(1.0, F32), (high - low) / 255.0))
    return scale, w.local(F32, Unary("round", clip(0.0 - low / scale, 0, 255)))


def _code(x: Expression, scale: Expression, zero: Expression) -> Expression:
    return linear.quantized(x, scale, zero, DType.U8)


MICROSOFT: dict[str, Definition] = {"DynamicQuantizeLSTM": lstm}
