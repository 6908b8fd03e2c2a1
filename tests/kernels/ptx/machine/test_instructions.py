"""Each instruction that computes, against NumPy: one warp, a drawn number for each lane, with the special ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.ptx.machine.kernels import lanes

Anything = npt.NDArray[Any]
DRAW = np.random.default_rng(24)
U32 = np.array([0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31, 32, *DRAW.integers(0, 1 << 32, 24)], np.uint32)
V32 = np.array([3, 0, 0xFFFFFFFF, 1, 0xFFFFFFFF, 2, 0x80000000, 7, *DRAW.integers(1, 1 << 32, 24)], np.uint32)
W32 = DRAW.integers(0, 1 << 32, 32).astype(np.uint32)
U64 = np.array([0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, *DRAW.integers(0, 1 << 63, 27) * 2 + 1], np.uint64)
V64 = np.array([5, 1 << 63, 3, (1 << 64) - 1, 1, *DRAW.integers(1, 1 << 40, 27)], np.uint64)
F = np.array(
    [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 3.4e38, 1e-45, -1e-40, 2.5, 3.5, *DRAW.normal(0, 100, 20)],
    np.float32,
)  # fmt: skip
G = np.array([1.0, 0.0, 3.0, 2.0, 0.0, np.inf, 1.0, 3.4e38, 0.5, 3.0, -2.5, np.nan, *DRAW.normal(0, 3, 20)], np.float32)
H = DRAW.normal(0, 10, 32).astype(np.float32)
SHIFTS = np.array([0, 1, 31, 32, 33, 64, 200, *range(2, 27)], np.uint32)


def signed(x: Anything) -> Anything:
    return x.view(np.dtype(f"i{x.itemsize}"))


def big(x: Anything) -> list[int]:
    return [int(one) for one in x]


def words(values: list[int], bits: int = 32) -> Anything:
    return np.array([one & ((1 << bits) - 1) for one in values], f"u{bits // 8}")


def quotient(x: int, y: int) -> int:
    return -1 if y == 0 else abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)


PAIRS: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul.lo": lambda x, y: x * y, "min": min, "max": max,
    "div": quotient, "rem": lambda x, y: x if y == 0 else x - quotient(x, y) * y,
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_whole_numbers(name: str, kind: str) -> None:
    bits = int(kind[1:])
    x, y = (U32, V32) if bits == 32 else (U64, V64)
    register = "%r" if bits == 32 else "%d"
    found = lanes(f"{name}.{kind} {register}10, {register}11, {register}12;",
                  {f"{register}11": x, f"{register}12": y}, f"{register}10", bits)  # fmt: skip
    if kind[0] == "s":
        x, y = signed(x), signed(y)
    expected = words([PAIRS[name](*pair) for pair in zip(big(x), big(y), strict=True)], bits)
    defined = y != 0 if name == "rem" else np.ones(32, bool)
    assert (found[defined] == expected[defined]).all()


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_upper_halves_and_wide_products(kind: str) -> None:
    bits = int(kind[1:])
    x, y = (U32, V32) if bits == 32 else (U64, V64)
    register = "%r" if bits == 32 else "%d"
    inputs = {f"{register}11": x, f"{register}12": y}
    found = lanes(f"mul.hi.{kind} {register}10, {register}11, {register}12;", inputs, f"{register}10", bits)
    if kind[0] == "s":
        x, y = signed(x), signed(y)
    products = [one * other for one, other in zip(big(x), big(y), strict=True)]
    assert (found == words([one >> bits for one in products], bits)).all()
    if bits == 32:
        found = lanes(f"mad.wide.{kind} %d10, %r11, %r12, 7;", inputs, "%d10", 64)
        assert (found == words([one + 7 for one in products], 64)).all()


def test_logic_and_selection() -> None:
    three = {"%r11": U32, "%r12": V32, "%r13": W32}
    assert (lanes("and.b32 %r10, %r11, %r12;", three, "%r10", 32) == U32 & V32).all()
    assert (lanes("or.b32 %r10, %r11, %r12;", three, "%r10", 32) == U32 | V32).all()
    assert (lanes("xor.b32 %r10, %r11, %r12;", three, "%r10", 32) == U32 ^ V32).all()
    assert (lanes("not.b32 %r10, %r11;", three, "%r10", 32) == ~U32).all()
    expected = (U32 & V32) | (~U32 & W32)
    assert (lanes("lop3.b32 %r10, %r11, %r12, %r13, 0xCA;", three, "%r10", 32) == expected).all()
    text = "setp.lt.u32 %p1, %r11, %r12; selp.b32 %r10, %r11, %r13, %p1;"
    assert (lanes(text, three, "%r10", 32) == np.where(U32 < V32, U32, W32)).all()
    text = "setp.ge.and.s32 %p1|%p2, %r11, %r12, %p0; selp.b32 %r10, 1, 0, %p1; selp.b32 %r9, 2, 0, %p2;"
    text += " add.s32 %r10, %r10, %r9;"
    found = lanes(f"setp.lt.u32 %p0, %r13, 0x80000000; {text}", three, "%r10", 32)
    more, also = signed(U32) >= signed(V32), W32 < 0x80000000
    assert (found == (more & also) + 2 * (~more & also)).all()


@pytest.mark.parametrize("name", ["shl.b32", "shr.u32", "shr.s32"])
def test_shifts_by_more_than_the_bits(name: str) -> None:
    found = lanes(f"{name} %r10, %r11, %r12;", {"%r11": U32, "%r12": SHIFTS}, "%r10", 32)
    values = big(signed(U32) if name == "shr.s32" else U32)
    left = name[:3] == "shl"
    expected = [x << min(by, 32) if left else x >> min(by, 40) for x, by in zip(values, big(SHIFTS), strict=True)]
    assert (found == words(expected)).all()


def test_bits() -> None:
    one = {"%r11": U32}
    assert (lanes("popc.b32 %r10, %r11;", one, "%r10", 32) == [bin(x).count("1") for x in U32]).all()
    assert (lanes("clz.b32 %r10, %r11;", one, "%r10", 32) == [32 - int(x).bit_length() for x in U32]).all()
    assert (lanes("brev.b32 %r10, %r11;", one, "%r10", 32) == [int(f"{x:032b}"[::-1], 2) for x in U32]).all()
    assert (lanes("bfe.u32 %r10, %r11, 5, 9;", one, "%r10", 32) == (U32 >> 5) & 511).all()
    assert (lanes("bfe.s32 %r10, %r11, 28, 4;", one, "%r10", 32) == words(big(signed(U32) >> 28))).all()
    two = {"%r11": U32, "%r12": V32}
    mask = np.uint32(0x3FC0)
    assert (lanes("bfi.b32 %r10, %r11, %r12, 6, 8;", two, "%r10", 32) == (V32 & ~mask) | (U32 << 6 & mask)).all()
    joined = (V32.astype(np.uint64) << 32) | U32
    assert (lanes("shf.r.wrap.b32 %r10, %r11, %r12, 9;", two, "%r10", 32) == (joined >> 9).astype(np.uint32)).all()
    assert (
        lanes("shf.l.wrap.b32 %r10, %r11, %r12, 9;", two, "%r10", 32) == (joined << 9 >> 32).astype(np.uint32)
    ).all()
    expected = (U32 >> 8 & 0xFF) | (V32 & 0xFF) << 8 | (U32 & 0xFF) << 16 | (V32 >> 24) << 24
    assert (lanes("prmt.b32 %r10, %r11, %r12, 0x7041;", two, "%r10", 32) == expected).all()
    assert (lanes("mov.b64 %d10, {%r11, %r12};", two, "%d10", 64) == joined).all()
    assert (lanes("mov.b64 {%r9, %r10}, %d11;", {"%d11": U64}, "%r10", 32) == U64 >> 32).all()


def same(found: Anything, expected: Anything) -> None:
    found = found.view(expected.dtype)
    nan = np.isnan(expected)
    assert (np.isnan(found) == nan).all()
    assert (found[~nan].view(f"u{found.itemsize}") == expected[~nan].view(f"u{found.itemsize}")).all()


@pytest.mark.parametrize(
    ("name", "operation"),
    [("add.f32", np.add), ("sub.f32", np.subtract), ("mul.f32", np.multiply), ("div.rn.f32", np.divide)],
)
def test_real_numbers(name: str, operation: np.ufunc) -> None:
    with np.errstate(all="ignore"):
        expected = operation(F, G)
    same(lanes(f"{name} %r10, %r11, %r12;", {"%r11": F, "%r12": G}, "%r10", 32), expected)


def test_a_fused_product_is_rounded_once() -> None:
    x = np.float32(1 + 2**-12) * np.ones(32, np.float32)
    z = -np.float32(1 + 2**-11) * np.ones(32, np.float32)
    found = lanes("fma.rn.f32 %r10, %r11, %r11, %r12;", {"%r11": x, "%r12": z}, "%r10", 32).view(np.float32)
    assert (found == 2.0**-24).all(), "what the product's rounding would have lost"
    # 1 + 2^-24 lies between two float32: the product's last bit decides.
    halfway = np.float32(2**-24) * np.ones(32, np.float32)
    product = np.float32(1 + 2**-23)
    found = lanes(
        "fma.rn.f32 %r10, %r11, %r12, %r13;",
        {"%r11": np.full(32, product, np.float32), "%r12": halfway, "%r13": np.ones(32, np.float32)}, "%r10", 32,
    ).view(np.float32)  # fmt: skip
    assert (found == np.float32(1 + 2**-23)).all(), "above the middle by 2^-47"


def test_least_greatest_and_signs() -> None:
    two = {"%r11": F, "%r12": G}
    least = np.fmin(F, G)
    least[1] = -0.0  # PTX takes -0 for less than 0; NumPy takes the second of two that are equal
    same(lanes("min.f32 %r10, %r11, %r12;", two, "%r10", 32), least)
    same(lanes("max.NaN.f32 %r10, %r11, %r12;", two, "%r10", 32), np.maximum(F, G))
    same(lanes("abs.f32 %r10, %r11;", two, "%r10", 32), np.abs(F))
    same(lanes("neg.f32 %r10, %r11;", two, "%r10", 32), -F)
    same(lanes("copysign.f32 %r10, %r12, %r11;", two, "%r10", 32), np.copysign(F, G))
    with np.errstate(all="ignore"):
        same(lanes("sqrt.rn.f32 %r10, %r11;", two, "%r10", 32), np.sqrt(F))
        same(lanes("rcp.rn.f32 %r10, %r11;", two, "%r10", 32), np.float32(1) / F)


@pytest.mark.parametrize(
    ("name", "comparison"),
    [("lt", np.less), ("neu", np.not_equal), ("eq", np.equal), ("ge", np.greater_equal)],
)
def test_comparisons_of_real_numbers(name: str, comparison: np.ufunc) -> None:
    found = lanes(f"setp.{name}.f32 %p1, %r11, %r12;", {"%r11": F, "%r12": G}, "%p1", 32)
    assert (found == comparison(F, G)).all()
    found = lanes("setp.nan.f32 %p1, %r11, %r12;", {"%r11": F, "%r12": G}, "%p1", 32)
    assert (found == (np.isnan(F) | np.isnan(G))).all()


def test_approximations_are_those_of_float64() -> None:
    x = np.linspace(-20, 20, 32, dtype=np.float32)
    one = {"%r11": x}
    same(lanes("ex2.approx.f32 %r10, %r11;", one, "%r10", 32), np.exp2(x.astype(np.float64)).astype(np.float32))
    found = lanes("tanh.approx.f32 %r10, %r11;", one, "%r10", 32).view(np.float32)
    assert np.allclose(found, np.tanh(x), rtol=1e-6)
    found = lanes("sin.approx.f32 %r10, %r11;", one, "%r10", 32).view(np.float32)
    assert np.allclose(found, np.sin(x), rtol=1e-5)
    with np.errstate(all="ignore"):
        same(lanes("lg2.approx.f32 %r10, %r11;", one, "%r10", 32), np.log2(x.astype(np.float64)).astype(np.float32))


def test_conversions() -> None:
    one = {"%r11": F}
    with np.errstate(all="ignore"):
        same(lanes("cvt.rn.f16.f32 %h1, %r11;", one, "%h1", 16), F.astype(np.float16))
        expected = np.clip(np.nan_to_num(np.trunc(F.astype(np.float64)), nan=0), -(2**31), 2**31 - 1).astype(np.int32)
    assert (lanes("cvt.rzi.s32.f32 %r10, %r11;", one, "%r10", 32).view(np.int32) == expected).all()
    same(lanes("cvt.rpi.f32.f32 %r10, %r11;", one, "%r10", 32), np.ceil(F))
    same(lanes("cvt.rni.f32.f32 %r10, %r11;", one, "%r10", 32), np.rint(F))
    same(lanes("cvt.f64.f32 %d10, %r11;", one, "%d10", 64), F.astype(np.float64))
    same(lanes("cvt.rn.f32.s32 %r10, %r11;", {"%r11": U32}, "%r10", 32), signed(U32).astype(np.float32))
    same(lanes("cvt.rn.f32.u64 %r10, %d11;", {"%d11": U64}, "%r10", 32), U64.astype(np.float32))
    assert (lanes("cvt.s64.s32 %d10, %r11;", {"%r11": U32}, "%d10", 64) == words(big(signed(U32)), 64)).all()
    assert (lanes("cvt.u16.u32 %h1, %r11;", {"%r11": U32}, "%h1", 16) == (U32 & 0xFFFF)).all()
    assert (
        lanes("cvt.sat.s8.s32 %r10, %r11;", {"%r11": U32}, "%r10", 32) == words(big(np.clip(signed(U32), -128, 127)))
    ).all()
    half = DRAW.normal(0, 5, 32).astype(np.float16)
    same(lanes("cvt.f32.f16 %r10, %h1;", {"%h1": half}, "%r10", 32), half.astype(np.float32))
    rounded = (H.view(np.uint32) + 0x7FFF + (H.view(np.uint32) >> 16 & 1)) >> 16
    assert (lanes("cvt.rn.bf16.f32 %h1, %r11;", {"%r11": H}, "%h1", 16) == rounded).all()
    text = "cvt.rn.bf16x2.f32 %r10, %r11, %r12;"
    other = (F.view(np.uint32) + 0x7FFF + (F.view(np.uint32) >> 16 & 1)) >> 16
    found = lanes(text, {"%r11": H, "%r12": F}, "%r10", 32)
    number = ~np.isnan(F)
    assert (found[number] == (rounded << 16 | other)[number]).all()
    expected = (H.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)
    assert (lanes("cvt.rna.tf32.f32 %r10, %r11;", {"%r11": H}, "%r10", 32) == expected).all()


def test_pairs_of_halves() -> None:
    x, y = (DRAW.normal(0, 3, 64).astype(np.float16) for _ in range(2))
    found = lanes(
        "fma.rn.f16x2 %r10, %r11, %r12, %r12;", {"%r11": x.view(np.uint32), "%r12": y.view(np.uint32)}, "%r10", 32
    )
    exact = x.astype(np.float64) * y.astype(np.float64) + y.astype(np.float64)
    same(found, exact.astype(np.float16).view(np.float16).reshape(-1))


def test_doubles() -> None:
    x, y = DRAW.normal(0, 1, 32), DRAW.normal(0, 1, 32)
    two = {"%d11": x, "%d12": y}
    same(lanes("add.f64 %d10, %d11, %d12;", two, "%d10", 64), x + y)
    same(lanes("div.rn.f64 %d10, %d11, %d12;", two, "%d10", 64), x / y)
    found = lanes("fma.rn.f64 %d10, %d11, %d12, %d11;", two, "%d10", 64).view(np.float64)
    assert np.allclose(found, x * y + x, rtol=1e-15, atol=1e-16)


def test_saturated_and_flushed() -> None:
    x = np.array([-1.0, 0.5, 2.0, np.nan] * 8, np.float32)
    found = lanes("add.sat.f32 %r10, %r11, 0f00000000;", {"%r11": x}, "%r10", 32).view(np.float32)
    assert (found == [0.0, 0.5, 1.0, 0.0] * 8).all()
    small = np.full(32, 1e-40, np.float32)
    assert (lanes("add.ftz.f32 %r10, %r11, %r11;", {"%r11": small}, "%r10", 32) == 0).all()
    assert (lanes("add.f32 %r10, %r11, %r11;", {"%r11": small}, "%r10", 32).view(np.float32) == small + small).all()
