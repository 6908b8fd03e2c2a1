"""Operators that move data, as maps of indices: linear arithmetic of integers, tensors as unknown functions.

A tensor is a function of its index along the axis in question; lengths, bounds and positions are any integers.
"""

from __future__ import annotations

from itertools import permutations

import z3

from graphopt.model.operators.movement import FAR
from tests.proofs.statement import Proof, proof

i, j, n, m, k = z3.Ints("i j n m k")
X = z3.Function("X", z3.IntSort(), z3.RealSort())
Y = z3.Function("Y", z3.IntSort(), z3.RealSort())
Z = z3.Function("Z", z3.IntSort(), z3.RealSort())
J = z3.Function("J", z3.IntSort(), z3.IntSort())
F = z3.Function("F", z3.RealSort(), z3.RealSort())
G = z3.Function("G", z3.RealSort(), z3.RealSort(), z3.RealSort())


def least(left: z3.ArithRef, right: z3.ArithRef) -> z3.ArithRef:
    return z3.If(left <= right, left, right)


def most(left: z3.ArithRef, right: z3.ArithRef) -> z3.ArithRef:
    return z3.If(left >= right, left, right)


# -- Slice --------------------------------------------------------------------------------------------------------


def bound(number: z3.ArithRef, length: z3.ArithRef) -> z3.ArithRef:
    """What a bound of a Slice with step 1 means on an axis of that length."""
    return least(most(z3.If(number < 0, number + length, number), z3.IntVal(0)), length)


def cut(start: z3.ArithRef, end: z3.ArithRef, length: z3.ArithRef) -> tuple[z3.ArithRef, z3.ArithRef]:
    """Where a Slice with step 1 begins and how long it is."""
    first = bound(start, length)
    return first, most(bound(end, length) - first, z3.IntVal(0))


def same_cut(one: tuple[z3.ArithRef, z3.ArithRef], other: tuple[z3.ArithRef, z3.ArithRef]) -> z3.BoolRef:
    """Equal lengths, and equal beginnings where there is an element."""
    return z3.And(one[1] == other[1], z3.Implies(one[1] > 0, one[0] == other[0]))


def _slices() -> tuple[Proof, ...]:
    s1, e1, s2, e2 = z3.Ints("s1 e1 s2 e2")
    first = cut(s1, e1, n)
    second = cut(s2, e2, first[1])
    both = (first[0] + second[0], second[1])
    axis = z3.And(n >= 0, n < FAR)
    start = least(s1 + s2, z3.IntVal(FAR))
    bounded = cut(start, least(s1 + e2, e1), n)
    reversed_start = z3.If(n > 0, n - 1, 0)  # step -1 begins at the last element
    return (
        proof("slice-of-slice", "x[s1:e1][s2:e2] = x[s1+s2 : min(s1+e2, e1)] for bounds that are not negative",
              same_cut(both, bounded), premise=z3.And(axis, s1 >= 0, e1 >= 0, s2 >= 0, e2 >= 0, e2 < FAR),
              wrong=z3.Implies(z3.And(axis, s1 >= 0, e1 >= 0, s2 >= 0), same_cut(both, bounded))),
        proof("slice-of-slice", "x[s1:e1][s2:] = x[s1+s2 : e1], e1 of any sign",
              same_cut(both, cut(start, e1, n)), premise=z3.And(axis, s1 >= 0, s2 >= 0, e2 >= FAR),
              wrong=z3.Implies(z3.And(axis, s2 >= 0, e2 >= FAR), same_cut(both, cut(start, e1, n)))),
        proof("slice-of-slice", "bounds counted from the start cut alike",
              same_cut(cut(s1, e1, n), cut(bound(s1, n), bound(e1, n), n)), premise=n >= 0,
              wrong=same_cut(cut(s1, e1, n), cut(bound(s1, n), e1 + n, n))),
        proof("slice-of-everything", "a cut as long as the axis begins at 0",
              cut(s1, e1, n)[0] == 0, premise=z3.And(n > 0, cut(s1, e1, n)[1] == n),
              wrong=z3.Implies(n > 0, reversed_start == 0)),
        proof("concat-of-slices", "x[a:b] and x[b:c] side by side are x[a:c]",
              z3.If(i < m - k, X(k + i), X(m + (i - (m - k)))) == X(k + i), premise=z3.And(k >= 0, k <= m, i >= 0),
              wrong=z3.If(i < m - k, X(k + i), X(j + (i - (m - k)))) == X(k + i)),
    )  # fmt: skip


