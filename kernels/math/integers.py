"""Integer functions, with the cases that C leaves undefined settled as the reference interpreter settles them.

Division by 0 gives 0, and 0 as the remainder; the smallest number divided by -1 wraps to itself; a
number to a negative power is truncated, and 0 to one is 0; shifts by the width or more give 0 (-1 for negative numbers
to the right). All of it without a trap.
"""

from __future__ import annotations

from kernels.llvm import types
from kernels.llvm.function import Function, Value


def quotient(f: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """a / b, truncated towards zero."""
    zero = f.number(a.type, 0)
    by_zero = f.compare("eq", b, zero)
    one = f.number(a.type, 1)
    if not signed:
        return f.select(by_zero, zero, f.div(a, f.select(by_zero, one, b), signed=False))
    negating = f.compare("eq", b, f.number(a.type, -1))
    safe = f.select(by_zero, one, f.select(negating, one, b))
    return f.select(by_zero, zero, f.select(negating, f.sub(zero, a), f.div(a, safe)))


def remainder(f: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """a - (a / b) * b: the sign of the dividend."""
    rest = f.sub(a, f.mul(quotient(f, a, b, signed=signed), b))
    zero = f.number(a.type, 0)
    return rest if b.is_constant and b.text != zero.text else f.select(f.compare("eq", b, zero), zero, rest)


def modulus(f: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """The remainder with the sign of the divisor."""
    rest = remainder(f, a, b, signed=signed)
    if not signed:
        return rest
    zero = f.number(a.type, 0)
    signs_differ = f.compare("slt", f.binary("xor", rest, b), zero)
    some = f.compare("ne", rest, zero)
    return f.select(f.binary("and", some, signs_differ), f.add(rest, b), rest)


def power(f: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """a to the power b modulo 2^bits, by squaring."""
    zero, one = f.number(a.type, 0), f.number(a.type, 1)
    start = f.each(a.type, lambda x: f"or {a.type} {x}, {one.text}", zero)
    count = max(len(a.parts), len(b.parts))
    spread = Value(start.parts * count, a.type)
    base = Value(a.parts * (count // len(a.parts)), a.type)

    def bit(number: Value, carried: tuple[Value, ...]) -> tuple[Value, ...]:
        total, square = carried
        kind = types.element(a.type)
        name = "zext" if types.bits(kind) > 64 else "trunc"
        shift = number if kind == "i64" else f.convert(name, kind, number)
        shifted = f.binary("lshr", b, f.splat(shift, types.lanes(a.type)))
        taken = f.compare("ne", f.binary("and", shifted, one), zero)
        return f.select(taken, f.mul(total, square), total), f.mul(square, square)

    total, _ = f.loop(0, types.bits(a.type), 1, bit, (spread, base))
    if not signed:
        return total
    odd = f.compare("ne", f.binary("and", b, one), zero)
    of_minus_one = f.select(odd, a, one)
    is_unit = f.compare("ult", f.add(a, one), f.number(a.type, 3))  # -1, 0 or 1
    inverse = f.select(is_unit, f.select(f.compare("eq", a, zero), zero, of_minus_one), zero)
    return f.select(f.compare("slt", b, zero), inverse, total)


def shift_left(f: Function, a: Value, b: Value) -> Value:
    """a << b."""
    bits = f.number(a.type, types.bits(a.type))
    inside = f.compare("ult", b, bits)
    zero = f.number(a.type, 0)
    return f.select(inside, f.binary("shl", a, f.select(inside, b, zero)), zero)


def shift_right(f: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """a >> b, filled with the sign."""
    bits, zero = types.bits(a.type), f.number(a.type, 0)
    inside = f.compare("ult", b, f.number(a.type, bits))
    if signed:
        return f.binary("ashr", a, f.select(inside, b, f.number(a.type, bits - 1)))
    return f.select(inside, f.binary("lshr", a, f.select(inside, b, zero)), zero)
