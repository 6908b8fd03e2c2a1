"""Masks: what is added to the scores, and rows that lose all of their keys."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import support
from tests.passes.fusion.attending import FOUR, GUARDED, LOWEST, RULES, attributes, fused, kinds, number, spelled

ROWS = ", bool[2, 1, 3, 5] keep"  # random: some rows keep nothing at all
CHOSEN = "m = Where (keep, nothing, shut) a = Add (s, m)"


def shut_rows(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Equal where whole rows, some rows and no rows are shut out."""
    first, second = support.session(before), support.session(after)
    feed = support.feeds(before, {})
    for keep in (np.zeros_like(feed["keep"]), np.ones_like(feed["keep"]), np.arange(feed["keep"].size) % 3 == 0):
        feed["keep"] = keep.reshape(feed["keep"].shape)
        np.testing.assert_allclose(second.run(None, feed)[0], first.run(None, feed)[0], rtol=1e-4, atol=1e-5)


def test_a_mask_of_numbers_is_added() -> None:
    proto = spelled("a = Add (m, s)", m=np.linspace(-2, 2, 60, dtype=np.float32).reshape(1, 4, 3, 5))
    assert kinds(fused(proto)) == ["Attention"]


def test_a_mask_of_one_row_is_repeated_for_all_queries() -> None:
    proto = spelled(CHOSEN, more=", bool[2, 1, 1, 5] keep", shut=number(-1e9))
    assert kinds(fused(proto)) == ["Where", "Expand", "Attention"]


@pytest.mark.parametrize("shut", [-1e4, -1e9, LOWEST])
@pytest.mark.parametrize("end", [None, GUARDED])
def test_a_row_of_one_finite_number_gives_the_mean(shut: float, end: str | None) -> None:
    options = {} if end is None else {"end": end}
    proto = spelled(CHOSEN, more=ROWS, shut=number(shut), **options)  # type: ignore[arg-type]
    result = fused(proto)
    assert kinds(result) == ["Where", "Attention"]
    shut_rows(proto, result)


def test_a_guarded_row_of_minus_infinity_gives_zeros() -> None:
    proto = spelled(CHOSEN, more=ROWS, shut=number(-np.inf), end=GUARDED)
    result = fused(proto)
    assert kinds(result) == ["Where", "Attention"]
    shut_rows(proto, result)


def test_a_row_of_minus_infinity_without_a_guard_is_not_a_number_and_stays_so() -> None:
    assert "Attention" not in kinds(fused(spelled(CHOSEN, more=ROWS, shut=number(-np.inf))))


def test_a_mask_that_comes_from_outside_may_be_anything() -> None:
    assert "Attention" not in kinds(fused(spelled("a = Add (s, m)", more=", float[3, 5] m")))


def test_a_mask_of_whole_numbers_times_the_lowest() -> None:
    proto = spelled(
        "f = Cast <to = 1> (keep) i = Sub (one, f) m = Mul (i, shut) a = Add (s, m)",
        more=", bool[2, 1, 3, 5] keep", one=number(1), shut=number(LOWEST),
    )  # fmt: skip
    result, _ = support.apply_rules(proto, RULES)
    assert kinds(result)[-2:] == ["Max", "Attention"]
    shut_rows(proto, result)


def test_a_bias_and_a_mask_are_summed() -> None:
    bias = np.linspace(-2, 2, 60, dtype=np.float32).reshape(1, 4, 3, 5)
    proto = spelled("m = Where (keep, nothing, shut) b = Add (s, bias) a = Add (b, m)", more=ROWS,
                    shut=number(LOWEST), bias=bias)  # fmt: skip
    result = fused(proto)
    assert kinds(result).count("Attention") == 1
    shut_rows(proto, result)


@pytest.mark.parametrize("order", ["keep, s, shut", "lose, shut, s"])
def test_scores_that_are_replaced_become_a_mask(order: str) -> None:
    proto = spelled(f"lose = Not (keep) a = Where ({order})", more=ROWS, shut=number(-1e9))
    result = fused(proto)
    assert kinds(result)[-2:] == ["Where", "Attention"]
    shut_rows(proto, result)


def test_scores_that_are_replaced_by_an_ordinary_number_stay() -> None:
    proto = spelled("a = Where (keep, s, shut)", more=ROWS, shut=number(-3.0))
    assert "Attention" not in kinds(fused(proto))


