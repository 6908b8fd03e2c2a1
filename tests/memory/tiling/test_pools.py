"""Global pools in two steps: the same result, and tiles where the map would not fit."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.memory.plan import problem_of
from graphopt.memory.tensors import model_memory
from graphopt.memory.tiling.pools import with_pools_in_steps
from graphopt.memory.tiling.search import tile_within
from graphopt.model.load import load
from graphopt.model.save import to_proto
from memplan.bounds import live_peak
from tests import support

DRAW = np.random.default_rng(3)
MAP = DRAW.standard_normal((2, 3, 5, 7)).astype(np.float32)


@pytest.mark.parametrize("opset", [12, 13, 18, 20])
@pytest.mark.parametrize(
    ("body", "first"),
    [
        ("y = GlobalAveragePool(x)", "ReduceMean"),
        ("y = GlobalMaxPool(x)", "ReduceMax"),
        ("y = ReduceMean<keepdims = 0>(x)", "ReduceMean"),
        ("y = ReduceSum(x)", "ReduceSum"),
        ("y = ReduceMax(x)", "ReduceMax"),
        ("y = ReduceMin(x)", "ReduceMin"),
    ],
)
def test_rows_come_first(body: str, first: str, opset: int) -> None:
    model = load(support.model(f"g (float[2,3,5,7] x) => (float[] y) {{ {body} }}", opset=opset))
    stepped = with_pools_in_steps(model)
    assert [node.op_type for node in stepped.graph] == [first, model.graph[0].op_type]
    assert len(model.graph) == 1, "the model itself is left as it is"
    before, after = (support.session(to_proto(one)).run(None, {"x": MAP})[0] for one in (model, stepped))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)  # sums are in another order


def test_names_that_are_taken_are_left_to_their_owners() -> None:
    text = "g (float[2,3,5,7] x) => (float[2,3,1,1] y, float[2,3,5,7] y_rows) { y_rows = Relu(x) y = GlobalMaxPool(x) }"
    stepped = with_pools_in_steps(load(support.model(text)))
    assert [node.outputs[0].name for node in stepped.graph] == ["y_rows", "y_rows'", "y"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,3,1,7] x) => (float[2,3,1,1] y) { y = GlobalAveragePool(x) }",  # one row
        "g (float[2,3,5,1] x) => (float[2,3,1,1] y) { y = GlobalAveragePool(x) }",  # one column
        "g (float[2,3,h,7] x) => (float[2,3,1,1] y) { y = GlobalAveragePool(x) }",  # nobody knows how many rows
        "g (float[2,3,5,7] x) => (float[2,3,5,7] y) { y = Relu(x) }",
        "g (float[2,3] x, int64[2] axes) => (float[1,1] y) { y = ReduceSum(x, axes) }",  # nobody knows which axes
    ],
)
def test_what_has_nothing_to_gain_is_left_alone(text: str) -> None:
    model = load(support.model(text))
    assert with_pools_in_steps(model) is model


def test_a_region_in_tiles_ends_in_a_pool() -> None:
    # Each map takes 144 KiB, and the second needs all channels of the first; of the rows' means there are 6 KiB.
    text = """g (float[1,4,24,24] x) => (float[1,64] y) {
        a = Conv(x, up) b = Conv(a, across) y = ReduceMean<axes = [2, 3], keepdims = 0>(b)
    }"""
    up = DRAW.standard_normal((64, 4, 1, 1)).astype(np.float32)
    across = DRAW.standard_normal((64, 64, 1, 1)).astype(np.float32)
    model = load(support.model(text, up=up, across=across))
    budget = 100 << 10
    whole, _ = tile_within(model, budget)
    assert live_peak(problem_of(model_memory(whole).graph)) > budget
    tiled, regions = tile_within(with_pools_in_steps(model), budget)
    assert regions == 1 and live_peak(problem_of(model_memory(tiled).graph)) <= budget
    feed = {"x": DRAW.standard_normal((1, 4, 24, 24)).astype(np.float32)}
    before, after = (support.session(to_proto(one)).run(None, feed)[0] for one in (model, tiled))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