# -- Concat, Split, Gather ----------------------------------------------------------------------------------------


def joined(left: object, length: z3.ArithRef, right: object, index: z3.ArithRef) -> z3.ArithRef:
    """Concat of two, at an index; operands are functions of an index."""
    return z3.If(index < length, left(index), right(index - length))  # type: ignore[operator]


def _joined() -> tuple[Proof, ...]:
    inner = joined(lambda at: joined(X, n, Y, at), n + m, Z, i)
    flat = joined(X, n, lambda at: joined(Y, m, Z, at), i)
    lengths = z3.And(n >= 0, m >= 0, i >= 0)
    part = joined(lambda at: X(at), n, lambda at: X(n + at), i)
    assigned = z3.If(z3.And(i >= n, i < n + m), Y(i - n), X(i))  # x[n : n+m] = y
    at = J(i)

    def around(behind: z3.ArithRef) -> z3.ArithRef:
        """Concat(x[:n], y, x[behind:]), y of length m."""
        return joined(X, n, lambda at: joined(Y, m, lambda at: X(behind + at), at), i)

    return (
        proof("concat-of-concat", "Concat(Concat(x, y), z) = Concat(x, y, z)", inner == flat, premise=lengths,
              wrong=inner == joined(X, n, lambda at: joined(Z, m, Y, at), i)),
        proof("concat-of-split", "Concat(x[:n], x[n:]) = x", part == X(i), premise=lengths,
              wrong=joined(lambda at: X(n + at), n, X, i) == X(i)),
        proof("scatter-to-box", "x[n : n+m] = y gives Concat(x[:n], y, x[n+m:])",
              around(n + m) == assigned, premise=lengths, wrong=around(n) == assigned),
        proof("concat-with-nothing", "Concat(x, y) = x where y has length 0, Concat(x, y) = y where x has",
              z3.And(z3.Implies(z3.And(m == 0, i < n + m), joined(X, n, Y, i) == X(i)),
                     z3.Implies(n == 0, joined(X, n, Y, i) == Y(i))), premise=lengths,
              wrong=z3.Implies(z3.And(n > 0, m > 0, i < n + m, i >= 0), joined(X, n, Y, i) == X(i))),
        proof("gather-of-concat", "Concat(x, y)[i] = x[i], or y[i - n] beyond x; -1 is the last of both",
              z3.And(z3.Implies(i < n, joined(X, n, Y, i) == X(i)),
                     z3.Implies(i >= n, joined(X, n, Y, i) == Y(i - n)),
                     z3.Implies(m > 0, joined(X, n, Y, -1 + n + m) == Y(m - 1))), premise=lengths,
              wrong=z3.Implies(lengths, joined(X, n, Y, i) == Y(i - n))),
        proof("gather-of-unsqueeze", "Unsqueeze(x)[0] and [-1] are x",
              z3.If(k < 0, k + 1, k) == 0, premise=z3.Or(k == 0, k == -1), wrong=z3.If(k < 0, k + 1, k) == 0),
        proof("lookup-of-everything", "x[j(i)] = x[i] where j(i) is i, or i - n counted from the end",
              X(z3.If(at < 0, at + n, at)) == X(i), premise=z3.And(i >= 0, i < n, z3.Or(at == i, at == i - n)),
              wrong=z3.Implies(z3.And(i >= 0, i < n, at >= -n, at < n), X(z3.If(at < 0, at + n, at)) == X(i))),
        proof("tile-once", "Tile(x, r)[i] = x[i] for r = 1", X(i % n) == X(i),
              premise=z3.And(n > 0, i >= 0, i < n * m, m == 1),
              wrong=z3.Implies(z3.And(n > 0, i >= 0, i < 2 * n), X(i % n) == X(i))),
        proof("pad-by-nothing", "x padded by p and q is x for p = q = 0",
              z3.If(z3.And(i - k >= 0, i - k < n), X(i - k), 0) == X(i),
              premise=z3.And(k == 0, m == 0, i >= 0, i < n + k + m),
              wrong=z3.Implies(z3.And(k >= 0, i >= 0, i < n + k), z3.If(i - k >= 0, X(i - k), 0) == X(i))),
    )  # fmt: skip


