"""Feeds: integers follow their use, draws hold what they are for, sizes tell dims apart."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.check.feeds import DRAWS, Draw, make_feed
from graphopt.check.inputs import inputs_of
from graphopt.check.plain import plain_feed
from graphopt.check.sizes import first_sizes, more_sizes
from graphopt.check.uses import uses_of
from graphopt.model.load import load
from tests import support

TABLE = np.arange(40, dtype=np.float32).reshape(20, 2)


def _feeds(text: str, draw: Draw, sizes: dict[str, int] | None = None, **tensors: np.ndarray) -> dict[str, np.ndarray]:
    feed = make_feed(inputs_of(load(support.model(text, **tensors))), sizes or {}, draw)
    return {name: np.asarray(value) for name, value in feed.items()}


@pytest.mark.parametrize(
    "path", ["y = Gather(t, i)", "c = Cast<to = 6>(i) y = Gather(t, c)", "r = Reshape(i, flat) y = Gather(t, r)",
             "z = Identity(i) c = Unsqueeze(z, axis) d = Squeeze(c, axis) y = Gather(t, d)"],
)  # fmt: skip
def test_an_index_is_followed_to_its_table(path: str) -> None:
    text = f"g (int64[n] i) => (float[n,2] y) {{ {path} }}"
    tensors = {"t": TABLE}
    if "flat" in path:
        tensors["flat"] = np.array([-1])
    if "axis" in path:
        tensors["axis"] = np.array([0])
    for draw in DRAWS:
        indices = _feeds(text, draw, {"n": 30}, **tensors)["i"]
        assert indices.min() >= -20 and indices.max() < 20
    assert set(_feeds(text, "grid", {"n": 30}, **tensors)["i"]) == set(range(20))  # every row is read


def test_counts_stay_small_and_are_followed_through_branches_and_functions() -> None:
    text = """g (int64 k, bool c) => (float[n] y) {
        l = If (c) <then_branch = t () => (int64 u) { u = Identity(k) }, else_branch = e () => (int64 v) { v = Neg(k) }>
        s = Unsqueeze(l, axis) y = ConstantOfShape(s)
    }"""
    model = load(support.model(text, axis=np.array([0])))
    assert uses_of(model)["k"].counts
    assert {int(make_feed(inputs_of(model), {}, draw)["k"]) for draw in DRAWS} >= {0, 1, 3}  # type: ignore[call-overload]


def test_integers_that_are_numbers_are_negative_and_huge_too() -> None:
    text = "g (int64[200] x) => (int64[200] y) { y = Abs(x) }"
    assert _feeds(text, "wild")["x"].min() < 0
    assert np.abs(_feeds(text, "large")["x"]).max() > 1 << 32


def test_values_stand_on_both_sides_of_the_constants_that_they_meet() -> None:
    text = "g (float[300] x) => (bool[300] y) <float c = {4321.0}> { y = Greater(x, c) }"
    x = _feeds(text, "wild")["x"]
    assert {4321.0} < set(x[np.abs(x) > 1000])
    assert (x > 4321).any() and ((x < 4321) & (x > 4000)).any()


def test_special_values_leave_half_of_the_rows_finite() -> None:
    x = _feeds("g (float[8,6] x) => (float[8,6] y) { y = Relu(x) }", "special")["x"]
    assert np.isnan(x).any() and np.isposinf(x).any() and np.isneginf(x).any() and np.signbit(x[x == 0]).any()
    assert np.isfinite(x).all(axis=1).sum() >= 4
    assert np.isnan(_feeds("g (float[2] x) => (float[2] y) { y = Relu(x) }", "special")["x"]).any()


def test_rows_of_masks_are_shut_in_one_draw_and_in_no_plain_one() -> None:
    text = "g (bool[6,5] m, float[6,5] x) => (float[6,5] y) { y = Where(m, x, x) }"
    assert _feeds(text, "normal")["m"].any(axis=1).all()
    assert not _feeds(text, "flat")["m"].any(axis=1).all()
    verdict = graphopt.optimize(support.model(text.replace("Where(m, x, x)", "Where(m, a, b)").replace(
        "{ y", "{ a = Identity(x) b = Neg(x) y"))).verification  # fmt: skip
    assert verdict.shut_rows is True


def test_a_default_is_left_in_plain_draws_and_moved_in_others() -> None:
    text = "g (float[2] x, float[2] s) => (float[2] y) { y = Mul(x, s) }"
    tensors = {"s": np.array([1, 2], np.float32)}
    assert "s" not in _feeds(text, "normal", **tensors)
    moved = _feeds(text, "wild", **tensors)["s"]
    assert (moved > 0).all() and not np.array_equal(moved, tensors["s"])


def test_every_dim_has_a_size_of_its_own_and_sizes_reach_one_and_above_32() -> None:
    text = "g (float[b,c,h,w] x, float[b,l] z, int64[b,m] i) => (float[b,c,h,w] y) { y = Relu(x) }"
    inputs = inputs_of(load(support.model(text)))
    first = next(first_sizes(inputs))
    assert len(set(first.values())) == len(first)
    purposes = more_sizes(inputs, first)
    assert purposes["ones"][0] == {**first, "b": 1, "c": 1, "l": 1, "m": 1}
    assert min(purposes["large"][0][name] for name in ("l", "m")) > 32
    assert purposes["middle"][0]["h"] == first["w"]


def test_a_model_that_needs_long_inputs_gets_them() -> None:
    """A window of 12,400 samples, as audio networks have."""
    text = """g (float[1,n] x) => (float[1,1,m] y) <int64[1] axis = {1}> {
        u = Unsqueeze(x, axis) y = AveragePool<kernel_shape = [12400], strides = [160]>(u)
    }"""
    found = graphopt.verify(support.model(text), support.model(text))
    assert found.passed
    assert found.sizes[0]["n"] >= 12_400


def test_branches_that_were_taken_are_counted() -> None:
    text = """g (float[3] x) => (float[3] y) <float limit = {LIMIT}> {
        s = ReduceSum<keepdims = 0>(x) c = Greater(s, limit)
        y = If (c) <then_branch = t () => (float[3] u) { u = Neg(x) },
                    else_branch = e () => (float[3] v) { v = Abs(x) }>
    }"""
    assert graphopt.verify(*[support.model(text.replace("LIMIT", "0.0"))] * 2).branches == (2, 2)
    assert graphopt.verify(*[support.model(text.replace("LIMIT", "1e30"))] * 2).branches == (1, 2)


def test_factors_of_sizes_stay_small_and_axes_and_beginnings_fit() -> None:
    text = """g (float[1,2,4,4] x, float[4] s, int64[4] r, int64[2] a, int64[2] b, int64[2] e) => (float[p,q,u,v] y) {
        i = Resize(x, , s) t = Tile(i, r) y = Slice(t, b, e, a)
    }"""
    for draw in DRAWS:
        feed = _feeds(text, draw)
        assert feed["s"].min() >= 0.5 and feed["s"].max() < 3
        assert draw == "large" or feed["s"][:2].tolist() == [1, 1]
        assert feed["r"].min() >= 1 and feed["r"].max() <= 2
        assert feed["a"].tolist() in ([0, 1], [-1, -2])
    assert {int(_feeds(text, draw)["b"][0]) for draw in DRAWS} == {-1, 0, 1, 2}


def test_an_image_is_resized_near_its_own_size() -> None:
    text = "g (float[1,c,10,w] x, int64[4] s) => (float[p,q,u,v] y) { y = Resize(x, , , s) }"
    found = {draw: _feeds(text, draw, {"c": 3, "w": 5})["s"].tolist() for draw in DRAWS}
    assert found["normal"] == [1, 3, 10, 5]
    assert found["flat"] == [1, 3, 15, 8]
    assert found["special"] == [1, 3, 6, 3]
    assert found["large"] == [2, 6, 20, 10]


def test_sizes_of_what_has_no_declared_dims_are_counts() -> None:
    text = "g (float[k] x, int64[r] d, int64[4] s) => (float[p,q,u,v] y) { i = Reshape(x, d) y = Resize(i, , , s) }"
    assert _feeds(text, "large", {"k": 3, "r": 4})["s"].tolist() == [5, 5, 5, 5]


def test_boxes_overlap() -> None:
    """More than half of each other, some of them, and others less: a threshold lies between."""
    text = """g (float[1,20,4] b, float[1,1,20] s) => (int64[n,3] y) <int64 most = {9}, float share = {0.5}> {
        r = Reshape(b, shape) y = NonMaxSuppression(r, s, most, share) }"""
    for draw in ("wild", "grid", "flat", "large"):
        (boxes,) = _feeds(text, draw, shape=np.array([1, 20, 4]))["b"]
        low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        common = np.prod(np.maximum(high - low, 0), axis=-1)
        areas = np.prod(np.abs(boxes[:, 2:] - boxes[:, :2]), axis=-1)
        shares = (common / (areas[:, None] + areas[None] - common))[np.triu_indices(20, 1)]
        assert (shares > 0.5).any() and ((shares > 0) & (shares < 0.5)).any()


@pytest.mark.parametrize(
    ("path", "is_positive"),
    [
        ("y = Sqrt(v)", True), ("a = Mul(v, b) c = Mul(x, x) d = Add(a, c) e = Div(d, x) y = Sqrt(e)", True),
        ("a = Mul(v, v) y = Sqrt(a)", False), ("a = Mul(v, x) y = Sqrt(a)", False), ("a = Sub(v, x) y = Log(a)", False),
        ("y = Tanh(v)", False),
    ],
)  # fmt: skip
def test_roots_are_taken_of_positive_numbers(path: str, is_positive: bool) -> None:
    """Adam's second moments; what is squared, or shifted, before a root has both signs, and so has a wild draw."""
    text = f"g (float[40] v, float[40] x) => (float[40] y) {{ {path} }}"
    beta = np.array(0.999, np.float32)
    for draw in ("normal", "large", "flat", "tiny"):
        assert (_feeds(text, draw, b=beta)["v"] >= 0).all() == is_positive, draw
    assert (_feeds(text, "wild", b=beta)["v"] < 0).any() and (_feeds(text, "normal", b=beta)["x"] < 0).any()


