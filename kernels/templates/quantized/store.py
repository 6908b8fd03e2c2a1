"""Applying the epilogue to int32 sums and storing them, channels side by side or each in a plane of its own."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.emission import emit
from kernels.llvm.function import Function, Value
from kernels.math.rounding import round_half_even
from kernels.templates.convolution import store
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.store import SeveralLeaves
from kernels.templates.epilogue import TileLeaves
from kernels.tensor.expression import Binary, Cast, Expression, Number, Unary, Variable, clip

_EXACT = 1 << 24  # float32 holds every integer up to this one


def along(geometry: Convolution) -> Variable:
    """The epilogue's variable that counts the lanes of a vector."""
    return geometry.variables[5 if geometry.output.order == "NHWC" else 1]


def store_pixels(
    f: Function,
    geometry: Convolution,
    leaves: TileLeaves,
    y: Value,
    pixels: Sequence[tuple[int, int]],
    sums: Sequence[Value],
    valid: Sequence[int],
) -> None:
    """Store one value per pixel (row, column of the tile), with a part per vector of `valid` lanes.

    `y` is the output at the tile's first pixel and channel; `leaves` count lanes by `along`.
    """
    planes = geometry.output.order == "NCHW"
    store.store_pixels(f, geometry, leaves, y, pixels, sums, valid, planes=planes, value_of=_value)


def _value(f: Function, value: Expression, lanes: int, leaves: SeveralLeaves) -> Value:
    """The epilogue's value; a number that was clipped to a narrow type is converted without saturating once more.

    cast(i8, cast(i32, clip(x, low, high)))             -->   truncate(convert(clip(x, low, high)))
    cast(i8, cast(i32, clip(round(x) + zero, ...)))     -->   truncate(round_to_i32(clip(x, ... - zero)) + zero)

    A NaN, which only a scale that is none can bring, becomes any number.
    """
    match value:
        case Cast(
            kind,
            Cast(
                DType.I32,
                Binary("min", Binary("max", inner, Number(low, DType.F32)), Number(high, DType.F32)) as clipped,
            ),
        ) if kind.is_integer and kind.bytes < 4 and -_EXACT <= low <= high <= _EXACT:
            narrow = types.vector(types.scalar(kind), lanes)
            rounded = _rounded(inner)
            if rounded is None:
                found = emit(f, clipped, lanes, leaves)
                words = f.convert("fptosi", types.with_element(found.type, "i32"), found)
                defined = f.each(words.type, lambda one: f"freeze {words.type} {one}", words)
                return f.convert("trunc", narrow, defined)
            before, zero = rounded
            found = emit(f, clip(before, low - zero, high - zero), lanes, leaves)
            kind_of_words = types.with_element(found.type, "i32")
            if f.module.target.is_gpu or f.module.target.architecture.is_bare:  # LLVM has no lrint for them
                words = f.convert("fptosi", kind_of_words, round_half_even(f, found))
            else:
                name = f"llvm.lrint.{types.suffix(kind_of_words)}.{types.suffix(found.type)}"
                words = f.call_outside(name, kind_of_words, found)
            return f.convert("trunc", narrow, f.add(words, f.number(kind_of_words, zero)) if zero else words)
    return emit(f, value, lanes, leaves)


def _rounded(value: Expression) -> tuple[Expression, int] | None:
    """x and zero of round(x) + zero, where that is what the value is and zero is a constant."""
    match value:
        case Unary("round", x):
            return x, 0
        case Binary("add", Unary("round", x), Cast(DType.F32, Number(zero, kind))) if kind.is_integer:
            return x, int(zero)
    return None
