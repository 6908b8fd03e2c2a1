"""Exact arithmetic: what rules claim that regroup floats, and that then round once where it was twice.

Sums over axes stand with two by two or two by three elements; longer ones follow by induction, which is not z3's.
"""

from __future__ import annotations

import z3

from graphopt.passes.quantization import PRECISION, STEPS
from tests.proofs.statement import Proof, proof

x, y, c, d, s, t, w, b = z3.Reals("x y c d s t w b")
HALF = z3.Float16()


def relu(value: z3.ArithRef) -> z3.ArithRef:
    return z3.If(value > 0, value, 0)


def _times(left: list[list[z3.ArithRef]], right: list[list[z3.ArithRef]]) -> list[list[z3.ArithRef]]:
    return [
        [z3.Sum([left[i][k] * right[k][j] for k in range(len(right))]) for j in range(len(right[0]))]
        for i in range(len(left))
    ]


def _matrix(name: str) -> list[list[z3.ArithRef]]:
    return [[z3.Real(f"{name}{i}{j}") for j in range(2)] for i in range(2)]


def _same(left: list[list[z3.ArithRef]], right: list[list[z3.ArithRef]]) -> z3.BoolRef:
    return z3.And(*(a == b for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True)))


f, g = z3.FP("f", HALF), z3.FP("g", HALF)
ROUNDED = z3.ExprRef.__eq__(z3.fpMul(z3.RNE(), f, z3.fpDiv(z3.RNE(), z3.FPVal(1.0, HALF), g)), z3.fpDiv(z3.RNE(), f, g))
QUOTIENTS = (
    proof("times-reciprocal", "x (1 / y) = x / y; rounded floats differ", x * (1 / y) == x / y, premise=y != 0,
          wrong=ROUNDED),
    proof("over-reciprocal", "x / (1 / y) = x y", x / (1 / y) == x * y, premise=y != 0, wrong=x / (1 / y) == x * y),
    proof("pow-two", "x ^ 2 = x x", x**2 == x * x, wrong=x**2 == x + x),
    proof("pow-minus-one", "x ^ -1 = 1 / x", x**-1 == 1 / x, premise=x != 0, wrong=x**-1 == x),
)  # fmt: skip


# -- reductions ---------------------------------------------------------------------------------------------------

E = [[z3.Real(f"e{i}{j}") for j in range(3)] for i in range(2)]
ALL = [element for row in E for element in row]
N = [[z3.Int(f"n{i}{j}") for j in range(3)] for i in range(2)]


def _most(values: list[z3.ArithRef]) -> z3.ArithRef:
    found = values[0]
    for value in values[1:]:
        found = z3.If(value > found, value, found)
    return found


def _least(values: list[z3.ArithRef]) -> z3.ArithRef:
    return -_most([-value for value in values])


def _mean(values: list[z3.ArithRef]) -> z3.ArithRef:
    return z3.Sum(values) / len(values)


ROWS_OF_INTEGERS = [z3.Sum(row) / 3 for row in N]  # division of integers drops the remainder
COLUMNS = [[E[i][j] for i in range(2)] for j in range(3)]
REDUCTIONS = (
    proof("sum-of-sum-reduction", "a sum of sums is the sum", z3.Sum([z3.Sum(row) for row in E]) == z3.Sum(ALL),
          wrong=z3.Sum([z3.Sum(row) for row in E]) == z3.Sum(E[0])),
    proof("prod-of-prod-reduction", "a product of products is the product",
          z3.Product([z3.Product(row) for row in E]) == z3.Product(ALL),
          wrong=z3.Product([z3.Product(row) for row in E]) == z3.Product(E[0])),
    proof("max-of-max-reduction", "the largest of the largest", _most([_most(row) for row in E]) == _most(ALL),
          wrong=_most([_least(row) for row in E]) == _most(ALL)),
    proof("min-of-min-reduction", "the least of the least", _least([_least(row) for row in E]) == _least(ALL),
          wrong=_least([_most(row) for row in E]) == _least(ALL)),
    proof("mean-of-mean-reduction", "a mean of means of equal counts is the mean; integers lose remainders",
          _mean([_mean(row) for row in E]) == _mean(ALL),
          wrong=z3.Sum(ROWS_OF_INTEGERS) / 2 == z3.Sum([element for row in N for element in row]) / 6),
    proof("reduce-of-transpose", "a sum, a product, a maximum in another order",
          z3.And(z3.Sum([z3.Sum(column) for column in COLUMNS]) == z3.Sum(ALL),
                 z3.Product([z3.Product(column) for column in COLUMNS]) == z3.Product(ALL),
                 _most([_most(column) for column in COLUMNS]) == _most(ALL)),
          wrong=E[0][0] - E[0][1] == E[0][1] - E[0][0]),
)  # fmt: skip


# -- weights ------------------------------------------------------------------------------------------------------