def test_tiny_values_lie_beside_epsilons() -> None:
    values = np.abs(_feeds("g (float[30,8] x) => (float[30,8] y) { y = Relu(x) }", "tiny")["x"])
    assert values.max() < 0.1 and np.median(values) < 5e-3


@pytest.mark.parametrize("draw", ["ones", "large", "zeros"])
def test_indices_are_not_all_one(draw: Draw) -> None:
    """Rows of a table that are all one give logits whose columns have no other scale than a number near zero."""
    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    ids = _feeds("g (int64[2,3] i) => (float[2,3,4] y) { y = Gather(table, i) }", draw, table=table)["i"]
    expected = {"ones": [[1, 2, 3], [4, 0, 1]], "large": [[4, 3, 2], [1, 0, 4]], "zeros": [[0, 0, 1], [1, 2, 2]]}
    assert ids.tolist() == expected[draw]


def test_a_mask_whose_running_sums_are_positions_is_one() -> None:
    text = """g (int64[1,12] mask) => (float[1,12,2] y) {
        sums = CumSum(mask, axis) kept = Mul(sums, mask) at = Sub(kept, one) y = Gather(t, at)
    }"""
    tensors = {"t": TABLE, "axis": np.array(1), "one": np.array(1)}
    for draw in ("normal", "positive", "grid"):
        assert set(_feeds(text, draw, **tensors)["mask"].reshape(-1)) == {0, 1}
    assert uses_of(load(support.model(text, **tensors)))["mask"].bound == 2


