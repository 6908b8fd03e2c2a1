"""IEEE 754 floats of 16 bits, rounded to nearest even: what rules claim to the last bit.

`identical` tells 0.0 from -0.0; `equal` does not, as the standard's == does not. NaN is NaN in both.
The identities speak of sign, rounding and special values only, which are the same in every width.
"""

from __future__ import annotations

import z3

from tests.proofs.statement import Proof, proof

HALF = z3.Float16()
RNE = z3.RNE()
NAN = z3.fpNaN(HALF)
x, y, c, d = (z3.FP(name, HALF) for name in "xycd")
TRUTH = z3.Bool("truth")


def number(value: float) -> z3.FPRef:
    return z3.FPVal(value, HALF)


ZERO, ONE = number(0.0), number(1.0)


def identical(left: z3.ExprRef, right: z3.ExprRef) -> z3.BoolRef:
    """The same bits, all NaNs being one."""
    return z3.ExprRef.__eq__(left, right)


def equal(left: z3.FPRef, right: z3.FPRef) -> z3.BoolRef:
    """The same number, or both NaN."""
    return z3.Or(z3.fpEQ(left, right), z3.And(z3.fpIsNaN(left), z3.fpIsNaN(right)))


def add(left: z3.FPRef, right: z3.FPRef) -> z3.FPRef:
    return z3.fpAdd(RNE, left, right)


def sub(left: z3.FPRef, right: z3.FPRef) -> z3.FPRef:
    return z3.fpSub(RNE, left, right)


def mul(left: z3.FPRef, right: z3.FPRef) -> z3.FPRef:
    return z3.fpMul(RNE, left, right)


def div(left: z3.FPRef, right: z3.FPRef) -> z3.FPRef:
    return z3.fpDiv(RNE, left, right)


def neg(value: z3.FPRef) -> z3.FPRef:
    return z3.fpNeg(value)


def largest(left: z3.FPRef, right: z3.FPRef) -> z3.FPRef:
    """Max, which passes a NaN of either operand on."""
    either = z3.Or(z3.fpIsNaN(left), z3.fpIsNaN(right))
    return z3.If(either, NAN, z3.If(z3.fpGEQ(left, right), left, right))


def smallest(left: z3.FPRef, right: z3.FPRef) -> z3.FPRef:
    """Min, which passes a NaN of either operand on."""
    either = z3.Or(z3.fpIsNaN(left), z3.fpIsNaN(right))
    return z3.If(either, NAN, z3.If(z3.fpLEQ(left, right), left, right))


def relu(value: z3.FPRef) -> z3.FPRef:
    return largest(value, ZERO)


def sign(value: z3.FPRef) -> z3.FPRef:
    return z3.If(z3.fpGT(value, ZERO), ONE, z3.If(z3.fpLT(value, ZERO), number(-1.0), value))


ARITHMETIC = (
    proof("add-zero", "x + c equals x for c = 0.0 and c = -0.0", equal(add(x, c), x),
          premise=z3.fpIsZero(c), wrong=equal(add(x, c), x)),
    proof("add-zero", "x + -0.0 is x to the last bit; x + 0.0 is not, for -0.0", identical(add(x, number(-0.0)), x),
          wrong=identical(add(x, ZERO), x)),
    proof("sub-zero", "x - c equals x", equal(sub(x, c), x), premise=z3.fpIsZero(c), wrong=equal(sub(x, c), x)),
    proof("mul-one", "x * 1 is x; x * 0 is not 0, for NaN", identical(mul(x, ONE), x), wrong=equal(mul(x, ZERO), ZERO)),
    proof("div-one", "x / 1 is x", identical(div(x, c), x), premise=z3.fpEQ(c, ONE), wrong=identical(div(x, c), x)),
    proof("double-negation", "-(-x) is x", identical(neg(neg(x)), x), wrong=identical(neg(x), x)),
    proof("zero-minus-float", "0 - x equals -x, but is 0.0 where that is -0.0", equal(sub(ZERO, x), neg(x)),
          wrong=identical(sub(ZERO, x), neg(x))),
    proof("times-minus-one", "x * -1 is -x", identical(mul(x, c), neg(x)), premise=z3.fpEQ(c, number(-1.0)),
          wrong=identical(mul(x, c), neg(x))),
    proof("over-minus-one", "x / -1 is -x", identical(div(x, c), neg(x)), premise=z3.fpEQ(c, number(-1.0)),
          wrong=identical(div(x, c), neg(x))),
    proof("add-negated", "x + (-y) is x - y", identical(add(x, neg(y)), sub(x, y)),
          wrong=identical(add(neg(x), y), sub(x, y))),
    proof("sub-negated", "x - (-y) is x + y", identical(sub(x, neg(y)), add(x, y)),
          wrong=identical(sub(neg(x), y), add(x, y))),
    proof("product-of-negated", "(-x) * (-y) is x * y", identical(mul(neg(x), neg(y)), mul(x, y)),
          wrong=identical(mul(neg(x), y), mul(x, y))),
    proof("product-of-negated", "(-x) / (-y) is x / y", identical(div(neg(x), neg(y)), div(x, y)),
          wrong=identical(div(neg(x), y), div(x, y))),
    proof("negated-times-constant", "(-x) * c is x * (-c)", identical(mul(neg(x), c), mul(x, neg(c))),
          wrong=identical(mul(neg(x), c), mul(x, c))),
    proof("negated-over-constant", "(-x) / c is x / (-c)", identical(div(neg(x), c), div(x, neg(c))),
          wrong=identical(div(neg(x), c), div(x, c))),
    proof("negation-of-product", "-(x * c) is x * (-c)", identical(neg(mul(x, c)), mul(x, neg(c))),
          wrong=identical(neg(mul(x, c)), mul(neg(x), neg(c)))),
    proof("negation-of-quotient", "-(x / c) is x / (-c)", identical(neg(div(x, c)), div(x, neg(c))),
          wrong=identical(neg(div(x, c)), div(neg(x), neg(c)))),
    proof("constant-over-negated", "c / (-x) is (-c) / x", identical(div(c, neg(x)), div(neg(c), x)),
          wrong=identical(div(c, neg(x)), div(c, x))),
    proof("one-over", "c / x is 1 / x for c = 1", identical(div(c, x), div(ONE, x)), premise=z3.fpEQ(c, ONE),
          wrong=identical(div(c, x), div(ONE, x))),
)  # fmt: skip

