"""Integers as machines have them, bit vectors that wrap around, and booleans."""

from __future__ import annotations

import numpy as np
import z3

from graphopt.passes.algebra.logic import OPPOSITE
from graphopt.passes.algebra.regroup import PRODUCTS, SUMS, Chain, Place
from tests.proofs.statement import Proof, proof

WIDTHS = (8, 16, 32, 64)
NARROW = (8, 16)  # where products or quotients of two unknowns would take long in wider ones


def _neutral(width: int) -> tuple[Proof, ...]:
    x, y, c = (z3.BitVec(name, width) for name in "xyc")
    bits = f"{width} bits"
    minus = -x
    return (
        proof("add-zero", f"x + c = x for c = 0, {bits}", x + c == x, premise=c == 0, wrong=x + c == x),
        proof("sub-zero", f"x - c = x for c = 0, {bits}", x - c == x, premise=c == 0, wrong=x - c == x),
        proof("mul-one", f"x * c = x for c = 1, {bits}", x * c == x, premise=c == 1, wrong=x * c == x),
        proof("double-negation", f"-(-x) = x, {bits}", -minus == x, wrong=minus == x),
        proof("zero-minus-integer", f"c - x = -x for c = 0, {bits}", c - x == -x, premise=c == 0, wrong=c - x == -x),
        proof("times-minus-one", f"x * c = -x for c = -1, {bits}", x * c == -x, premise=c == -1, wrong=x * c == -x),
        proof("add-negated", f"x + (-y) = x - y, {bits}", x + -y == x - y, wrong=-x + y == x - y),
        proof("sub-negated", f"x - (-y) = x + y, {bits}", x - -y == x + y, wrong=-x - y == x + y),
        proof("sum-of-two", f"Sum(x, y) = x + y, {bits}", y + x == x + y, wrong=x - y == x + y),
        proof("equal-to-itself", f"x == x, {bits}", x == x, wrong=x == y),
        proof("extreme-of-itself", f"max(x, x) = x, signed and not, {bits}",
              z3.And(z3.If(x >= x, x, x) == x, z3.If(z3.UGE(x, x), x, x) == x), wrong=z3.If(x >= y, x, y) == x),
        proof("bits-with-zero", f"x | c = x, x ^ c = x for c = 0, {bits}", z3.And(x | c == x, x ^ c == x),
              premise=c == 0, wrong=z3.And(x | c == x, x ^ c == x)),
    )  # fmt: skip


def _division(width: int) -> Proof:
    """A quotient by 1, rounded toward zero as ever."""
    x, c = z3.BitVecs("x c", width)
    return proof(
        "div-one", f"x / c = x for c = 1, signed and not, {width} bits", z3.And(x / c == x, z3.UDiv(x, c) == x),
        premise=c == 1, wrong=x / c == x,
    )  # fmt: skip


def _signs(width: int) -> tuple[Proof, ...]:
    x, y, c = (z3.BitVec(name, width) for name in "xyc")
    bits = f"{width} bits"
    nonzero = z3.And(y != 0, c != 0)
    return (
        proof("product-of-negated", f"(-x) * (-y) = x * y, {bits}; quotients differ for the smallest x",
              -x * -y == x * y, wrong=z3.Implies(nonzero, -x / -y == x / y)),
        proof("negated-times-constant", f"(-x) * c = x * (-c), {bits}; quotients differ", -x * c == x * -c,
              wrong=z3.Implies(nonzero, -x / c == x / -c)),
        proof("negation-of-product", f"-(x * c) = x * (-c), {bits}; quotients differ", -(x * c) == x * -c,
              wrong=z3.Implies(nonzero, -(x / c) == x / -c)),
    )  # fmt: skip


def _comparisons(width: int) -> tuple[Proof, ...]:
    x, y = z3.BitVecs("x y", width)
    signs = {"Less": x < y, "Greater": x > y, "LessOrEqual": x <= y, "GreaterOrEqual": x >= y}
    half = z3.Float16()
    a, b = z3.FP("a", half), z3.FP("b", half)
    floats = {"Less": a < b, "Greater": a > b, "LessOrEqual": a <= b, "GreaterOrEqual": a >= b}
    return tuple(
        proof("negated-comparison", f"not {kind} = {opposite}, {width} bits; not so for NaN",
              z3.Not(signs[kind]) == signs[opposite], wrong=z3.Not(floats[kind]) == floats[opposite])
        for kind, opposite in OPPOSITE.items()
    )  # fmt: skip


# -- regrouping: the rule's own table, computed with z3's terms in place of numbers ---------------------------------


def _term(kind: str, left: z3.ArithRef, right: z3.ArithRef) -> z3.ArithRef:
    return {"Add": left + right, "Sub": left - right, "Mul": left * right}.get(kind, left / right)


