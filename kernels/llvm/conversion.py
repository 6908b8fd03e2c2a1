"""Between types: elements as they are stored and as they are computed with, and casts.

bf16 is converted by integer instructions: the processor's own conversion flushes subnormal numbers to zero. What is
shorter is in `minifloat`.
"""

from __future__ import annotations

from kernels.dtype import DType
from kernels.llvm import minifloat, types
from kernels.llvm.function import Function, Value


def held_type(dtype: DType, lanes: int) -> str:
    """The type in which values are computed: f32 for shorter floats, i1 for bool."""
    return types.vector("i1" if dtype is DType.BOOL else types.scalar(dtype.held), lanes)


def memory_type(dtype: DType) -> str:
    """The type of an element in memory: bf16 as i16, as LLVM calls a function to move a bfloat that a CPU lacks."""
    return "i16" if dtype is DType.BF16 else types.scalar(dtype)


def widened(f: Function, value: Value, dtype: DType) -> Value:
    """Elements as they lie in memory, as values to compute with."""
    if dtype is DType.F16:
        return f.convert("fpext", types.with_element(value.type, "float"), value)
    if dtype is DType.BF16:
        words, wide = (types.with_element(value.type, one) for one in ("i16", "i32"))
        bits = f.convert("zext", wide, f.convert("bitcast", words, value))  # i16 already: nothing to do
        shifted = f.binary("shl", bits, f.number(wide, 16))
        return f.convert("bitcast", types.with_element(value.type, "float"), shifted)
    if dtype is DType.BOOL:
        return f.compare("ne", value, f.number(value.type, 0))
    if dtype.held is DType.F32 and dtype is not DType.F32:
        return minifloat.widened(f, value, dtype)
    if dtype.bits < 8 * dtype.bytes:
        rest = f.number(value.type, 8 - dtype.bits)
        return f.binary("ashr" if dtype.is_signed else "lshr", f.binary("shl", value, rest), rest)
    return value


def stored(f: Function, value: Value, dtype: DType) -> Value:
    """Values as they lie in memory, rounded to nearest even."""
    if dtype is DType.F16:
        return f.convert("fptrunc", types.with_element(value.type, "half"), value)
    if dtype is DType.BF16:
        wide, words = (types.with_element(value.type, one) for one in ("i32", "i16"))
        bits = f.convert("bitcast", wide, value)
        high = f.binary("lshr", bits, f.number(wide, 16))
        even = f.binary("and", high, f.number(wide, 1))
        rounded = f.binary("lshr", f.add(f.add(bits, f.number(wide, 0x7FFF)), even), f.number(wide, 16))
        quiet = f.binary("or", high, f.number(wide, 0x40))
        chosen = f.select(f.compare("uno", value, value), quiet, rounded)
        halves = f.convert("trunc", words, chosen)
        return f.convert("bitcast", types.with_element(value.type, "bfloat"), halves)
    if dtype is DType.BOOL:
        return f.convert("zext", types.with_element(value.type, "i8"), value)
    if dtype.held is DType.F32 and dtype is not DType.F32:
        return minifloat.stored(f, value, dtype)
    if dtype.bits < 8 * dtype.bytes:
        return f.binary("and", value, f.number(value.type, (1 << dtype.bits) - 1))
    return value


def cast(f: Function, value: Value, source: DType, kind: DType) -> Value:
    """A value to compute with, in another type: floats to integers truncate and saturate, NaN gives 0.

    An integer of less than eight bits keeps the low ones of a float's int32, and is 0 for what is beyond that.
    """
    held = held_type(kind, types.lanes(value.type))
    if kind is DType.BOOL:
        if source is DType.BOOL:
            return value
        zero = f.number(value.type, 0)
        return f.compare("une" if source.is_float else "ne", value, zero)
    if kind.held is DType.F32 and kind is not DType.F32:
        single = cast(f, value, source, DType.F32)
        return widened(f, stored(f, single, kind), kind)
    if kind.bits < 8 * kind.bytes:
        if source.is_float:
            inside = f.compare("olt", f.intrinsic("llvm.fabs", value.type, value), f.number(value.type, 2.0**31))
            value, source = cast(f, f.select(inside, value, f.number(value.type, 0)), source, DType.I32), DType.I32
        return widened(f, stored(f, cast(f, value, source, kind.held), kind), kind)
    if source.is_float:
        if kind.is_float:
            return f.convert("fptrunc" if types.bits(held) < types.bits(value.type) else "fpext", held, value)
        if kind.bytes < 4 or kind in (DType.I32, DType.I64):
            return _to_words(f, value, held, kind)
        name = f"llvm.fpto{'s' if kind.is_signed else 'u'}i.sat.{types.suffix(held)}.{types.suffix(value.type)}"
        return f.call_outside(name, held, value)
    signed = source.is_signed
    if kind.is_float:
        return f.convert("sitofp" if signed else "uitofp", held, value)
    if types.bits(held) < types.bits(value.type):
        return f.convert("trunc", held, value)
    return f.convert("sext" if signed else "zext", held, value)


def _to_words(f: Function, value: Value, held: str, kind: DType) -> Value:
    """Floats as integers, short ones by way of int32: LLVM 22 makes x86's saturating ones lane by lane."""
    words = types.with_element(held, "i64" if kind is DType.I64 else "i32")
    nothing = f.compare("uno", value, value)
    bits = 8 * kind.bytes
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind.is_signed else (0, (1 << bits) - 1)
    inside = value
    clips = bits <= (24 if types.bits(value.type) == 32 else 53)  # the limits are floats: it is exact
    if clips:
        inside = f.minimum(f.maximum(value, f.number(value.type, low)), f.number(value.type, high))
    made = f.convert("fptosi", words, inside)
    made = f.each(words, lambda one: f"freeze {words} {one}", made)
    if not clips:
        edge = f.number(value.type, 2.0 ** (bits - 1))
        made = f.select(f.compare("oge", value, edge), f.number(words, high), made)
        made = f.select(f.compare("olt", value, f.neg(edge)), f.number(words, low), made)
    made = f.select(nothing, f.number(words, 0), made)
    return made if words == held else f.convert("trunc", held, made)