EXTREMES = (
    proof("max-of-max", "max(max(x, c), d) equals max(x, max(c, d)), NaN included",
          equal(largest(largest(x, c), d), largest(x, largest(c, d))),
          wrong=equal(largest(largest(x, c), d), largest(x, c))),
    proof("min-of-min", "min(min(x, c), d) equals min(x, min(c, d)), NaN included",
          equal(smallest(smallest(x, c), d), smallest(x, smallest(c, d))),
          wrong=equal(smallest(smallest(x, c), d), smallest(x, c))),
    proof("extreme-of-itself", "max(x, x) and min(x, x) are x",
          z3.And(identical(largest(x, x), x), identical(smallest(x, x), x)), wrong=identical(largest(x, y), x)),
    proof("max-with-zero", "max(x, c) equals Relu(x) for either zero", equal(largest(x, c), relu(x)),
          premise=z3.fpIsZero(c), wrong=equal(largest(x, c), relu(x))),
)  # fmt: skip

Bound = z3.FPRef | None
BYTE = z3.FPSort(4, 4)  # clamping only compares, which eight bits show as well as sixteen, and faster


def _clamp(value: z3.FPRef, low: Bound, high: Bound) -> z3.FPRef:
    nan = z3.fpNaN(BYTE)
    if low is not None:
        value = z3.If(z3.Or(z3.fpIsNaN(value), z3.fpIsNaN(low)), nan, z3.If(z3.fpLT(value, low), low, value))
    if high is not None:
        value = z3.If(z3.Or(z3.fpIsNaN(value), z3.fpIsNaN(high)), nan, z3.If(z3.fpGT(value, high), high, value))
    return value


def _moved(bound: z3.FPRef, low: Bound, high: Bound) -> z3.FPRef:
    """The rule's own arithmetic with a bound: what is below becomes low, else what is above becomes high."""
    above = bound if high is None else z3.If(z3.fpGT(bound, high), high, bound)
    return above if low is None else z3.If(z3.fpLT(bound, low), low, above)


def _clamps() -> tuple[Proof, ...]:
    """Two clamps are the one whose bounds the second has clamped; with every choice of absent bounds.

    The second's bounds must be in order. That the first's are, and that the two do not cross, the rule asks for
    because runtimes disagree about a Clip whose bounds cross.
    """
    value, l1, h1, l2, h2 = (z3.FP(name, BYTE) for name in ("value", "l1", "h1", "l2", "h2"))
    found = []
    for present in range(16):
        low, high, then_low, then_high = (b if present >> k & 1 else None for k, b in enumerate((l1, h1, l2, h2)))
        if (low is None and high is None) or (then_low is None and then_high is None):
            continue
        bounds = [bound for bound in (low, high, then_low, then_high) if bound is not None]
        premise = z3.And(*(z3.Not(z3.fpIsNaN(bound)) for bound in bounds))
        merged_low = then_low if low is None else _moved(low, then_low, then_high)
        merged_high = then_high if high is None else _moved(high, then_low, then_high)
        before = _clamp(_clamp(value, low, high), then_low, then_high)
        claim = equal(before, _clamp(value, merged_low, merged_high))
        wrong = equal(before, _clamp(value, low, high))
        if then_low is not None and then_high is not None:
            if high is not None:
                wrong = z3.Implies(premise, claim)
            premise = z3.And(premise, z3.fpLEQ(then_low, then_high))
        names = " ".join("-" if bound is None else str(bound) for bound in (low, high, then_low, then_high))
        text = f"bounds {names}, floats of 8 bits"
        found.append(proof("merge-clamps", text, claim, premise=premise, wrong=wrong))
    return tuple(found)


