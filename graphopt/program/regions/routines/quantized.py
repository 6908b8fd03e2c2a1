"""Quantization in blocks of elements, and with a scale that follows from the data."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from graphopt.model.operators import linear
from graphopt.model.operators.formulas import Operands
from graphopt.program.regions.routines.stage import Defined, Definition, Stage
from graphopt.program.regions.routines.sums import WIDE, Lanes
from kernels.dtype import DType
from kernels.routine.writer import Grid, as_type, eq, lt, minimum, number, pick, quotient
from kernels.tensor.expression import Expression, ExpressionLike, Unary, clip

PART = 1 << 14  # elements


def in_blocks(formula: Callable[[Operands], Expression]) -> Definition:
    """An element with the scale and zero point of its block along the axis; blocks are runs of the innermost loop."""

    def definition(node: Defined) -> None:
        shape, block = node.shape(0), node.integer("block_size", 0)
        axis = node.integer("axis", 1) % max(len(shape), 1)
        if not block or not shape:
            raise node.refuse("has one scale for many elements, which its formula computes")
        with node.stage() as w:
            x, scale, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
            zero = w.reads(node.input(2)) if node.has(2) else None

            def store(at: tuple[Expression, ...], over: tuple[Expression, ...]) -> None:
                given = (x[at], scale[over], None if zero is None else zero[over])
                y[at] = formula(Operands(node.node, given))

            with w.shared(*shape[:-1]) as outer:
                if axis == len(shape) - 1:
                    with w.loop(scale.shape[axis]) as number_of:
                        start = w.local(DType.I64, number_of * block)
                        with w.loop(minimum(start + block, shape[axis]), start) as i:
                            store((*outer, i), (*outer, number_of))
                else:
                    chosen = w.local(DType.I64, quotient(outer[axis], block))
                    with w.loop(shape[-1]) as i:
                        store((*outer, i), (*outer[:axis], chosen, *outer[axis + 1 :], i))

    return definition


def dynamic(node: Defined) -> None:
    """DynamicQuantizeLinear: the range from the least to the greatest element, with 0 inside, is that of uint8.

    Parts of a large operand find their own ranges first, on several workers: for any size its rows, or its channels.
    """
    shape = node.shape(0)
    rows = min(2, len(shape) - 1) if node.is_steady else 0
    part = prod(shape[rows:]) if rows > 0 else PART
    parts = prod(shape[:rows]) if rows > 0 else 1 if node.is_steady else -(-prod(shape) // PART)
    ranges = node.temporary(DType.F32, (2, parts)) if rows > 0 or parts > 1 else None
    if ranges is not None:
        with node.stage() as w:
            x, found = w.reads(node.input(0)), w.writes(ranges)
            with w.shared(parts) as (number_of,):
                start = w.local(DType.I64, number_of * part)
                low, high = _range(w, x, start, minimum(start + part, x.area.elements) - start)
                found[0, number_of] = low
                found[1, number_of] = high
    with node.stage() as w:
        x = w.reads(node.input(0) if ranges is None else ranges)
        scale, zero = w.writes(node.output(1)), w.writes(node.output(2))
        with w.shared():
            low, high = _range(w, x, 0, x.area.elements)
            step = w.local(DType.F32, (high - low) / 255.0)
            w.set(step, pick(eq(high, low), number(1.0, DType.F32), step))  # as ONNX Runtime has it
            scale.put(0, step)
            zero.put(0, as_type(Unary("round", clip(0.0 - low / step, 0, 255)), DType.U8))
    with node.stage() as w:
        x, scale, zero = w.reads(node.input(0)), w.reads(node.output(1)), w.reads(node.output(2))
        y = w.writes(node.output(0))
        with w.shared(y.area.elements) as (i,):
            y.put(i, linear.quantized(x.at(i), scale.at(0), zero.at(0), DType.U8))


def _range(w: Stage, x: Grid, start: ExpressionLike, count: ExpressionLike) -> tuple[Expression, Expression]:
    """The least and the greatest of so many elements, and of 0; what is no number counts as 0."""
    low = Lanes(w, DType.F32, 0, lambda one, other: pick(lt(other, one), other, one), WIDE)
    high = Lanes(w, DType.F32, 0, lambda one, other: pick(lt(one, other), other, one), WIDE)
    low.add(count, lambda at: x.at(at + start), high)
    return low.total(), high.total()


DEFINITIONS: dict[str, Definition] = {
    "QuantizeLinear": in_blocks(linear.quantize), "DequantizeLinear": in_blocks(linear.dequantize),
    "DynamicQuantizeLinear": dynamic,
}  # fmt: skip