@pytest.mark.parametrize(
    "places", ["s = Shape<start=1, end=2>(x) n = Squeeze(s) places = Range(zero, n, one)", "places = Identity(hundred)"]
)
def test_a_length_is_one_of_what_is_masked_by_it(places: str) -> None:
    """All of it in a plain draw: of an audio frontend that masks by lengths of 0 and 1 nothing would be compared."""
    text = f"""g (float[b,n] x, int64[b] lengths) => (float[b,n] y) {{ {places}
        each = Unsqueeze(lengths, axis) kept = Less(places, each) y = Where(kept, x, nothing) }}"""
    numbers = {"zero": np.array(0), "one": np.array(1), "axis": np.array([1]), "hundred": np.arange(100)}
    given = {draw: _feeds(text, draw, {"b": 4, "n": 100}, nothing=np.float32([0]), **numbers) for draw in DRAWS}
    for draw in ("normal", "unit", "positive"):
        lengths = given[draw]["lengths"]
        assert lengths.min() >= 50 and lengths.max() <= 100 and len(set(lengths)) > 1
    assert given["normal"]["lengths"][0] == 100 and given["large"]["lengths"][0] > 100
    assert not given["zeros"]["lengths"].any() and given["wild"]["lengths"].min() < 50


def test_a_length_in_samples_is_one_of_frames_by_the_samples_of_each() -> None:
    text = """g (float[b,n,160] x, int64[b] lengths) => (float[b,n,160] y) {
        s = Shape<start=1, end=2>(x) n = Squeeze(s) places = Range(zero, n, one) frames = Div(lengths, hop)
        each = Unsqueeze(frames, axis) row = Less(places, each) kept = Unsqueeze(row, last) y = Where(kept, x, nothing)
    }"""
    numbers = {"zero": np.array(0), "one": np.array(1), "axis": np.array([1]), "last": np.array([2])}
    feed = _feeds(text, "normal", {"b": 4, "n": 50}, nothing=np.float32([0]), hop=np.array(160), **numbers)
    assert feed["lengths"][0] == 50 * 160


def test_a_plain_feed_is_one_that_the_model_runs_on() -> None:
    """The sum of all indices is an index: of the plain draws only zeros, a row of ones or less fits the table."""
    text = (
        "g (int64[12] i, float[2] x) => (float[2] y) { s = ReduceSum<keepdims = 0>(i) r = Gather(t, s) y = Add(r, x) }"
    )
    model = load(support.model(text, t=TABLE))
    assert int(np.sum(np.asarray(make_feed(inputs_of(model), {}, "normal")["i"]))) >= 20
    feed = plain_feed(model)
    assert int(np.sum(np.asarray(feed["i"]))) < 20
    floats = load(support.model("g (float[3] x) => (float[3] y) { y = Neg(x) }"))
    assert np.array_equal(
        np.asarray(plain_feed(floats)["x"]), np.asarray(make_feed(inputs_of(floats), {}, "normal")["x"])
    )