@given(shape=st.sampled_from([(3, 5), (1, 5), (5,), (3, 1), (1, 1, 3, 5), (2, 1, 1, 5), (1, 4, 3, 1), (2, 4, 3, 5)]))
@settings(max_examples=8, deadline=None)
def test_a_mask_of_any_shape_that_broadcasts(shape: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    result = fused(spelled("a = Add (s, m)", m=numbers))
    assert "Attention" in kinds(result) and "Softmax" not in kinds(result)


def test_a_mask_with_rows_of_its_own_length_is_widened_to_those_of_the_queries() -> None:
    text = """g (float[2, 4, n, 8] q, float[2, 4, k, 8] k0, float[2, 4, k, 8] v, bool[a, 1, r, c] keep)
        => (float[2, 4, n, 8] y) { t = Transpose <perm = [0, 1, 3, 2]> (k0) s = MatMul (q, t)
        m = Where (keep, nothing, shut) a0 = Add (s, m) p = Softmax (a0) y = MatMul (p, v) }"""
    proto = support.model(text, 23, 10, nothing=number(0), shut=number(-1e9))
    fused(proto, n=3, k=5, a=2, r=3, c=5)
    result = fused(proto, n=3, k=5, a=1, r=1, c=1)
    assert "Expand" in kinds(result) and "Attention" in kinds(result)


# -- the causal mask --------------------------------------------------------------------------------------------------

SQUARE = "float[2, 4, n, 8] q, float[2, 4, n, 8] k, float[2, 4, n, 8] v"
ANY = "float[2, 4, n, 8] y"


def causal(middle: str, **constants: np.ndarray) -> onnx.ModelProto:
    """As many keys as queries, of any number; `i` is the range of their places."""
    text = f"""g ({SQUARE}) => ({ANY}) {{ l = Shape <start = 2, end = 3> (q) n1 = Squeeze (l) i = Range (zero, n1, one)
        ll = Concat <axis = 0> (l, l) t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, t) {middle}
        p = Softmax (a) y = MatMul (p, v) }}"""
    whole = {"zero": np.array(0), "one": np.array(1), "first": np.array([0]), "second": np.array([1])}
    return support.model(text, 23, 10, nothing=number(0), **whole, **constants)


FORMS = {
    "a triangle of ones": "o = Expand (yes, ll) r = Trilu <upper = 0> (o) e = Equal (r, nothing) "
                          "m = Where (e, shut, nothing) a = Add (s, m)",
    "a triangle of minus infinity": "o = Expand (shut, ll) m = Trilu <upper = 1> (o, one) a = Add (s, m)",
    "places compared": "x = Unsqueeze (i, first) z = Unsqueeze (i, second) c = LessOrEqual (x, z) "
                       "m = Where (c, nothing, shut) a = Add (s, m)",
    "later places shut out": "x = Unsqueeze (i, first) z = Unsqueeze (i, second) c = Greater (x, z) "
                             "a = Where (c, shut, s)",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shut", [-np.inf, LOWEST])
def test_a_mask_that_is_proved_causal_is_an_attribute(form: str, shut: float) -> None:
    result = fused(causal(FORMS[form], yes=number(1), shut=number(shut)), n=5)
    assert attributes(result)["is_causal"] == 1
    assert len(result.graph.node[-1].input) == 3


def test_a_constant_triangle_is_an_attribute() -> None:
    mask = np.where(np.tri(3, dtype=bool), 0, -np.inf).astype(np.float32)
    inputs = FOUR.replace("5", "3")
    result = fused(spelled("a = Add (s, m)", inputs=inputs, m=mask))
    assert attributes(result)["is_causal"] == 1
    assert len(result.graph.node[-1].input) == 3


def test_a_triangle_beside_more_keys_than_queries_is_a_mask() -> None:
    mask = np.where(np.tri(3, 5, 2, dtype=bool), 0, -np.inf).astype(np.float32)
    assert "is_causal" not in attributes(fused(spelled("a = Add (s, m)", m=mask)))


def test_a_triangle_without_its_diagonal_is_no_causal_mask() -> None:
    middle = "o = Expand (shut, ll) m = Trilu <upper = 1> (o, zero) a = Add (s, m)"
    assert "Attention" not in kinds(fused(causal(middle, shut=number(-np.inf)), n=4))


# -- the guard --------------------------------------------------------------------------------------------------------


def guarded(middle: str, more: str = "", opset: int = 17, **constants: np.ndarray) -> list[str]:
    """The operators below opset 23, where only the guard can go."""
    return kinds(fused(spelled(middle, more=more, end=GUARDED, opset=opset, **constants)))


@pytest.mark.fires("guard-of-softmax")
def test_a_guard_against_what_cannot_be_is_removed() -> None:
    assert "IsNaN" not in guarded("a = Identity (s)")
    assert "IsNaN" not in guarded(CHOSEN, ROWS, shut=number(LOWEST))
    rows = np.where(np.tri(3, 5, dtype=bool), 0, -np.inf).astype(np.float32)
    assert "IsNaN" not in guarded("a = Add (s, m)", m=rows)


def test_a_guard_stays_where_a_row_may_be_shut_out_by_infinity() -> None:
    assert "IsNaN" in guarded(CHOSEN, ROWS, shut=number(-np.inf))
    assert "IsNaN" in guarded("a = Add (s, m)", ", float[3, 5] m")


def test_a_guard_of_something_else_than_scores_stays() -> None:
    text = """g (float[3, 5] x) => (float[3, 5] y) {
        p = Softmax (x) n = IsNaN (p) y = Where (n, nothing, p) }"""
    assert "IsNaN" in kinds(fused(support.model(text, nothing=number(0))))
