"""Regions in tiles under a budget: what is chosen keeps it, and the model gives the same bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import graphopt
from graphopt.memory.plan import problem_of
from graphopt.memory.tensors import model_memory
from graphopt.memory.tiling.axes import axes_from
from graphopt.memory.tiling.candidates import LEAST_COLUMNS
from graphopt.memory.tiling.estimate import Stretch
from graphopt.memory.tiling.region import Region, region_of, steps_of
from graphopt.memory.tiling.search import tile_within
from graphopt.memory.tiling.write import split_around, write_tiles
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.model.save import to_proto
from memplan.bounds import live_peak
from tests import support

DRAW = np.random.default_rng(7)


def weights(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


# Many channels between two convolutions: 9 KiB, 144 KiB, 9 KiB.
WIDE = """g (float[1,4,24,24] x) => (float[1,4,24,24] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, up) b = Sigmoid(a) y = Conv(b, down)
}"""
WIDE_WEIGHTS = {"up": weights(64, 4, 3, 3), "down": weights(4, 64, 1, 1)}


def wide() -> ir.Model:
    return load(support.model(WIDE, **WIDE_WEIGHTS))


def peak(model: ir.Model) -> int:
    return live_peak(problem_of(model_memory(model).graph))


def test_a_wide_middle_runs_in_tiles() -> None:
    model = wide()
    assert peak(model) == 153 << 10
    tiled, regions = tile_within(model, 100 << 10)
    assert regions == 1 and peak(tiled) <= 100 << 10
    assert peak(model) == 153 << 10, "the model itself is left as it is"
    support.assert_equal(to_proto(model), to_proto(tiled), rtol=0, atol=0)
    origins = {node.metadata_props.get(nodes.TILED) for node in tiled.graph}
    assert None not in origins and len(origins) >= 3


def test_tiles_are_not_made_so_small_that_sums_change_their_order() -> None:
    # Sums of 36 products stay in one block however few columns there are; those of 64 x 9 do not.
    deep = load(support.model(WIDE.replace("y = Conv(b, down)", "y = Conv<pads = [1, 1, 1, 1]>(b, deep)"),
                              up=WIDE_WEIGHTS["up"], deep=weights(4, 64, 3, 3)))  # fmt: skip
    for model, kept in ((wide(), False), (deep, True)):
        tiled, regions = tile_within(model, 1)
        facts = Facts(tiled)
        last = [
            facts.static_shape(node.outputs[0]) or (0, 0, 0, 0)
            for node in tiled.graph
            if node.op_type == "Conv" and node.inputs[1] is not None and node.inputs[1].name in ("down", "deep")
        ]
        fewest = min(shape[2] * shape[3] for shape in last)
        assert regions and fewest < 24 * 24 and (fewest >= LEAST_COLUMNS) == kept


def test_layers_of_equal_peaks_are_tiled_one_after_the_other() -> None:
    lines, value = [], "x"
    for layer in range(3):
        lines.append(f"a{layer} = Conv<pads = [1, 1, 1, 1]>({value}, up) b{layer} = Sigmoid(a{layer})")
        lines.append(f"c{layer} = Conv(b{layer}, down) s{layer} = Softmax<axis = 2>(c{layer})")
        value = f"s{layer}"
    text = f"g (float[1,4,24,24] x) => (float[1,4,24,24] {value}) {{ {' '.join(lines)} }}"
    model = load(support.model(text, **WIDE_WEIGHTS))
    tiled, regions = tile_within(model, 100 << 10)
    assert regions == 3 and peak(tiled) <= 100 << 10 < peak(model)
    support.assert_equal(to_proto(model), to_proto(tiled), rtol=0, atol=0)


def test_scores_of_attention_run_in_tiles_of_queries() -> None:
    text = """g (float[1,2,64,8] q, float[1,2,8,64] k, float[1,2,64,8] v) => (float[1,2,64,8] y) {
        s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)
    }"""
    model = load(support.model(text))
    assert peak(model) == (32 + 4) << 10
    tiled, regions = tile_within(model, 16 << 10)
    assert regions == 1 and peak(tiled) <= 16 << 10
    support.assert_equal(to_proto(model), to_proto(tiled))


def test_a_batch_runs_one_sample_after_the_other() -> None:
    text = WIDE.replace("[1,4,24,24]", "[8,4,24,24]")
    model = load(support.model(text, **WIDE_WEIGHTS))
    tiled, regions = tile_within(model, peak(model) // 4)
    assert regions == 1 and peak(tiled) <= peak(model) // 4
    support.assert_equal(to_proto(model), to_proto(tiled), rtol=0, atol=0)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,64,64] x) => (float[1,64,64] y) { a = CumSum(x, axis) b = Exp(a) y = CumSum(b, axis) }",
        "g (float[4] x) => (float[4] y) { y = Exp(x) }",
        "g (float[1] x) => (float[1] y) { y = Exp(x) }",
    ],
)
def test_where_nothing_helps_nothing_is_changed(text: str) -> None:
    model = load(support.model(text, axis=np.array(1)))
    tiled, regions = tile_within(model, 1)
    assert regions == 0 and [node.op_type for node in tiled.graph] == [node.op_type for node in model.graph]


def test_an_old_slice_has_its_ends_as_attributes_and_is_left_alone() -> None:
    proto = support.model(WIDE, opset=9, **WIDE_WEIGHTS)
    assert tile_within(load(proto), 1)[1] == 0


def region_and_facts(model: ir.Model, names: list[str], axis: int) -> tuple[Region, Facts]:
    facts = Facts(model)
    members = [node for node in model.graph if node.outputs[0].name in names]
    found = region_of(facts, members, axes_from(facts, members[-1].outputs[0], axis, members))
    assert found is not None
    return found, facts


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("axis", [2, 3])
def test_estimates_are_what_the_written_model_takes(axis: int, count: int) -> None:
    model = wide()
    region, facts = region_and_facts(model, ["a", "b", "y"], axis)
    steps = steps_of(facts, region, count)
    assert steps is not None
    estimate = Stretch(model_memory(model), facts, 0, 2).tiled([], steps, [])
    write_tiles(model, [(region, steps)])
    memory = model_memory(model)
    assert estimate.peak == live_peak(problem_of(memory.graph))
    assert estimate.time == pytest.approx(sum(one.time for one in memory.graph.operators), rel=0.25)


BETWEEN = """g (float[1,4,24,24] x) => (float[1,4,24,24] y, float[1,4,24,24] z) {
    a = Relu(x) n = Neg(x) m = Exp(a) b = Sigmoid(a) z = Add(m, n) y = Tanh(b)
}"""


def test_nodes_between_members_stand_before_or_behind_the_tiles() -> None:
    model = load(support.model(BETWEEN))
    region, facts = region_and_facts(model, ["a", "b", "y"], 2)
    head, behind, tail = split_around(list(model.graph), set(region.members))
    assert [[node.op_type for node in part] for part in (head, behind, tail)] == [["Neg"], ["Exp", "Add"], []]
    assert [value.name for value in region.exits] == ["a", "y"]
    steps = steps_of(facts, region, 4)
    assert steps is not None
    before = to_proto(model)
    write_tiles(model, [(region, steps)])
    support.assert_equal(before, to_proto(model), rtol=0, atol=0)


def test_a_region_with_a_way_out_and_back_is_not_taken() -> None:
    # Softmax needs whole rows of a, and y needs its result: a and y cannot run in the same tiles along them.
    text = """g (float[1,64,64] x) => (float[1,64,64] y) { a = Exp(x) s = Softmax<axis = 1>(a) y = Mul(a, s) }"""
    model = load(support.model(text))
    tiled, _ = tile_within(model, 1)
    support.assert_equal(to_proto(model), to_proto(tiled), rtol=0, atol=0)


def test_the_optimizer_leaves_tiles_alone() -> None:
    # Two readers of the same rows in two regions: their Slices are equal, and merging them would keep rows longer.
    text = """g (float[1,4,24,24] x) => (float[1,4,24,24] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, up) b = Sigmoid(a) c = Conv(b, down) s = Softmax<axis = 2>(c)
        d = Add(s, x) e = Conv<pads = [1, 1, 1, 1]>(d, up) f = Sigmoid(e) y = Conv(f, down)
    }"""
    model = load(support.model(text, **WIDE_WEIGHTS))
    tiled, regions = tile_within(model, 110 << 10)
    assert regions == 2 and peak(tiled) <= 110 << 10
    again = graphopt.optimize(to_proto(tiled)).model
    assert peak(again) <= 110 << 10
