"""Normalizations beside ONNX Runtime without optimizations or onnx's ReferenceEvaluator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphopt
from tests import support
from tests.program.regions.routines.one_node import held, same

DIMS = st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple)


def normal(shape: tuple[int, ...], kind: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(kind)


@given(st.data(), st.sampled_from(["Softmax", "LogSoftmax", "Hardmax"]), DIMS, st.sampled_from([11, 13]))
@settings(max_examples=12, deadline=None)
def test_softmax_and_its_kin(data: st.DataObject, op: str, shape: tuple[int, ...], opset: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    given_axis = {} if data.draw(st.booleans()) else {"axis": axis}
    kind = "f4" if op == "Hardmax" else data.draw(st.sampled_from(["f4", "f8"]))
    same(op, [normal(shape, kind)], opset=opset, tolerance=1e-6 if kind == "f4" else 1e-12, **given_axis)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 1), 1), ((3, 7), 1), ((2, 600), 1), ((2, 5, 3), 1), ((2, 9, 1040), 1), ((33, 2), 0)]
)
def test_the_first_of_the_largest(kind: str, shape: tuple[int, ...], axis: int) -> None:
    """Rows longer than what is looked at together, columns more than a worker has; ties, zeros of both signs, NaN.

    A NaN and what stands behind it is never the largest: ONNX Runtime has no row with a one there, or another one.
    """
    generator = np.random.default_rng([*shape, axis])
    special = np.array([np.inf, -np.inf, -0.0, 0.0, np.nan, -np.nan], kind)
    for values in (special[:0], special[1:2], special[1:4], special[:4], special):
        drawn = np.concatenate([values, np.arange(-3, 3)]) if values.size != 1 else values
        x = drawn[generator.integers(0, drawn.size, shape)].astype(kind)
        x = np.where(generator.random(shape) < 0.9, np.clip(x, None, 1), x)
        counts = np.logical_not(np.maximum.accumulate(np.isnan(x), axis))
        best = np.argmax(np.where(counts, x, -np.inf), axis)
        wanted = np.arange(shape[axis]).reshape([-1 if one == axis else 1 for one in range(len(shape))])
        held("Hardmax", [x], [(wanted == np.expand_dims(best, axis)).astype(kind)], axis=axis)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_norms(p: int, axis: int) -> None:
    x = normal((3, 4, 5), "f8")
    x[1] = 0
    norm = np.linalg.norm(x, ord=p, axis=axis, keepdims=True)
    held("LpNormalization", [x], [np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))], p=p, axis=axis,
         tolerance=1e-12)  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 5])
def test_local_responses(size: int) -> None:
    """Beside NumPy: onnx's reference counts batches where it means channels."""
    x = normal((2, 6, 3, 2), "f4").astype("f8")
    before = (size - 1) // 2
    squares = [np.square(x[:, max(0, c - before) : c + size - before]).sum(1) for c in range(6)]
    wanted = x / (1.5 + 0.02 / size * np.stack(squares, 1)) ** 0.6
    held("LRN", [x.astype("f4")], [wanted.astype("f4")], size=size, alpha=0.02, beta=0.6, bias=1.5, tolerance=1e-6)


@given(st.data(), DIMS, st.sampled_from(["f4", "f8"]))
@settings(max_examples=10, deadline=None)
def test_layers_with_their_statistics(data: st.DataObject, shape: tuple[int, ...], kind: str) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    inner = shape[axis:]
    outer = tuple(1 if data.draw(st.booleans()) else size for size in inner)
    inputs = [normal(shape, kind), normal(outer, kind, 1), normal(inner, kind, 2)]
    x = inputs[0].astype("f8")
    axes = tuple(range(axis % len(shape), len(shape)))
    mean = x.mean(axes, keepdims=True)
    scale = 1 / np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + 1e-3)
    wanted = [(x - mean) * scale * inputs[1] + inputs[2], mean, scale]
    held("LayerNormalization", inputs, [wanted[0].astype(kind), *(one.astype("f4") for one in wanted[1:])], axis=axis,
         epsilon=1e-3, tolerance=2e-5)  # fmt: skip


@pytest.mark.parametrize(("kind", "opset"), [("f2", 21), ("f4", 18), ("f4", 21), ("f8", 21)])
@pytest.mark.parametrize("shape", [(2, 6, 5), (1, 6, 3, 7)])
def test_groups_of_channels(shape: tuple[int, ...], opset: int, kind: str) -> None:
    count = 3 if opset == 18 else 6
    scale, bias = (normal((count,), kind, seed) for seed in (1, 2))
    x = normal(shape, kind)
    wide = x.astype("f8").reshape(shape[0], 3, -1)
    found = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-5)
    dims = (1, 6, *(1 for _ in shape[2:]))
    spread = [np.repeat(one.astype("f8"), 6 // count).reshape(dims) for one in (scale, bias)]
    wanted = found.reshape(shape) * spread[0] + spread[1]
    held("GroupNormalization", [x, scale, bias], [wanted.astype(kind)], num_groups=3, opset=opset,
         tolerance=1e-2 if kind == "f2" else 1e-5)  # fmt: skip


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_channels_alone(kind: str) -> None:
    same("InstanceNormalization", [normal((2, 3, 4, 5), kind), normal((3,), kind), normal((3,), kind, 1)],
         engine="reference", tolerance=1e-5)  # fmt: skip


@pytest.mark.parametrize("axes", [[0, 2, 3], [1, -1], [0, 1, 2, 3]])
def test_mean_and_variance(axes: list[int]) -> None:
    same("MeanVarianceNormalization", [normal((2, 3, 4, 5), "f4")], axes=axes, engine="reference", tolerance=1e-5)
    x = normal((2, 3, 4, 5), "f8")
    found = (x - x.mean(tuple(axes), keepdims=True)) / x.std(tuple(axes), keepdims=True)
    held("MeanVarianceNormalization", [x], [found], axes=axes, tolerance=1e-6)


def test_dims_behind_a_normalization_need_not_be_declared() -> None:
    text = "g (float[2,3,4,5] x) => (float[a,b,c,d] y) { m = MeanVarianceNormalization(x) y = Exp(m) }"
    program = graphopt.compile(support.model(text, 18), threads=1)
    assert program.fallback == () and program.verification.passed
    assert program.run(None, {"x": normal((2, 3, 4, 5), "f4")})[0].shape == (2, 3, 4, 5)


@pytest.mark.parametrize("trains", [0, 1])
@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 5)])
def test_batches(shape: tuple[int, ...], kind: str, trains: int) -> None:
    inputs = [normal(shape, kind), *(np.abs(normal((3,), kind, seed)) for seed in range(4))]
    same("BatchNormalization", inputs, outputs=3 if trains else 1, opset=15, training_mode=trains, momentum=0.7,
         engine="reference", tolerance=1e-5)  # fmt: skip
