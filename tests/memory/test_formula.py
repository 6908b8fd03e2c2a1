"""The peak as a formula of dims: what is found, beside counting by hand; and what has none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import sympy

import graphopt
from graphopt.memory.formula import peak_formula
from graphopt.memory.plan import given
from graphopt.memory.tensors import model_memory
from graphopt.model.load import load
from tests import support

WEIGHTS = {"w": np.ones((8, 8), np.float32), "axis": np.array(0)}


def formula(text: str, **dims: int) -> str | None:
    used = {name: array for name, array in WEIGHTS.items() if f", {name})" in text}
    return graphopt.memory(support.model(text, **used), dims=dims).record.formula


@pytest.mark.parametrize(
    ("text", "dims", "expected"),
    [
        ("g (float[n,8] x) => (float[n,8] y) { a = CumSum(x, axis) y = MatMul(a, w) }", {"n": 16}, "64*n"),
        (  # n x n scores, beside their product with n rows of 8
            "g (float[n,8] q, float[8,n] k, float[n,8] v) => (float[n,8] y) { s = MatMul(q, k) y = MatMul(s, v) }",
            {"n": 32}, "4*n*(n + 8)",
        ),
        (
            "g (float[a,b] x) => (float[a,b] y) { s = CumSum(x, axis) y = CumSum(s, axis) }", {"a": 4, "b": 6},
            "8*a*b",
        ),
        (  # three values of m rows live at once before those of n are made
            """g (float[n,8] x, float[m,8] z) => (float[n,8] y, float[m,8] v) {
                a = CumSum(x, axis) y = MatMul(a, w)
                b = CumSum(z, axis) c = MatMul(b, w) d = MatMul(c, w) v = CumSum(d, axis)
            }""",
            {"n": 4, "m": 4}, "max(32*(2*m + n), 64*n)",
        ),
    ],
)  # fmt: skip
def test_formulas_of_small_models(text: str, dims: dict[str, int], expected: str) -> None:
    assert formula(text, **dims) == expected


def test_where_no_dim_is_left_or_three_are_there_is_no_formula() -> None:
    assert formula("g (float[8,8] x) => (float[8,8] y) { a = MatMul(x, w) y = MatMul(a, w) }") is None
    three = "g (float[a,b,c] x) => (float[a,b,c] y) { s = CumSum(x, axis) y = CumSum(s, axis) }"
    assert formula(three, a=2, b=2, c=2) is None


def test_a_peak_that_no_dim_changes_has_no_formula() -> None:
    text = "g (float[n] x, float[8,8] z) => (float[8,8] y) { s = Size(x) a = MatMul(z, w) y = MatMul(a, w) }"
    assert formula(text, n=2) is None


def test_sizes_that_are_no_polynomials_have_no_formula() -> None:
    """Every second row: 2 of 3, 3 of 6, but 5 of 9."""
    text = """g (float[n,8] x) => (float[m,8] y) <int64[1] b = {0}, int64[1] e = {99999}, int64[1] s = {2}> {
        h = Slice(x, b, e, b, s) c = CumSum(h, axis) y = CumSum(c, axis)
    }"""
    assert formula(text, n=3) is None


def test_dims_that_the_model_does_not_take_have_no_formula() -> None:
    """A table of four rows is added to the input: twice as many rows do not fit."""
    text = "g (float[n,8] x) => (float[n,8] y) { a = Add(x, t) b = CumSum(a, axis) y = CumSum(b, axis) }"
    model = support.model(text, t=np.ones((4, 8), np.float32), axis=np.array(0))
    assert graphopt.memory(model, dims={"n": 4}).record.formula is None


def test_a_formula_is_what_plans_for_numbers_take() -> None:
    text = """g (float[a,b] x) => (float[a,b] y, float[b,a] z) {
        s = CumSum(x, axis) t = Transpose(s) p = MatMul(s, t) q = MatMul(p, s) y = CumSum(q, axis) z = Neg(t)
    }"""
    model = support.model(text, axis=np.array(0))
    told = graphopt.memory(model, dims={"a": 16, "b": 24}).record.formula
    assert told is not None
    for a, b in ((16, 24), (32, 48), (160, 240)):  # of whole alignments, to which a formula does not round
        value = sympy.sympify(told.replace("max", "Max"), locals={"a": a, "b": b})
        assert value == graphopt.memory(model, dims={"a": a, "b": b}).record.peak, "whose order is the same"


@pytest.mark.parametrize("missing", [1, 2, 3, 4, None])
def test_every_size_that_is_asked_for_counts(missing: int | None) -> None:
    """Polynomials are fitted to one, two and three times the dim, and confirmed at four times."""
    text = "g (float[4,8] x) => (float[4,8] y) { a = CumSum(x, axis) y = MatMul(a, w) }"
    planned = given(model_memory(load(support.model(text, **WEIGHTS))))

    def sizes_at(dims: Mapping[str, int]) -> dict[str, int] | None:
        times = dims["n"] // 4
        return None if times == missing else dict.fromkeys(("x", "a", "y"), 32 * dims["n"]) | {"w": 256, "axis": 8}

    found = peak_formula(planned, {"n": 4}, sizes_at)
    assert found == ("64*n" if missing is None else None)
