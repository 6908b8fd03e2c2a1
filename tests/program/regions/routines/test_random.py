"""Operators that draw numbers: what is drawn has the moments that ONNX says, and is the same in every call."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support
from tests.program.regions.routines.one_node import held
from tests.program.regions.running import run_lowered


def drawn(text: str, opset: int = 22, **feeds: np.ndarray) -> list[np.ndarray]:
    return run_lowered(lower(ir.from_proto(support.model(text, opset)), host()), feeds)


def test_uniform_numbers_fill_their_range_evenly() -> None:
    (y,) = drawn("g () => (float[100,200] y) { y = RandomUniform<shape = [100, 200], low = -1.0, high = 3.0>() }")
    assert y.min() >= -1 and y.max() < 3 and len(np.unique(y)) > 19_900
    counts, _ = np.histogram(y, 8, (-1, 3))
    assert counts.sum() == 20_000 and abs(counts - 2500).max() < 250
    assert abs(np.corrcoef(y.ravel()[:-1], y.ravel()[1:])[0, 1]) < 0.03


@pytest.mark.parametrize(("name", "code", "kind"), [("double", 11, "f8"), ("float16", 10, "f2"), ("float", 1, "f4")])
def test_normal_numbers_have_their_mean_and_deviation(name: str, code: int, kind: str) -> None:
    node = f"y = RandomNormal<shape = [20000], mean = 2.0, scale = 3.0, seed = 5.0, dtype = {code}>()"
    (y,) = drawn(f"g () => ({name}[20000] y) {{ {node} }}")
    assert y.dtype == kind and abs(y.astype("f8").mean() - 2) < 0.07 and abs(y.astype("f8").std() - 3) < 0.07
    inside = np.mean(np.abs(y.astype("f8") - 2) < 3)
    assert abs(inside - 0.6827) < 0.01


def test_a_seed_decides_and_nodes_without_one_differ() -> None:
    like = "RandomNormalLike"
    text = f"""g (float[64] x) => (float[64] a, float[64] b, float[64] c, float[64] d) {{
        a = {like}<seed = 1.0>(x) b = {like}<seed = 1.0>(x) c = {like}<seed = 2.0>(x) d = {like}(x)
    }}"""
    x = np.zeros(64, np.float32)
    first, again = drawn(text, x=x), drawn(text, x=x)
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    a, b, c, d = first
    assert np.array_equal(a, b) and not np.array_equal(a, c) and not np.array_equal(a, d)


def test_bernoulli_is_one_as_often_as_its_operand_says() -> None:
    p = np.repeat(np.array([0, 0.25, 1], np.float32), 5000).reshape(3, 5000)
    (y,) = drawn("g (float[3,5000] x) => (bool[3,5000] y) { y = Bernoulli<dtype = 9>(x) }", x=p)
    assert not y[0].any() and y[2].all() and abs(y[1].mean() - 0.25) < 0.03


def test_classes_are_drawn_by_their_probabilities() -> None:
    shares = np.array([[0.1, 0.2, 0.7], [1, 0, 0]])
    with np.errstate(divide="ignore"):
        x = np.log(shares * 5).astype(np.float32)
    node = "y = Multinomial<sample_size = 4000, dtype = 7>(x)"
    (y,) = drawn(f"g (float[2,3] x) => (int64[2,4000] y) {{ {node} }}", x=x)
    assert np.allclose(np.bincount(y[0], minlength=3) / 4000, shares[0], atol=0.03) and not y[1].any()


X = np.arange(12, dtype=np.float32).reshape(3, 4)
HALF, TRUE, FALSE = np.array(0.5, np.float32), np.array(True), np.array(False)


def test_dropout_passes_everything_on_outside_of_training() -> None:
    ones = np.ones((3, 4), bool)
    held("Dropout", [X], [X, ones], opset=22)
    held("Dropout", [X, HALF, FALSE], [X, ones], opset=22, known=[1, 2])
    held("Dropout", [X, HALF, FALSE], [X, ones], opset=22)
    held("Dropout", [X], [X, ones], opset=10, ratio=0.9)
    held("Dropout", [X], [X], opset=6, ratio=0.9, is_test=1)
    held("Dropout", [X, np.array(0, np.float32), TRUE], [X, ones], opset=22)


@pytest.mark.parametrize("known", [(), (1, 2)])
def test_dropout_in_training_lets_elements_fall_out_and_the_others_grow(known: tuple[int, ...]) -> None:
    feeds = {"x": np.ones(10_000, np.float32), "r": np.array(0.2, np.float32), "t": TRUE}
    arrays = {"r": feeds["r"], "t": feeds["t"]} if known else {}
    inputs = "float[10000] x" if known else "float[10000] x, float r, bool t"
    text = f"g ({inputs}) => (float[10000] y, bool[10000] mask) {{ y, mask = Dropout(x, r, t) }}"
    lowered = lower(ir.from_proto(support.model(text, 22, **arrays)), host())
    y, mask = run_lowered(lowered, feeds)
    assert np.array_equal(y, np.where(mask, np.float32(1.25), 0)) and abs(mask.mean() - 0.8) < 0.02


def test_an_optional_that_is_a_tensor_has_an_element() -> None:
    held("OptionalHasElement", [X], [TRUE], opset=18)
    held("OptionalGetElement", [X], [X], opset=18)
