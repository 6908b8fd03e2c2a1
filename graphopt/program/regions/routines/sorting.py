"""Sorting inside a routine: positions in a stable order."""

from __future__ import annotations

from collections.abc import Callable

from kernels.dtype import DType
from kernels.routine.writer import Grid, Writer, both, either, ge, gt, lt, minimum, pick
from kernels.tensor.expression import Expression, ExpressionLike, Unary

SIGNED = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}  # integers by their bytes
_MANTISSA = {DType.F64: 52, DType.F32: 23, DType.F16: 10, DType.BF16: 7}  # bits

Before = Callable[[Expression, Expression], Expression]  # whether what stands at one position comes before another


def sort(w: Writer, order: Grid, spare: Grid, count: ExpressionLike, before: Before) -> None:
    """Sort the first `count` positions in `order`, by merging runs of twice the length each time.

    Where neither of two positions comes before the other they stay as they are.
    """
    number = w.local(DType.I64, count)
    width = w.local(DType.I64, 1)
    with w.loop_while(lt(width, number)):
        low = w.local(DType.I64, 0)
        with w.loop_while(lt(low, number)):
            middle = w.local(DType.I64, minimum(low + width, number))
            high = w.local(DType.I64, minimum(low + width + width, number))
            left, right = w.local(DType.I64, low), w.local(DType.I64, middle)
            with w.loop(high, low) as at:
                one = w.local(DType.I64, order.at(minimum(left, number - 1)))
                other = w.local(DType.I64, order.at(minimum(right, number - 1)))
                second = w.local(DType.BOOL, ge(left, middle))
                with w.when(both(lt(left, middle), lt(right, high))):
                    w.set(second, before(other, one))
                spare.put(at, pick(second, other, one))
                with w.when(second):
                    w.set(right, right + 1)
                with w.otherwise():
                    w.set(left, left + 1)
            w.set(low, high)
        with w.loop(number) as at:
            order.put(at, spare.at(at))
        w.set(width, width + width)


def is_nan(x: Expression) -> Expression | None:
    """Whether a number is none; None where its type has none."""
    return Unary("is_nan", x) if x.dtype.is_float else None


def below(a: Expression, b: Expression) -> Expression:
    """a < b, with NaN behind all numbers."""
    nan, other = is_nan(a), is_nan(b)
    if nan is None or other is None:
        return lt(a, b)
    return either(lt(a, b), both(other, Unary("not", nan)))


def above(a: Expression, b: Expression) -> Expression:
    """a > b, with NaN in front of all numbers."""
    nan, other = is_nan(a), is_nan(b)
    if nan is None or other is None:
        return gt(a, b)
    return either(gt(a, b), both(nan, Unary("not", other)))


def infinity(kind: DType) -> int:
    """The bits of a float's infinity; those of a NaN without its sign are more."""
    return (1 << (8 * kind.bytes - 1)) - (1 << _MANTISSA[kind])