# -- Transpose ----------------------------------------------------------------------------------------------------


def _transposes() -> tuple[Proof, ...]:
    """Transpose(x, p)[index] reads x where axis p[k] has index[k]: axis a has index[inverse of p at a]."""
    p, q, c, p_back, q_back, c_back = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in "pqcPQC")
    a, at = z3.Ints("a at")
    # Each function with its inverse, at the few places that the proof looks at.
    places = (a, at, c_back(a), q(c_back(a)), p_back(a), q_back(p_back(a)))
    inverse = z3.And(*(
        z3.And(p_back(p(place)) == place, p(p_back(place)) == place, q_back(q(place)) == place,
               q(q_back(place)) == place, c_back(c(place)) == place, c(c_back(place)) == place)
        for place in places
    ))  # fmt: skip
    composed = z3.And(*(c(place) == p(q(place)) for place in places))
    swapped = z3.And(*(c(place) == q(p(place)) for place in places))
    found = [
        proof("transpose-of-transpose", "Transpose(Transpose(x, p), q) = Transpose(x, p of q), any rank",
              c_back(a) == q_back(p_back(a)), premise=z3.And(inverse, composed),
              wrong=z3.Implies(z3.And(inverse, swapped), c_back(a) == q_back(p_back(a)))),
        proof("transpose-in-order", "Transpose(x, p) = x where p(k) = k", p_back(a) == a,
              premise=z3.And(inverse, *(p(place) == place for place in places)),
              wrong=z3.Implies(inverse, p_back(a) == a)),
    ]  # fmt: skip
    x3 = z3.Function("x3", *[z3.IntSort()] * 3, z3.RealSort())
    index = z3.Ints("i0 i1 i2")
    for perm in list(permutations(range(3)))[1:]:
        source = [index[perm.index(axis)] for axis in range(3)]
        before = F(x3(*source))  # elementwise, then looked at through the Transpose
        found.append(
            proof("transpose-across-elementwise", f"f(Transpose(x)) = Transpose(f(x)), order {perm}; not for g(x, y)",
                  before == (lambda *at: F(x3(*at)))(*source),
                  wrong=G(x3(*source), x3(*index)) == G(x3(*index), x3(*source)))
        )  # fmt: skip
    return tuple(found)


# -- Reshape and its like: the place of an element in memory ---------------------------------------------------------


MERGED = "transpose-of-merged-axes, product-of-merged-axes, softmax-of-merged-axes"