A, B, M = _matrix("a"), _matrix("b"), _matrix("m")
mean, gain, spread, shift = z3.Reals("mean gain spread shift")
layer = x * w + b
normalized = gain * (layer - mean) / spread + shift
WEIGHTS = (
    proof("affine-after-layer", "(x w + b) c + d = x (w c) + (b c + d)", layer * c + d == x * (w * c) + (b * c + d),
          wrong=layer * c + d == x * (w * c) + (b + d)),
    proof("affine-after-layer", "(x w + b) / c = x (w / c) + b / c", layer / c == x * (w / c) + b / c, premise=c != 0,
          wrong=layer / c == x * (w / c) + b),
    proof("scale-before-layer", "(x c) w = x (c w), (x / c) w = x (w / c)",
          z3.And((x * c) * w == x * (c * w), (x / c) * w == x * (w / c)), premise=c != 0,
          wrong=(x / c) * w == x * (w * c)),
    proof("shift-before-layer", "(x + c) w + b = x w + (c w + b); a border of zeros sees no c",
          (x + c) * w + b == x * w + (c * w + b), wrong=0 * w + b == 0 * w + (c * w + b)),
    proof("batchnorm-after-layer", "the normalization of x w + b is a layer",
          normalized == x * (w * (gain / spread)) + (b * (gain / spread) + (shift - mean * (gain / spread))),
          premise=spread > 0,
          wrong=normalized == x * (w * (gain / spread)) + (b + (shift - mean * (gain / spread)))),
    proof("batchnorm-before-layer", "a layer of the normalization is a layer",
          (gain * (x - mean) / spread + shift) * w + b
          == x * (w * (gain / spread)) + (b + (shift - mean * (gain / spread)) * w), premise=spread > 0,
          wrong=(gain * (x - mean) / spread + shift) * w + b == x * (w * (gain / spread)) + b),
    proof("affine-after-batchnorm", "normalized c + d has another gain and shift",
          (gain * (x - mean) / spread + shift) * c + d == (gain * c) * (x - mean) / spread + (shift * c + d),
          premise=spread > 0,
          wrong=(gain * (x - mean) / spread + shift) * c + d == (gain * c) * (x - mean) / spread + (shift + d)),
    proof("affine-before-batchnorm", "x c + d normalized, with the old mean",
          gain * ((c * x + d) - mean) / spread + shift
          == (gain * c) * (x - mean) / spread + (shift + gain / spread * (c * mean + d - mean)), premise=spread > 0,
          wrong=gain * ((c * x + d) - mean) / spread + shift == (gain * c) * (x - mean) / spread + shift),
    proof("product-of-products", "(X A) B = X (A B)", _same(_times(_times(M, A), B), _times(M, _times(A, B))),
          wrong=_same(_times(_times(M, A), B), _times(M, _times(B, A)))),
    proof("number-to-weights-above, number-to-weights-below", "relu(s x) = s relu(x) for s > 0",
          relu(s * x) == s * relu(x), premise=s > 0, wrong=relu(s * x) == s * relu(x)),
    proof("number-to-weights-above, number-to-weights-below, numbers-of-both-operands",
          "(s X) (t A) = (s t) (X A)",
          _same(_times([[s * e for e in row] for row in M], [[t * e for e in row] for row in A]),
                [[(s * t) * e for e in row] for row in _times(M, A)]),
          wrong=_same(_times([[s * e for e in row] for row in M], A), _times(M, A))),
    proof("pad-into-max-pool", "the maximum with a padding of 0 is that of the data where it is not negative",
          z3.If(x > 0, x, 0) == x, premise=x >= 0, wrong=z3.If(x > 0, x, 0) == x),
)  # fmt: skip


# -- quantization: each operation is off by a relative error of at most half a unit in the last place ------------------

ERRORS = {"FLOAT": 2.0**-24, "FLOAT16": 2.0**-11}


def _found_again(steps: int, unit: float) -> tuple[z3.BoolRef, z3.BoolRef]:
    """q (1 + e1) (1 + e2) rounds to q when it is less than one half away."""
    q, e1, e2 = z3.Reals("q e1 e2")
    errors = z3.And(*(z3.And(-unit <= e, e <= unit) for e in (e1, e2)), -steps <= q, q <= steps)
    distance = q * (1 + e1) * (1 + e2) - q
    return errors, z3.And(distance < 0.5, distance > -0.5)


def _quantized() -> tuple[Proof, ...]:
    found = []
    for kind, (most, _) in PRECISION.items():
        premise, claim = _found_again(min(most, max(STEPS.values())), ERRORS[kind.name])
        beyond, too_far = _found_again(65535, ERRORS["FLOAT16"])
        text = f"up to {most} steps of a scale in {kind.name.lower()} are found again; 16 bits of float16 are not"
        names = "quantize-what-was-dequantized, move-integers"
        found.append(proof(names, text, claim, premise=premise, wrong=z3.Implies(beyond, too_far)))
    low, zero, lowest = z3.Reals("low zero lowest")
    found.append(
        proof("clamp-before-quantizing", "what a clamp cuts off is the lowest integer anyway",
              x / s + zero <= lowest + 0.5, premise=z3.And(s > 0, x <= low, low / s + zero <= lowest + 0.5),
              wrong=z3.Implies(z3.And(s > 0, x <= low), x / s + zero <= lowest + 0.5))
    )  # fmt: skip
    found.append(
        proof("move-integers", "a positive scale keeps the order, so a maximum may be taken of the integers",
              z3.If(x > y, x, y) * s == z3.If(x * s > y * s, x * s, y * s), premise=s > 0,
              wrong=z3.If(x > y, x, y) * s == z3.If(x * s > y * s, x * s, y * s))
    )  # fmt: skip
    return tuple(found)


PROOFS: tuple[Proof, ...] = (*QUOTIENTS, *REDUCTIONS, *WEIGHTS, *_quantized())
