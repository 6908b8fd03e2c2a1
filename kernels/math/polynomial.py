"""Polynomials and clamps: what all approximations are made of."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.llvm import types
from kernels.llvm.function import Function, Value


def horner(f: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """c0 + c1 x + c2 x^2 + ..., by fused multiply-adds from the highest power down."""
    *rest, top = coefficients
    total = f.number(x.type, top)
    for one in reversed(rest):
        total = f.fma(total, x, f.number(x.type, one))
    return total


def clamp(f: Function, x: Value, low: float, high: float) -> Value:
    """x inside [low, high]; NaN stays NaN."""
    return f.minimum(f.maximum(x, f.number(x.type, low)), f.number(x.type, high))


def absolute(f: Function, x: Value) -> Value:
    """|x|."""
    return f.intrinsic("llvm.fabs", x.type, x)


def anywhere(f: Function, condition: Value) -> Value:
    """One i1: whether a condition holds in some lane of some part."""
    some = condition.split()[0]
    for one in condition.split()[1:]:
        some = f.binary("or", some, one)
    lanes = types.lanes(condition.type)
    if lanes == 1:
        return some
    bits = f.convert("bitcast", f"i{lanes}", some)
    return f.compare("ne", bits, f.number(bits.type, 0))


def has_avx512(f: Function, lanes: int) -> bool:
    """Whether AVX-512's instructions serve vectors of so many f32."""
    target = f.module.target
    return (lanes == 16 and target.has("avx512f")) or (lanes in (4, 8) and target.has("avx512vl"))