def _places() -> tuple[Proof, ...]:
    a, b, d = z3.Ints("a b d")
    i0, i1, i2 = z3.Ints("i0 i1 i2")
    inside = z3.And(i0 >= 0, i0 < a, i1 >= 0, i1 < b, i2 >= 0, i2 < d)
    place = (i0 * b + i1) * d + i2
    found = [
        proof("unsqueeze-of-unsqueeze, squeeze-of-squeeze, squeeze-of-unsqueeze, unsqueeze-of-nothing, "
              "squeeze-of-nothing, reduce-then-reshape",
              "a dimension of 1, wherever it stands, leaves the place in memory",
              z3.And(((i0 * 1 + k) * b + i1) * d + i2 == place, ((i0 * b + i1) * 1 + k) * d + i2 == place,
                     ((i0 * b + i1) * d + i2) * 1 + k == place), premise=z3.And(k >= 0, k < 1),
              wrong=((i0 * b + i1) * 1 + k) * d + i2 == place),
        proof("transposes-around-reshape", "Transpose(x, 1 0 2) of [1, b, d] leaves every place in memory",
              (i1 * a + i0) * d + i2 == place, premise=z3.And(inside, a == 1),
              wrong=z3.Implies(inside, (i1 * a + i0) * d + i2 == place)),
        proof("transposes-around-reshape", "Transpose(x, 2 0 1), a Reshape to [d, a b], Transpose back: Reshape(x)",
              m * d + i2 == place, premise=z3.And(inside, m == i0 * b + i1),
              wrong=z3.Implies(z3.And(inside, m == i0 * b + i1), i2 * a * b + m == place)),
    ]  # fmt: skip
    for length in (1, 2, 3, 7):
        again, rest = z3.Ints("again rest")
        parted = z3.And(rest >= 0, again * length + rest == i0 * length + i1)
        found.append(
            proof(MERGED, f"an axis merged and parted again, the inner one of length {length}",
                  z3.And(again == i0, rest == i1), premise=z3.And(i1 >= 0, i1 < length, rest < length, parted),
                  wrong=z3.Implies(z3.And(i1 >= 0, i1 < length, parted), z3.And(again == i0, rest == i1)))
        )  # fmt: skip
    total, rest = z3.Ints("total rest")
    found.append(
        proof("constant-reshape-target", "with one -1 and a dim that is copied, the rest is what is missing",
              rest == b * d, premise=z3.And(a > 0, total == a * b * d, total == a * rest),
              wrong=z3.Implies(z3.And(a >= 0, total == a * b * d, total == a * rest), rest == b * d))
    )  # fmt: skip
    return tuple(found)


# -- Expand -------------------------------------------------------------------------------------------------------


def stretched(length: z3.ArithRef, index: z3.ArithRef) -> z3.ArithRef:
    """Where an operand of that length is read when it is broadcast."""
    return z3.If(length == 1, z3.IntVal(0), index)


EXPANDED = (
    proof("expand-to-own-shape", "Expand(x, its shape)[i] = x[i]", X(stretched(n, i)) == X(i),
          premise=z3.And(i >= 0, i < n), wrong=z3.Implies(z3.And(i >= 0, i < m), X(stretched(n, i)) == X(i))),
    proof("expand-before-broadcast", "Expand(x) beside y reads what x beside y reads",
          X(stretched(n, stretched(m, i))) == X(stretched(n, i)),
          premise=z3.And(i >= 0, i < m, z3.Or(n == 1, n == m)),
          wrong=z3.Implies(z3.And(i >= 0, z3.Or(n == 1, n == m)), X(stretched(m, i)) == X(stretched(n, i)))),
    proof("expand-after-elementwise", "f(Expand(x)) = Expand(f(x)), and so with a number beside it",
          z3.And(F(X(stretched(n, i))) == (lambda at: F(X(at)))(stretched(n, i)),
                 G(X(stretched(n, i)), Y(0)) == (lambda at: G(X(at), Y(0)))(stretched(n, i))),
          wrong=G(X(stretched(n, i)), Y(i)) == (lambda at: G(X(at), Y(at)))(stretched(n, i))),
)  # fmt: skip


# -- Resize -------------------------------------------------------------------------------------------------------


def _resized() -> tuple[Proof, ...]:
    at, length, scale = z3.Reals("at length scale")
    places = {
        "half_pixel": (at + 0.5) / scale - 0.5,
        "asymmetric": at / scale,
        "align_corners": at * (length - 1) / (length * scale - 1),
        "pytorch_half_pixel": z3.If(length * scale > 1, (at + 0.5) / scale - 0.5, 0),
    }
    inside = z3.And(at >= 0, at < length, scale > 0, z3.ToReal(z3.ToInt(at)) == at, length >= 1)
    return tuple(
        proof("resize-to-same-size", f"with scale 1, {mode} reads the element itself", place == at,
              premise=z3.And(inside, scale == 1, z3.Or(length > 1, z3.BoolVal(mode != "align_corners")),
                             z3.ToReal(z3.ToInt(length)) == length),
              wrong=z3.Implies(z3.And(inside, length > 1), place == at))
        for mode, place in places.items()
    )  # fmt: skip


PROOFS: tuple[Proof, ...] = (*_slices(), *_joined(), *_transposes(), *_places(), *EXPANDED, *_resized())
