"""a / b inside a formula that has an error anyway: where an estimate of 1 / b is one instruction, without a division.

A division of 16 lanes keeps its unit busy for as long as 16 multiply-adds take, or more. The estimate is within 2^-14,
and within 2^-28 after one of Newton's steps.
"""

from __future__ import annotations

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.math.polynomial import has_avx512


def quotient(f: Function, a: Value, b: Value) -> Value:
    """a / b: at most 2 ULP. |b| lies between 2^-100 and 2^100, or is NaN; a may be infinite."""
    lanes = types.lanes(b.type)
    if not has_avx512(f, lanes):
        return f.div(a, b)
    estimate = _estimate(f, b, lanes)
    error = f.fma(f.neg(b), estimate, f.number(b.type, 1.0))
    return f.mul(a, f.fma(estimate, error, estimate))


def _estimate(f: Function, b: Value, lanes: int) -> Value:
    """1 / b within 2^-14 of it."""
    name, kind, mask = f"llvm.x86.avx512.rcp14.ps.{32 * lanes}", b.type, "i16" if lanes == 16 else "i8"
    f.module.declare(name, kind, [kind, kind, mask])
    return f.each(kind, lambda one: f"call {kind} @{name}({kind} {one}, {kind} zeroinitializer, {mask} -1)", b)
