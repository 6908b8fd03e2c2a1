"""What a tiled stretch takes, beside the model that is written, and beside sums made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.memory.plan import problem_of
from graphopt.memory.tensors import BANDWIDTH, model_memory
from graphopt.memory.tiling.axes import axes_from
from graphopt.memory.tiling.estimate import Stretch
from graphopt.memory.tiling.region import Cut, Join, Run, region_of, steps_of
from graphopt.memory.tiling.write import split_around, write_tiles
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.load import load
from memplan.bounds import live_peak
from tests import support

DRAW = np.random.default_rng(3)
WEIGHTS = {
    "up": DRAW.standard_normal((32, 4, 3, 3)).astype(np.float32),
    "down": DRAW.standard_normal((4, 32, 1, 1)).astype(np.float32),
    "one": np.array(1),
}
# text, values made by the region, first and last operator of the stretch, axis
STRETCHES = {
    "all of it": (
        "g (float[1,4,16,16] x) => (float[1,4,16,16] y) "
        "{ a = Conv<pads = [1, 1, 1, 1]>(x, up) b = Sigmoid(a) y = Conv(b, down) }", "aby", (0, 2), 2,
    ),
    "what is made before is read inside and after": (
        "g (float[1,4,16,16] x) => (float[1,4,16,16] z) { e = Exp(x) f = Neg(x) a = Conv<pads = [1, 1, 1, 1]>(e, up) "
        "b = Sigmoid(a) y = Conv(b, down) s = Softmax(y) t = Add(s, f) z = Mul(t, e) }", "aby", (2, 4), 2,
    ),
    "an output of the model lives on": (
        "g (float[1,4,16,16] x) => (float[1,4,16,16] e, float[1,4,16,16] y) "
        "{ e = Exp(x) a = Conv<pads = [1, 1, 1, 1]>(e, up) b = Sigmoid(a) y = Conv(b, down) }", "aby", (1, 3), 2,
    ),
    "others stand before and behind the tiles": (
        "g (float[1,4,16,16] x) => (float[1,4,16,16] y, float[1,4,16,16] z) "
        "{ a = Relu(x) n = Neg(x) m = Softmax(a) b = Sigmoid(a) z = Add(m, n) y = Tanh(b) }", "aby", (0, 5), 2,
    ),
    "tiles in place, side by side in the result": (
        "g (float[16,64] x) => (float[16,64] y) { a = Exp(x) b = Sigmoid(a) y = Softmax(b) }", "ab", (0, 2), 0,
    ),
    "not side by side": (
        "g (float[16,64] x) => (float[16,64] y) { a = Exp(x) b = Sigmoid(a) y = Softmax<axis = 0>(b) }",
        "ab", (0, 2), 1,
    ),
    "parts inside a concatenation": (
        "g (float[1,16,64] x, float[1,8,64] z) => (float[1,24,64] y) "
        "{ a = Sin(x) b = Cos(z) c = Concat<axis = 1>(b, a) y = CumSum(c, one) }", "abc", (0, 3), 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", STRETCHES)
def test_estimates_are_what_the_written_model_takes(name: str, count: int, sharing: bool) -> None:
    text, made, (first, last), axis = STRETCHES[name]
    model = load(support.model(text, **{name: array for name, array in WEIGHTS.items() if name in text}))
    facts, memory = Facts(model), model_memory(model, sharing=sharing)
    members = [node for node in model.graph if node.outputs[0].name in set(made)]
    region = region_of(facts, members, axes_from(facts, members[-1].outputs[0], axis, members))
    assert region is not None
    steps = steps_of(facts, region, count)
    assert steps is not None
    by_name = {str(node.outputs[0].name): one for one in memory.graph.operators for node in [memory.nodes[one.name]]}
    order = list(model.graph)[first : last + 1]
    head, behind, tail = split_around(order, set(members))
    before = [by_name[str(node.outputs[0].name)] for node in head]
    after = [by_name[str(node.outputs[0].name)] for node in (*behind, *tail)]
    estimate = Stretch(memory, facts, first, last).tiled(before, steps, after)

    time = sum(one.time for one in (*before, *after))
    for step in steps:
        if isinstance(step, Run):
            time += by_name[str(step.node.outputs[0].name)].time * step.share
        elif isinstance(step, Cut):  # read and written
            rows = (facts.static_shape(step.made.value) or ())[step.made.axis or 0]
            time += 2e9 * 4 * size(facts, step.made.value) * (step.made.high - step.made.low) / rows / BANDWIDTH
        else:
            assert isinstance(step, Join)
            time += 2e9 * 4 * size(facts, step.whole.value) / BANDWIDTH
    assert estimate.time == pytest.approx(time, rel=1e-9)  # the same sum in another order

    write_tiles(model, [(region, steps)])
    written = model_memory(model, sharing=sharing)
    assert estimate.peak == live_peak(problem_of(written.graph))


def size(facts: Facts, value: object) -> int:
    return int(np.prod(facts.static_shape(value) or ()))  # type: ignore[arg-type]


def test_what_tiles_before_a_stretch_are_joined_to_is_there_whole_in_a_program() -> None:
    """Of a result of 1,024 bytes a first piece of 256 has been made; the others are made behind the stretch."""
    text = """g (float[8,8] x, float[32,8] z) => (float[32,8] y) {
        a = Exp(x) s = Sin(z) t = Cos(s) b = Exp(t) w = Concat<axis = 0>(a, b) y = Softmax(w)
    }"""
    model = load(support.model(text.replace("float[32,8] z", "float[24,8] z")))
    node = next(one for one in model.graph if one.op_type == "Concat")
    least = {}
    for is_tiled in (False, True):
        if is_tiled:
            node.metadata_props[nodes.TILED] = "w"
        memory = model_memory(model, sharing="strided")
        for joined in (False, True):
            least[is_tiled, joined] = Stretch(memory, Facts(model), 1, 2, views=True, joined=joined).least
    assert least[True, True] == least[False, True] + 1024 - 256
    assert least[True, False] == least[False, False]
