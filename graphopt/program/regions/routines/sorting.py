"""Sorting inside a routine: positions in a stable order, by comparing what stands there or by the digits of keys.

A key is an unsigned number that is larger where its element comes earlier. Keys are sorted by their digits (a radix
sort: Knuth, The Art of Computer Programming 3, 5.2.5), few by insertion; what has no key is merged.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels.dtype import DType
from kernels.routine.writer import (
    Grid,
    Writer,
    as_type,
    both,
    either,
    eq,
    ge,
    gt,
    integer,
    lt,
    minimum,
    ne,
    number,
    pick,
)
from kernels.tensor.expression import Binary, Expression, ExpressionLike, Unary

SIGNED = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}  # integers by their bytes
UNSIGNED = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
DIGITS = 256
_INSERTED = 64  # keys up to which each is inserted: to count digits takes longer
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


def key_of(bits: Expression, kind: DType, *, is_largest: bool) -> Expression:
    """The key of an element of a type whose bits are given; the two zeros have one key, and so have all NaN."""
    of, width = bits.dtype, 8 * kind.bytes
    sign, everything = number(1 << (width - 1), of), number((1 << width) - 1, of)
    if kind.is_float:
        magnitude = Binary("and", bits, number((1 << (width - 1)) - 1, of))
        infinite = number(infinity(kind), of)
        known = pick(gt(magnitude, infinite), magnitude, pick(eq(magnitude, 0), magnitude, bits))
        is_negative = gt(known, Binary("xor", sign, everything))
        made: Expression = pick(is_negative, Binary("xor", known, everything), Binary("xor", known, sign))
        made = pick(gt(magnitude, infinite), everything, made)
    else:
        made = Binary("xor", bits, sign) if kind.is_signed else bits
    return made if is_largest else Binary("xor", made, everything)


class Keys:
    """Keys and their `places`, up to `size` of them, with as much room again to sort them into."""

    def __init__(self, w: Writer, kind: DType, size: int) -> None:
        self._w, self._size, self.kind = w, size, kind
        self._keys, self.places = (w.scratch(of, (2, size)) for of in (kind, DType.I64))
        self._counts = w.scratch(DType.I64, (DIGITS,))
        self._from: Expression = integer(0)  # where those lie that are sorted so far

    def put(self, at: Expression, key: Expression, place: ExpressionLike) -> None:
        """A key with its place, before they are sorted."""
        self._keys.put(at, key)
        self.places.put(at, place)

    def key(self, at: ExpressionLike) -> Expression:
        """The key that comes at this position."""
        return self._keys.at(self._from + at)

    def place(self, at: ExpressionLike) -> Expression:
        """Its place."""
        return self.places.at(self._from + at)

    def sort(self, count: ExpressionLike) -> None:
        """The first `count` of them in order, the largest key first; equal ones as they were."""
        w, number_of = self._w, self._w.local(DType.I64, count)
        source, aim = w.local(DType.I64, 0), w.local(DType.I64, self._size)
        with w.when(lt(number_of, _INSERTED)):
            self._insert(number_of)
        with w.otherwise():
            some, all_ = w.local(self.kind, 0), w.local(self.kind, (1 << 8 * self.kind.bytes) - 1)
            with w.loop(number_of) as at:
                w.set(some, Binary("or", some, self._keys.at(at)))
                w.set(all_, Binary("and", all_, self._keys.at(at)))
            differ = w.local(self.kind, Binary("xor", some, all_))
            with w.loop(self.kind.bytes) as step:
                shift = w.local(self.kind, as_type(step * 8, self.kind))
                with w.when(ne(digit(differ, shift), 0)):
                    self._by_digit(number_of, source, aim, shift)
                    w.set(aim, source)
                    w.set(source, self._size - source)
        self._from = source

    def _insert(self, count: Expression) -> None:
        w, keys, places = self._w, self._keys, self.places
        with w.loop(count, 1) as at:
            one, own = w.local(self.kind, keys.at(at)), w.local(DType.I64, places.at(at))
            aim = w.local(DType.I64, at)
            moves = w.local(DType.BOOL, True)
            with w.loop_while(moves):
                w.set(moves, gt(one, keys.at(aim - 1)))
                with w.when(moves):
                    self.put(aim, keys.at(aim - 1), places.at(aim - 1))
                    w.set(aim, aim - 1)
                    w.set(moves, gt(aim, 0))
            self.put(aim, one, own)

    def _by_digit(self, count: Expression, source: Expression, aim: Expression, shift: Expression) -> None:
        w, keys, places, counts = self._w, self._keys, self.places, self._counts
        with w.loop(DIGITS) as one:
            counts.put(one, 0)
        with w.loop(count) as at:
            here = w.local(DType.I64, digit(keys.at(source + at), shift))
            counts.put(here, counts.at(here) + 1)
        total = w.local(DType.I64, aim)
        with w.loop(DIGITS) as one:
            own = w.local(DType.I64, counts.at(DIGITS - 1 - one))
            counts.put(DIGITS - 1 - one, total)
            w.set(total, total + own)
        with w.loop(count) as at:
            here = w.local(DType.I64, digit(keys.at(source + at), shift))
            place = w.local(DType.I64, counts.at(here))
            counts.put(here, place + 1)
            self.put(place, keys.at(source + at), places.at(source + at))


def digit(key: Expression, shift: Expression) -> Expression:
    """Eight bits of a key."""
    return as_type(Binary("and", Binary("shr", key, shift), number(DIGITS - 1, key.dtype)), DType.I64)