def _merged(chain: Chain, a: z3.ArithRef, b: z3.ArithRef) -> z3.ArithRef:
    """What the table makes of the two constants."""
    cells = []
    for term in (a, b):
        cell = np.empty((), dtype=object)
        cell[()] = term
        cells.append(cell)
    return np.asarray(chain.constant(*cells), dtype=object).item()


def _chain(place: Place, chain: Chain, terms: tuple[z3.ArithRef, z3.ArithRef, z3.ArithRef]) -> z3.BoolRef:
    inner_kind, inner_first, outer_kind, outer_first = place
    x, a, b = terms
    inner = _term(inner_kind, a, x) if inner_first else _term(inner_kind, x, a)
    before = _term(outer_kind, b, inner) if outer_first else _term(outer_kind, inner, b)
    merged = _merged(chain, a, b)
    after = _term(chain.op, merged, x) if chain.constant_first else _term(chain.op, x, merged)
    return before == after


def _regrouped() -> tuple[Proof, ...]:
    found = []
    for place, chain in SUMS.items():
        text = f"{place[0]}{' turned' * place[1]}, {place[2]}{' turned' * place[3]}"
        swapped = Chain("Sub" if chain.op == "Add" else "Add", chain.constant, chain.constant_first)
        for width in WIDTHS:
            terms = z3.BitVecs("x a b", width)
            found.append(proof("regroup-sum", f"{text}, {width} bits", _chain(place, chain, terms),
                               wrong=_chain(place, swapped, terms)))  # fmt: skip
        reals = z3.Reals("x a b")
        found.append(proof("regroup-sum", f"{text}, exact arithmetic", _chain(place, chain, reals),
                           wrong=_chain(place, swapped, reals)))  # fmt: skip
    for place, chain in PRODUCTS.items():
        text = f"{place[0]}{' turned' * place[1]}, {place[2]}{' turned' * place[3]}"
        x, a, b = z3.Reals("x a b")
        swapped = Chain("Div" if chain.op == "Mul" else "Mul", chain.constant, chain.constant_first)
        # A quotient by x = 0 is infinite on either side; the theory of reals has no infinity, so x is not 0 here.
        nonzero = z3.And(x != 0, a != 0, b != 0)
        found.append(proof("regroup-product", f"{text}, exact arithmetic", _chain(place, chain, (x, a, b)),
                           premise=nonzero, wrong=z3.Implies(nonzero, _chain(place, swapped, (x, a, b)))))  # fmt: skip
    times = ("Mul", False, "Mul", False)
    division = ("Div", False, "Mul", False)
    for width in NARROW:
        terms = z3.BitVecs("x a b", width)
        nonzero = z3.And(terms[1] != 0, terms[2] != 0)
        found.append(proof("regroup-product", f"(x a) b = x (a b), {width} bits; quotients drop remainders",
                           _chain(times, PRODUCTS[times], terms),
                           wrong=z3.Implies(nonzero, _chain(division, PRODUCTS[division], terms))))  # fmt: skip
    return tuple(found)


# -- booleans -----------------------------------------------------------------------------------------------------

p, q, t = z3.Bools("p q t")
LOGIC = (
    proof("double-not", "not (not p) = p", z3.Not(z3.Not(p)) == p, wrong=z3.Not(p) == p),
    proof("logic-with-constant", "p and true, p or false, p xor false, p == true = p",
          z3.And(z3.Implies(t, z3.And(z3.And(p, t) == p, (p == t) == p)),
                 z3.Implies(z3.Not(t), z3.And(z3.Or(p, t) == p, z3.Xor(p, t) == p))),
          wrong=z3.And(z3.And(p, t) == p, z3.Or(p, t) == p)),
    proof("logic-with-constant", "p xor true, p == false = not p",
          z3.And(z3.Implies(t, z3.Xor(p, t) == z3.Not(p)), z3.Implies(z3.Not(t), (p == t) == z3.Not(p))),
          wrong=z3.And(z3.Xor(p, t) == z3.Not(p), (p == t) == z3.Not(p))),
    proof("logic-with-itself", "p and p, p or p = p", z3.And(z3.And(p, p) == p, z3.Or(p, p) == p),
          wrong=z3.And(p, q) == p),
    proof("constant-logic", "p and t = t for false t, p or t = t for true t",
          z3.And(z3.Implies(z3.Not(t), z3.And(p, t) == t), z3.Implies(t, z3.Or(p, t) == t)),
          wrong=z3.And(p, t) == t),
    proof("equal-to-itself", "p == p; a float NaN is not equal to itself", p == p,
          wrong=z3.fpEQ(z3.FP("nan", z3.Float16()), z3.FP("nan", z3.Float16()))),
)  # fmt: skip

PROOFS: tuple[Proof, ...] = (
    *(found for width in WIDTHS for found in _neutral(width)),
    *(_division(width) for width in NARROW),
    *(found for width in NARROW[:1] for found in _signs(width)),
    *(found for width in (32, 64) for found in _comparisons(width)),
    *_regrouped(),
    *LOGIC,
)
