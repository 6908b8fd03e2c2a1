"""Short types against ml_dtypes: every code as a float, and floats of all kinds as codes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kernels.dtype import DType
from kernels.run import Executable, aligned
from kernels.target import Target
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.tensor import scalars
from kernels.tensor.expression import Buffer, Cast, Variable
from tests.kernels.targets import HERE

NAMES = {
    DType.E4M3FN: "float8_e4m3fn", DType.E4M3FNUZ: "float8_e4m3fnuz", DType.E5M2: "float8_e5m2",
    DType.E5M2FNUZ: "float8_e5m2fnuz", DType.E2M1: "float4_e2m1fn", DType.E8M0: "float8_e8m0fnu", DType.I4: "int4",
    DType.U4: "uint4", DType.I2: "int2", DType.U2: "uint2",
}  # fmt: skip
EACH = pytest.mark.parametrize("dtype", NAMES, ids=lambda one: one.value)
ON_EACH_TARGET = pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)


def converted(source: DType, kind: DType, x: np.ndarray, target: Target) -> np.ndarray:
    """Every element in another type, by a kernel."""
    i = Variable("i", len(x))
    value = Cast(kind, Buffer("x", source, (len(x),))[i])
    kernel = ELEMENTWISE.kernel(Elementwise((i,), (Output(Buffer("y", kind, (len(x),)), value),)), target)
    given, made = aligned(len(x), source.numpy), aligned(len(x), kind.numpy)
    given[:] = x
    Executable([kernel])({"x": given, "y": made})
    return made


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal floats, zeros with their signs, any NaN like another."""
    nan = np.isnan(one) & np.isnan(other)
    return bool((nan | ((one == other) & (np.signbit(one) == np.signbit(other)))).all())


@EACH
@ON_EACH_TARGET
def test_every_code_is_the_number_that_it_stands_for(dtype: DType, target: Target) -> None:
    codes = np.arange(1 if dtype is DType.E8M0 else 0, 256, dtype=np.uint8)  # 2**-127 is subnormal: zero or right
    low = codes & np.uint8(15 if dtype is DType.E2M1 else (1 << dtype.bits) - 1)
    wanted = low.view(getattr(ml_dtypes, NAMES[dtype])).astype(np.float32)
    assert same(converted(dtype, DType.F32, codes, target), wanted)
    assert same(scalars.cast(scalars.widen(codes, dtype), dtype, DType.F32), wanted)


def floats(dtype: DType) -> np.ndarray:
    """Numbers, neighbours, middles of neighbours, and what lies beyond."""
    every = np.arange(16 if dtype is DType.E2M1 else 256, dtype=np.uint8).view(getattr(ml_dtypes, NAMES[dtype]))
    numbers = np.sort(every.astype(np.float32)[np.isfinite(every.astype(np.float32))])
    generator = np.random.default_rng(0)
    wide = generator.standard_normal(4000) * 2.0 ** generator.integers(-24, 24, 4000)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 464.0, 465.0, 61440.0, 61441.0]
    middles = (numbers[:-1] + numbers[1:]) / 2
    around = [np.nextafter(middles, np.float32(way)) for way in (-np.inf, np.inf)]
    return np.concatenate([wide, edges, numbers, middles, *around]).astype(np.float32)


@pytest.mark.parametrize("dtype", [one for one in NAMES if one.is_float and one is not DType.E8M0])
@ON_EACH_TARGET
def test_floats_round_to_the_nearest_code_and_to_what_lies_beyond(dtype: DType, target: Target) -> None:
    x = floats(dtype)
    wanted = x.astype(getattr(ml_dtypes, NAMES[dtype])).view(np.uint8)
    assert np.array_equal(converted(DType.F32, dtype, x, target), wanted)
    assert np.array_equal(scalars.narrow(x, dtype), wanted)


@ON_EACH_TARGET
def test_a_power_of_two_keeps_the_exponent_alone(target: Target) -> None:
    x = np.array([1, 1.99, 2, 3.5, 0.75, 2.0**127, 3e38, np.nan, np.inf], np.float32)
    wanted = np.array([127, 127, 128, 128, 126, 254, 254, 255, 255], np.uint8)
    assert np.array_equal(converted(DType.F32, DType.E8M0, x, target), wanted)
    assert np.array_equal(scalars.narrow(x, DType.E8M0), wanted)


@pytest.mark.parametrize("dtype", [one for one in NAMES if not one.is_float])
@ON_EACH_TARGET
def test_integers_keep_the_low_bits_of_what_is_truncated(dtype: DType, target: Target) -> None:
    x = np.array([0, 1.9, -1.9, 7.5, 8, -8, 200.7, -300, 70001, 2.0**31, -3e9, 1e18], np.float32)
    with np.errstate(invalid="ignore"):
        wanted = x.astype(getattr(ml_dtypes, NAMES[dtype])).view(np.uint8)
    assert np.array_equal(converted(DType.F32, dtype, x, target), wanted)
    assert np.array_equal(scalars.narrow(scalars.cast(x, DType.F32, dtype), dtype), wanted)
    whole = np.arange(-128, 128, dtype=np.int8)
    assert np.array_equal(
        converted(DType.I8, dtype, whole, target), whole.astype(getattr(ml_dtypes, NAMES[dtype])).view(np.uint8)
    )


def test_short_types_are_cast_before_they_are_computed_with() -> None:
    from kernels.tensor.check import check_types
    from kernels.tensor.expression import InvalidExpression, Unary

    x = Buffer("x", DType.E5M2, (4,))[Variable("i", 4)]
    with pytest.raises(InvalidExpression, match="add of e5m2: cast to f32 first"):
        check_types(x + x)
    with pytest.raises(InvalidExpression, match="neg of i4: cast to i8 first"):
        check_types(Unary("neg", Buffer("x", DType.I4, (4,))[Variable("i", 4)]))
