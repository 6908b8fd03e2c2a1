"""Floats of eight bits and less as f32 and back, by integer instructions and one addition that rounds."""

from __future__ import annotations

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.minifloat import FORMATS, Format

_BIAS, _MANTISSA = 127, 23  # of f32
_MAGNITUDE, _NAN, _INFINITY = (1 << 31) - 1, 0x7FC00000, 0x7F800000


def widened(f: Function, value: Value, dtype: DType) -> Value:
    """Bytes as f32: exact. Subnormal numbers are products of their mantissa, as a shift would make subnormal f32s."""
    wide, single = (types.with_element(value.type, one) for one in ("i32", "float"))
    code = f.convert("zext", wide, value)
    if dtype is DType.E8M0:
        bits = _shift(f, "shl", code, _MANTISSA)
        least = f.select(_is(f, code, 0), f.number(wide, 1 << _MANTISSA - 1), bits)
        return f.convert("bitcast", single, f.select(_is(f, code, 0xFF), f.number(wide, _NAN), least))
    form = FORMATS[dtype]
    magnitude = _and(f, code, form.sign - 1)
    shifted = _shift(f, "shl", magnitude, _MANTISSA - form.mantissa)
    normal = f.add(shifted, f.number(wide, _BIAS - form.bias << _MANTISSA))
    step = f.number(single, 2.0 ** (1 - form.bias - form.mantissa))
    small = f.convert("bitcast", wide, f.mul(f.convert("sitofp", single, magnitude), step))
    found = f.select(_below(f, magnitude, 1 << form.mantissa), small, normal)
    if form.beyond in ("inf", "nan"):
        beyond = f.number(wide, _NAN)
        if form.beyond == "inf":
            beyond = f.select(_is(f, magnitude, form.largest + 1), f.number(wide, _INFINITY), beyond)
        found = f.select(_below(f, magnitude, form.largest + 1), found, beyond)
    signed = _or(f, found, _shift(f, "shl", _and(f, code, form.sign), 31 - form.exponent - form.mantissa))
    if form.beyond == "zero":
        signed = f.select(_is(f, _and(f, code, 2 * form.sign - 1), form.nan), f.number(wide, _NAN), signed)
    return f.convert("bitcast", single, signed)


def stored(f: Function, value: Value, dtype: DType) -> Value:
    """f32 as bytes, rounded to nearest even; e8m0 keeps the exponent alone. What is beyond becomes what there is."""
    wide, byte = (types.with_element(value.type, one) for one in ("i32", "i8"))
    bits = f.convert("bitcast", wide, value)
    if dtype is DType.E8M0:
        return f.convert("trunc", byte, _shift(f, "lshr", bits, _MANTISSA))
    form = FORMATS[dtype]
    magnitude = _and(f, bits, _MAGNITUDE)
    code = f.select(
        _below(f, magnitude, _BIAS - form.bias + 1 << _MANTISSA),
        _subnormal(f, magnitude, form),
        _normal(f, magnitude, form),
    )
    beyond = {"inf": form.largest + 1, "none": form.largest}.get(form.beyond, form.nan)
    code = f.select(_below(f, code, form.largest + 1), code, f.number(wide, beyond))
    code = f.select(_below(f, magnitude, _INFINITY + 1), code, f.number(wide, form.nan))
    sign = _and(f, _shift(f, "lshr", bits, 31 - form.exponent - form.mantissa), form.sign)
    signed = f.binary("xor", code, sign)
    if form.beyond == "zero":
        plain = f.binary("or", _is(f, code, 0), _is(f, code, form.nan))
        signed = f.select(plain, code, signed)
    return f.convert("trunc", byte, signed)


def _normal(f: Function, magnitude: Value, form: Format) -> Value:
    """Half a unit, less one where the last bit that stays is 0, and what is left of that is cut off."""
    cut = _MANTISSA - form.mantissa
    odd = _and(f, _shift(f, "lshr", magnitude, cut), 1)
    lifted = f.add(f.add(magnitude, f.number(magnitude.type, (1 << cut - 1) - 1)), odd)
    return f.sub(_shift(f, "lshr", lifted, cut), f.number(magnitude.type, _BIAS - form.bias << form.mantissa))


def _subnormal(f: Function, magnitude: Value, form: Format) -> Value:
    """The sum with a number so large that its last bit is the format's last one."""
    single = types.with_element(magnitude.type, "float")
    large = f.number(single, 2.0 ** (_MANTISSA + 1 - form.bias - form.mantissa))
    total = f.add(f.convert("bitcast", single, magnitude), large)
    return f.sub(f.convert("bitcast", magnitude.type, total), f.convert("bitcast", magnitude.type, large))


def _shift(f: Function, op: str, value: Value, bits: int) -> Value:
    return f.binary(op, value, f.number(value.type, bits))


def _and(f: Function, value: Value, mask: int) -> Value:
    return f.binary("and", value, f.number(value.type, mask))


def _or(f: Function, a: Value, b: Value) -> Value:
    return f.binary("or", a, b)


def _is(f: Function, value: Value, code: int) -> Value:
    return f.compare("eq", value, f.number(value.type, code))


def _below(f: Function, value: Value, limit: int) -> Value:
    return f.compare("ult", value, f.number(value.type, limit))
