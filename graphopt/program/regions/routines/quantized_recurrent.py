"""DynamicQuantizeLSTM of com.microsoft: an LSTM whose weights are bytes, and whose inputs are quantized as they come.

The input of all steps is quantized by its range at once, the state of all sequences by its range before each step, both
to uint8 as DynamicQuantizeLinear does. Products are summed as integers, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from graphopt.model.operators import linear
from graphopt.program.regions.routines.stage import Defined, Definition, Stage
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, both, eq, maximum, minimum, number, pick
from kernels.tensor.expression import Expression, Unary, clip

F32, I32, I64 = DType.F32, DType.I32, DType.I64
_GATES = 4  # in the order input, output, forget, cell
_USUAL = ("sigmoid", "tanh", "tanh")


def lstm(node: Defined) -> None:
    """The layer: codes of the input, their products with W, and the steps of each direction."""
    x, weights = node.input(0), node.input(1)
    (steps, batch, inputs), (directions, _, width) = x.shape, weights.shape
    given = node.texts("activations") or _USUAL * directions
    node.require(
        tuple(one.lower() for one in given) == _USUAL * directions, "has other activations than the usual ones"
    )
    node.require(not (node.has(4) or node.has(7) or node.number("clip", 0.0)), "has lengths, peepholes or a clip")
    codes, range_ = node.temporary(DType.U8, (steps * batch, inputs)), node.temporary(F32, (2,))
    sums = node.temporary(F32, (directions, steps * batch, width))
    with node.stage() as w:
        source, code, numbers = w.reads(x), w.writes(codes), w.writes(range_)
        with w.shared():
            scale, zero = _quantization(w, source.at, prod(x.shape))
            numbers.put(0, scale)
            numbers.put(1, zero)
            with w.loop(prod(x.shape)) as at:
                code.put(at, _code(source.at(at), scale, zero))
    with node.stage() as w:
        code, numbers, result = w.reads(codes), w.reads(range_), w.writes(sums)
        product, bias = _Product(node, w, 1, 8), w.reads(node.input(3)) if node.has(3) else None
        with w.shared(directions, steps * batch) as (direction, line):
            zero = w.local(I32, as_type(numbers.at(1), I32))
            start = w.local(I64, line * inputs)
            product.run(direction, inputs, lambda at: as_type(code.at(start + at), I32) - zero)
            with w.loop(width) as column:
                found = product.of(direction, column, numbers.at(0))
                if bias is not None:
                    first = direction * (2 * width) + column
                    found = found + bias.at(first) + bias.at(first + width)
                result[direction, line, column] = found
    with node.stage() as w:
        _steps(node, w, w.reads(sums), (steps, batch, directions, width // _GATES))


def _steps(node: Defined, w: Stage, sums: Grid, sizes: tuple[int, int, int, int]) -> None:
    """The steps of each direction, one after the other."""
    steps, batch, directions, hidden = sizes
    results = [w.writes(node.output(at)) if node.wants(at) else None for at in range(3)]
    first = [w.reads(node.input(at)) if node.has(at) else None for at in (5, 6)]
    product, gates = _Product(node, w, 2, 10), w.scratch(F32, (_GATES, hidden))
    h, c = w.scratch(F32, (batch * hidden,)), w.scratch(F32, (batch * hidden,))
    codes = w.scratch(I32, (batch * hidden,))
    backwards = number(node.text("direction", "forward") == "reverse", DType.BOOL)
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
                codes[at] = as_type(_code(h[at], scale, zero), I32) - as_type(zero, I32)
            with w.loop(batch) as item:
                start = w.local(I64, item * hidden)
                product.run(direction, hidden, lambda at, start=start: codes[start + at])  # type: ignore[misc]
                line = w.local(I64, step * batch + item)
                for gate in range(_GATES):
                    with w.loop(hidden) as at:
                        column = at + gate * hidden
                        gates[gate, at] = sums[direction, line, column] + product.of(direction, column, scale)
                with w.loop(hidden) as at:
                    entry = w.local(F32, Unary("sigmoid", gates[0, at]))
                    coupled = bool(node.integer("input_forget", 0))
                    forget = 1.0 - entry if coupled else Unary("sigmoid", gates[2, at])
                    cell = w.local(F32, forget * c[start + at] + entry * Unary("tanh", gates[3, at]))
                    c[start + at] = cell
                    h[start + at] = Unary("sigmoid", gates[1, at]) * Unary("tanh", cell)
                    if results[0] is not None:
                        place = ((step * directions + direction) * batch + item) * hidden + at
                        results[0].put(place, h[start + at])
        for held, result in zip((h, c), results[1:], strict=True):
            if result is not None:
                with w.loop(batch * hidden) as at:
                    result.put(state + at, held[at])


class _Product:
    """A row of integers times a matrix of bytes, whose scale and zero point stand behind it."""

    def __init__(self, node: Defined, w: Stage, matrix: int, scale: int) -> None:
        self._w, self._matrix = w, w.reads(node.input(matrix))
        self._scale, self._zero = w.reads(node.input(scale)), w.reads(node.input(scale + 1))
        self._width = self._matrix.shape[2]
        self._totals = w.scratch(I32, (self._width,))

    def run(self, direction: Expression, depth: int, row: Callable[[Expression], Expression]) -> None:
        """Sum the products of all columns."""
        w = self._w
        with w.loop(self._width) as column:
            self._totals[column] = 0
        with w.loop(depth) as k:
            left, line = w.local(I32, row(k)), w.local(I64, (direction * depth + k) * self._width)
            with w.loop(self._width) as column:
                zero = as_type(self._at(self._zero, direction, column), I32)
                weight = as_type(self._matrix.at(line + column), I32) - zero
                self._totals[column] = self._totals[column] + left * weight

    def of(self, direction: Expression, column: Expression, scale: Expression) -> Expression:
        """The sum of a column as a number, the row being of a scale."""
        return as_type(self._totals[column], F32) * (scale * self._at(self._scale, direction, column))

    def _at(self, numbers: Grid, direction: Expression, column: Expression) -> Expression:
        """Of a direction, or of a column of it."""
        return numbers.at(direction if len(numbers.shape) < 2 else direction * self._width + column)


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
