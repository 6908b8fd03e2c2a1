"""Equal layers: what is alike and what is not, and that the search tiles all of them at once."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.memory.plan import problem_of
from graphopt.memory.tensors import model_memory
from graphopt.memory.tiling.alike import regions_alike
from graphopt.memory.tiling.region import region_of
from graphopt.memory.tiling.search import STEPS_PER_NODE, tile_within
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.model.save import to_proto
from memplan.bounds import live_peak
from tests import support

DRAW = np.random.default_rng(5)
ARRAYS = {
    "up": DRAW.standard_normal((8, 64)).astype(np.float32), "down": DRAW.standard_normal((64, 8)).astype(np.float32),
}  # fmt: skip
LAYER = "{h} = MatMul({x}, up) {g} = Sigmoid({h}) {y} = MatMul({g}, down)"


def _layers(count: int) -> str:
    body = " ".join(LAYER.format(h=f"h{one}", g=f"g{one}", x=f"x{one}", y=f"x{one + 1}") for one in range(count))
    return f"g (float[64,8] x0) => (float[64,8] x{count}) {{ {body} }}"


def _alike(text: str, members: tuple[int, ...]) -> list[list[str]]:
    model = load(support.model(text, **ARRAYS))
    order, facts = list(model.graph), Facts(model)
    nodes = [order[one] for one in members]
    region = region_of(facts, nodes, {node.outputs[0]: 0 for node in nodes})
    assert region is not None
    return [[node.outputs[0].name or "" for node in one.members] for one in regions_alike(facts, order, region)]


def test_layers_are_alike() -> None:
    assert _alike(_layers(3), (3, 4, 5)) == [["h0", "g0", "x1"], ["h2", "g2", "x3"]]


@pytest.mark.parametrize(
    ("instead", "by"),
    [
        ("g1 = Sigmoid(h1)", "g1 = Tanh(h1)"),  # another operator
        ("x2 = MatMul(g1, down)", "x2 = MatMul(g0, down)"),  # it reads of another layer what the first reads of its own
        ("g1 = Sigmoid(h1)", "o = Identity(up) g1 = Sigmoid(h1)"),  # another node stands between its own
    ],
)
def test_others_are_not(instead: str, by: str) -> None:
    assert _alike(_layers(2), (0, 1, 2)) == [["h1", "g1", "x2"]]
    text = _layers(2).replace(instead, by)
    assert _alike(text, (0, 1, 2)) == []


def test_no_node_needs_some_of_a_region_and_is_needed_by_it() -> None:
    """What the second product is added to is there before the first layer, but comes of the second one itself."""
    layer = "h{n} = MatMul({x}, up) {o} g{n} = Add(h{n}, {b}) {y} = MatMul(g{n}, down)"
    first = layer.format(n=0, x="x", o="o = Tanh(b)", b="b", y="m")
    text = "g (float[64,8] x, float[64,64] b) => (float[64,8] y, float[64,64] o) {{ {0} {1} }}"
    apart = layer.format(n=1, x="m", o="c = Tanh(b)", b="c", y="y")
    within = layer.format(n=1, x="m", o="c = Tanh(h1)", b="c", y="y")
    assert _alike(text.format(first, apart), (0, 2, 3)) == [["h1", "g1", "y"]]
    assert _alike(text.format(first, within), (0, 2, 3)) == []


DENSE = """g (float[1,2,8,8] x) => (float[] y) {
    n0 = Exp(x) a = Conv(n0, w2)
    c1 = Concat<axis = 1>(x, a) n1 = Exp(c1) b = Conv(n1, w4)
    c2 = Concat<axis = 1>(x, a, b) n2 = Exp(c2) y = Conv(n2, w6)
}"""


def test_layers_that_join_more_and_more_are_kin() -> None:
    weights = {f"w{count}": np.ones((2, count, 1, 1), np.float32) for count in (2, 4, 6)}
    model = load(support.model(DENSE, **weights))
    order, facts = list(model.graph), Facts(model)
    found = {}
    for first in (2, 3):  # with the Concat, and without
        nodes = order[first:5]
        for axis in (1, 2):
            region = region_of(facts, nodes, {node.outputs[0]: axis for node in nodes})
            if region is not None:
                for kin in (False, True):
                    others = regions_alike(facts, order, region, kin=kin)
                    found[first, axis, kin] = [one.members[-1].outputs[0].name for one in others]
    assert found[2, 2, True] == ["y"] and found[3, 2, True] == ["a", "y"]
    assert found[2, 2, False] == found[3, 2, False] == []


def test_nodes_are_in_one_region_only() -> None:
    chain = "g (float[64,8] x) => (float[64,8] d) { a = Tanh(x) b = Tanh(a) c = Tanh(b) d = Tanh(c) }"
    assert _alike(chain, (0, 1)) == [["c", "d"]]


def test_all_layers_go_into_tiles_at_once() -> None:
    """The work is enough for two models that are written, and there are five layers."""
    model = load(support.model(_layers(5), **ARRAYS))
    before = live_peak(problem_of(model_memory(model).graph))
    work = 3 * STEPS_PER_NODE * len(model.graph)
    tiled, regions = tile_within(model, before // 2, columns=0, work=work)
    assert regions == 5
    assert live_peak(problem_of(model_memory(tiled).graph)) <= before // 2
    x = DRAW.standard_normal((64, 8)).astype(np.float32)
    whole, parts = (support.session(to_proto(one)).run(None, {"x0": x})[0] for one in (model, tiled))
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-5)  # sums of 64 products of up to 13, five layers