def _whole(mode: z3.FPRMRef, value: z3.FPRef) -> z3.FPRef:
    return z3.fpRoundToIntegral(mode, value)


ROUNDINGS = {"Ceil": z3.RTP(), "Floor": z3.RTN(), "Round": z3.RNE()}


def _absorbed() -> tuple[Proof, ...]:
    # Sigmoid, Exp, Softmax and the norms are no functions of the theory: all that counts is that y is not negative.
    some = z3.Or(z3.fpIsNaN(y), z3.And(z3.fpGEQ(y, ZERO), z3.fpIsPositive(y)))
    found = [
        proof("absorbed", "Relu(y) equals y for y that is not negative", equal(relu(y), y), premise=some,
              wrong=equal(relu(y), y)),
        proof("absorbed", "Abs(y) is y for y that is not negative", identical(z3.fpAbs(y), y), premise=some,
              wrong=identical(z3.fpAbs(y), y)),
        proof("absorbed", "Relu(Relu(x)) is Relu(x)", identical(relu(relu(x)), relu(x)), wrong=identical(relu(x), x)),
        proof("absorbed", "Relu(Abs(x)) is Abs(x)", identical(relu(z3.fpAbs(x)), z3.fpAbs(x)),
              wrong=identical(relu(neg(z3.fpAbs(x))), neg(z3.fpAbs(x)))),
        proof("absorbed", "Abs(Abs(x)) is Abs(x); Abs(Sqrt(x)) is not Sqrt(x), for -0.0",
              identical(z3.fpAbs(z3.fpAbs(x)), z3.fpAbs(x)),
              wrong=identical(z3.fpAbs(z3.fpSqrt(RNE, x)), z3.fpSqrt(RNE, x))),
        proof("absorbed", "Relu(Sqrt(x)) equals Sqrt(x)", equal(relu(z3.fpSqrt(RNE, x)), z3.fpSqrt(RNE, x)),
              wrong=equal(relu(x), z3.fpSqrt(RNE, x))),
        proof("absorbed", "Sign(Sign(x)) is Sign(x)", identical(sign(sign(x)), sign(x)), wrong=identical(sign(x), x)),
    ]  # fmt: skip
    for outer, mode in ROUNDINGS.items():
        for inner, first in ROUNDINGS.items():
            value = _whole(first, x)
            found.append(
                proof("absorbed", f"{outer}({inner}(x)) is {inner}(x)", identical(_whole(mode, value), value),
                      wrong=identical(_whole(mode, x), x))
            )  # fmt: skip
        found.append(
            proof("absorbed", f"{outer}(Sign(x)) is Sign(x)", identical(_whole(mode, sign(x)), sign(x)),
                  wrong=identical(_whole(mode, x), sign(x)))
        )  # fmt: skip
    return tuple(found)


CHOICES = (
    proof("where-constant", "where(true, x, y) is x, where(false, x, y) is y",
          z3.And(z3.Implies(TRUTH, identical(z3.If(TRUTH, x, y), x)),
                 z3.Implies(z3.Not(TRUTH), identical(z3.If(TRUTH, x, y), y))),
          wrong=identical(z3.If(TRUTH, x, y), x)),
    proof("where-same", "where(c, x, x) is x", identical(z3.If(TRUTH, x, x), x),
          wrong=identical(z3.If(TRUTH, x, y), x)),
    proof("where-not", "where(not c, x, y) is where(c, y, x)",
          identical(z3.If(z3.Not(TRUTH), x, y), z3.If(TRUTH, y, x)),
          wrong=identical(z3.If(z3.Not(TRUTH), x, y), z3.If(TRUTH, x, y))),
)  # fmt: skip

ONE_ELEMENT = (
    proof("single-operand, pool-of-one, global-pool-of-one, reduce-of-one", "the mean and the sum of one x equal x",
          z3.And(equal(div(x, ONE), x), equal(add(ZERO, x), x), identical(mul(ONE, x), x)),
          wrong=equal(div(add(x, y), number(2.0)), x)),
    proof("pool-of-one, global-pool-of-one, reduce-of-one", "the maximum of x and nothing is x",
          equal(largest(number(float("-inf")), x), x), wrong=equal(largest(ZERO, x), x)),
)  # fmt: skip

PROOFS: tuple[Proof, ...] = (*ARITHMETIC, *EXTREMES, *_clamps(), *_absorbed(), *CHOICES, *ONE_ELEMENT)
