"""The parts of the search for tiles, each on lists that one can follow by eye."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.memory.tensors import ModelMemory, model_memory
from graphopt.memory.tiling import search
from graphopt.memory.tiling.axes import axes_from
from graphopt.memory.tiling.candidates import LEAST_COLUMNS, _across, _front, _keeps_bits, _stretches
from graphopt.memory.tiling.region import Run, region_of, steps_of
from graphopt.memory.tiling.search import _worse, by_nodes, tile_within
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.model.save import to_proto
from memplan.work import Work
from tests import support


def read(text: str, **weights: np.ndarray) -> ModelMemory:
    return model_memory(load(support.model(text, **weights)))


def live(memory: ModelMemory) -> list[int]:
    return list(by_nodes(ir.Model(ir.Graph([], [], nodes=[]), ir_version=8), memory).live)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_bytes_at_each_step_are_those_of_results_that_are_still_needed() -> None:
    text = "g (float[16] x) => (float[16] y) { a = Exp(x) b = Sin(a) c = Cos(b) y = Add(c, a) }"
    assert live(read(text)) == [64, 128, 128, 128], "c lies in b, y in one of its operands"
    apart = model_memory(load(support.model(text)), sharing=False)
    assert live(apart) == [64, 128, 192, 192]


def test_of_equal_peaks_the_fewer_are_better() -> None:
    assert _worse([3, 5, 1, 5]) == (5, 2) and _worse([5, 4, 4]) == (5, 1)


def test_ends_of_a_stretch_are_those_that_cost_less_than_all_nearer_ones() -> None:
    assert _front([5, 4, 3, 2, 1], [9, 9, 7, 8, 2]) == [5, 3, 1]
    assert _front([], []) == []
    assert _front(list(range(7)), list(range(7, 0, -1))) == [0, 1, 2, 3, 4, 5, 6]
    thirteen = _front(list(range(13)), list(range(13, 0, -1)))
    assert thirteen == [0, 2, 4, 6, 8, 10, 12], "of many, seven from the nearest to the farthest"


def test_stretches_begin_and_end_where_least_lives() -> None:
    """Bytes between neighbours: x|a 0, a|b 64, b|c 256, c|d 256, d|y 512, behind y 0; the worst step is c.

    Nothing is cut between b and c, which kernels compute together.
    """
    text = """g (float[16,1] x) => (float[16,1] y) {
        a = Sin(x) b = MatMul(a, w) c = Sin(b) d = MatMul(c, v) y = ReduceMax<axes = [1]>(d)
    }"""
    model = load(support.model(text, w=ones(1, 4), v=ones(4, 8)))
    memory, members = model_memory(model), list(model.graph)
    tied = axes_from(Facts(model), members[2].outputs[0], 0, members)
    assert _stretches(memory, tied, 2) == [(1, 2), (1, 4), (0, 2), (0, 4)]
    assert _stretches(memory, tied, 3) == [(3, 3), (3, 4), (1, 3), (1, 4), (0, 3), (0, 4)]
    partly = {value: axis for value, axis in tied.items() if value.name not in ("a", "y")}
    assert _stretches(memory, partly, 2) == [(1, 2)], "not beyond what has the axis"


# text, axis, the tile's size in what counts; whether its bits are those of the whole
PRODUCTS = [
    # A convolution of 128 products keeps one block of sums; of 132, it needs 192 columns.
    ("g (float[1,32,16,32] x) => (float[1,2,16,32] y) { y = Conv(x, w) }", 2, (2, 128, 1, 1), 4, True),
    ("g (float[1,32,24,32] x) => (float[1,2,24,32] y) { y = Conv(x, w) }", 2, (2, 32, 2, 2), 3, True),
    ("g (float[1,33,25,33] x) => (float[1,2,24,32] y) { y = Conv(x, w) }", 2, (2, 33, 2, 2), 4, True),
    ("g (float[1,33,25,33] x) => (float[1,2,24,32] y) { y = Conv(x, w) }", 2, (2, 33, 2, 2), 6, False),
    ("g (float[8,33,5,5] x) => (float[8,2,4,4] y) { y = Conv(x, w) }", 0, (2, 33, 2, 2), 4, True),
    # Rows of a product: 16 or more; samples of a batch, however few.
    ("g (float[64,8] x) => (float[64,4] y) { y = MatMul(x, w) }", 0, (8, 4), 4, True),
    ("g (float[64,8] x) => (float[64,4] y) { y = MatMul(x, w) }", 0, (8, 4), 5, False),
    ("g (float[64,8] x) => (float[64,4] y) { y = Gemm(x, w) }", 0, (8, 4), 4, True),
    ("g (float[64,8] x) => (float[64,4] y) { y = Gemm(x, w) }", 0, (8, 4), 5, False),
    ("g (float[6,2,8] x) => (float[6,2,4] y) { y = MatMul(x, w) }", 0, (6, 8, 4), 6, True),
    ("g (float[2,64,8] x) => (float[2,64,4] y) { y = MatMul(x, w) }", 1, (2, 8, 4), 4, True),
    ("g (float[2,64,8] x) => (float[2,64,4] y) { y = MatMul(x, w) }", 1, (2, 8, 4), 5, False),
    # A transposed convolution multiplies the operand's columns: 128 channels are one block, 129 need 192 of them.
    ("g (float[1,128,16,16] x) => (float[1,2,32,32] y) { y = ConvTranspose<strides = [2, 2]>(x, w) }", 2,
     (128, 2, 2, 2), 2, True),
    ("g (float[1,129,16,16] x) => (float[1,2,32,32] y) { y = ConvTranspose<strides = [2, 2]>(x, w) }", 2,
     (129, 2, 2, 2), 2, False),
    ("g (float[1,129,24,16] x) => (float[1,2,48,32] y) { y = ConvTranspose<strides = [2, 2]>(x, w) }", 2,
     (129, 2, 2, 2), 2, True),
    # Channels of a convolution are rows of the weights; those of groups stay together.
    ("g (float[1,33,24,32] x) => (float[1,64,24,32] y) { y = Conv(x, w) }", 1, (64, 33, 1, 1), 4, True),
    ("g (float[1,33,24,32] x) => (float[1,64,24,32] y) { y = Conv(x, w) }", 1, (64, 33, 1, 1), 6, False),
    ("g (float[1,64,24,32] x) => (float[1,64,24,32] y) { y = Conv<group = 64>(x, w) }", 1, (64, 1, 1, 1), 16, True),
    ("g (float[64,8] x) => (float[64,8] y) { y = Exp(x) }", 0, None, 16, True),
]  # fmt: skip


def keeps(text: str, axis: int, count: int, columns: int, weight: np.ndarray | None) -> bool:
    model = load(support.model(text, **({} if weight is None else {"w": weight})))
    facts, members = Facts(model), list(model.graph)
    region = region_of(facts, members, axes_from(facts, members[-1].outputs[0], axis, members))
    assert region is not None
    steps = steps_of(facts, region, count)
    assert steps is not None
    return all(_keeps_bits(facts, step, columns) for step in steps)


@pytest.mark.parametrize(("text", "axis", "weight", "count", "expected"), PRODUCTS)
def test_tiles_below_what_libraries_sum_alike_are_not_made(
    text: str, axis: int, weight: tuple[int, ...] | None, count: int, expected: bool
) -> None:
    assert keeps(text, axis, count, LEAST_COLUMNS, None if weight is None else ones(*weight)) == expected


@pytest.mark.parametrize(
    ("channels", "count", "pieces", "shares"),
    [
        (40, 2, [(0, 16), (16, 40)], [1 / 3, 2 / 3]), (64, 3, [(0, 16), (16, 32), (32, 64)], [1 / 4, 1 / 4, 1 / 2]),
        (40, 3, [(0, 16), (16, 32), (32, 40)], [1 / 3, 1 / 3, 1 / 3]), (32, 3, [], []),
    ],
)  # fmt: skip
def test_tiles_cut_no_vector_of_channels(
    channels: int, count: int, pieces: list[tuple[int, int]], shares: list[float]
) -> None:
    """A part of a vector takes as long as a whole one."""
    text = f"g (float[1,4,6,6] x) => (float[1,{channels},6,6] y) {{ a = Conv(x, w) y = Relu(a) }}"
    model = load(support.model(text, w=ones(channels, 4, 1, 1)))
    facts, members = Facts(model), list(model.graph)
    region = region_of(facts, members, axes_from(facts, members[-1].outputs[0], 1, members))
    assert region is not None
    runs = [one for one in steps_of(facts, region, count, vector=16) or () if isinstance(one, Run)]
    made = [run for run in runs if run.node.op_type == "Conv"]
    assert [(one.outputs[0].low, one.outputs[0].high) for one in made] == pieces
    assert [one.share for one in made] == pytest.approx(shares)


@pytest.mark.parametrize(
    ("text", "axis", "count", "pieces"),
    [
        # Channels become heads, and one head or more are a tile, though they are fewer than a vector.
        ("(float[1,16,4] x) => (float[1,4,8,4] y) { a = Conv(x, w) b = Reshape(a, heads) y = Sin(b) }", 1, 2,
         [(0, 2), (2, 4)]),
        # A Reshape that begins and ends as an image leaves channels what they are.
        ("(float[1,16,4] x) => (float[1,32,4] y) { a = Conv(x, w) b = Reshape(a, same) y = Sin(b) }", 1, 4, []),
        # Nor does a Transpose: rows in the place of channels go by whole vectors too.
        ("(float[1,16,24] x) => (float[1,24,32] y) { a = Conv(x, w) b = Transpose<perm = [0, 2, 1]>(a) y = Sin(b) }",
         1, 2, [(0, 16), (16, 24)]),
    ],
)  # fmt: skip
def test_heads_that_channels_become_are_cut_one_by_one(
    text: str, axis: int, count: int, pieces: list[tuple[int, int]]
) -> None:
    shapes = {"heads": np.array([1, 4, 8, 4]), "same": np.array([1, 32, 4])}
    model = load(support.model(f"g {text}", w=ones(32, 16, 1), **{one: shapes[one] for one in shapes if one in text}))
    facts, members = Facts(model), list(model.graph)
    region = region_of(facts, members, axes_from(facts, members[-1].outputs[0], axis, members))
    assert region is not None
    runs = [one for one in steps_of(facts, region, count, vector=16) or () if isinstance(one, Run)]
    assert [(one.outputs[0].low, one.outputs[0].high) for one in runs if one.node.op_type == "Sin"] == pieces


CHAIN = """g (float[1,4,24,24] x) => (float[1,4,24,24] y) {
    e = Sin(x) a = Conv<pads = [1, 1, 1, 1]>(e, up) b = Sigmoid(a) y = Conv(b, down)
}"""
CHAIN_WEIGHTS = {"up": ones(64, 4, 3, 3), "down": ones(4, 64, 1, 1)}


@pytest.mark.parametrize(
    ("budget", "sharing", "tiles", "peak"),
    [
        (153, True, 0, 153), (152, True, 2, 85.875), (80, True, 3, 63.75), (60, True, 4, 52.5), (40, True, 8, 35.625),
        (289, False, 0, 288), (152, False, 3, 108), (100, False, 4, 85.5), (60, False, 8, 51.75),
    ],
)  # fmt: skip
def test_the_fewest_tiles_that_keep_the_budget_are_taken(budget: int, sharing: bool, tiles: int, peak: float) -> None:
    """In KiB. Of 24 rows of a, 6 KiB each, two tiles keep 12 at a time, with 13 rows of e, 0.375 KiB each, and e."""
    model = load(support.model(CHAIN, **CHAIN_WEIGHTS))
    tiled, regions = tile_within(model, budget << 10, sharing=sharing)
    assert support.op_types(to_proto(tiled)).count("Conv") == (2 * tiles or 2) and regions == (tiles > 0)
    assert max(live(model_memory(tiled, sharing=sharing))) == peak * 1024


# Operators that are estimated: of 2, 3, 4 tiles of the worst step's 64 channels, which keep 16 or more each, with the
# Sigmoid that joins it; then of 2, 3, 4 ... tiles of their rows, and of the stretches around them.
CHANNELS = [7, 10, 13]
ALONE = [7, 10, 13, 19, 25, 37, 49]


@pytest.mark.parametrize(
    ("budget", "sharing", "estimated", "written"),
    [
        (80, True, [*CHANNELS, *ALONE, 9, 13, 9, 13, 17, 25, 33, 49, 65, 11, 16], 14),
        (152, True, [*CHANNELS, *ALONE, 9, 9, 13, 17, 25, 33, 49, 65, 11], 10),
    ],
)
def test_what_is_estimated_and_written_is_counted(
    budget: int, sharing: bool, estimated: list[int], written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operator of an estimate costs 40,000 steps, each node of a model that is written 250,000."""
    spent: list[int] = []

    class Counted(Work):
        def spend(self, steps: int) -> None:
            spent.append(steps)
            Work.spend(self, steps)

    monkeypatch.setattr(search, "Work", Counted)
    model = load(support.model(CHAIN, **CHAIN_WEIGHTS))
    assert tile_within(model, budget << 10, sharing=sharing)[1] == 1
    assert spent == [*(40_000 * operators for operators in estimated), written * 250_000]


def test_a_search_without_work_changes_nothing() -> None:
    model = load(support.model(CHAIN, **CHAIN_WEIGHTS))
    assert [tile_within(model, 80 << 10, work=work)[1] for work in (0, 1)] == [0, 1]


def test_what_is_joined_counts_once_where_views_are_known() -> None:
    """Between the Concat and what reads it both pieces and the whole live; the pieces lie in the whole."""
    text = """g (float[1,2,4] x) => (float[1,4,4] y) {
        a = Exp(x) b = Sin(x) c = Concat<axis = 1>(a, b) n = Sigmoid(c) d = Concat<axis = 1>(a, b) y = Add(n, d)
    }"""
    model = load(support.model(text))
    one = 2 * 4 * 4
    for strides, expected in ((False, 4 * one), (True, 2 * one)):
        memory = model_memory(model, sharing="strided", strides=strides)
        assert _across(memory)[3] == expected


def test_tiles_along_another_axis_are_tried_where_the_first_ones_do_not_help() -> None:
    """Channels and rows are as good by estimate; channels come first, and the judge finds them no better."""
    text = """g (float[1,8,16,16] x) => (float[1,32,4,4] y) {
        a = Conv<group = 8, pads = [1, 1, 1, 1]>(x, w) b = Sigmoid(a)
        y = MaxPool<kernel_shape = [4, 4], strides = [4, 4]>(b)
    }"""
    model = load(support.model(text, w=ones(32, 1, 3, 3)))
    axes = []

    def judge(one: ir.Model, memory: ModelMemory) -> search.Seen:
        seen = by_nodes(one, memory)
        joins = [node.attributes["axis"].as_int() for node in one.graph if node.op_type == "Concat"]
        axes.extend(joins)
        return search.Seen([1 << 20] * len(seen.live), [1 << 20] * len(seen.steps), 1.0) if 1 in joins else seen

    assert tile_within(model, 24 << 10, columns=0, judge=judge)[1] == 0
    tiled, regions = tile_within(model, 24 << 10, columns=0, judge=judge, further=True)
    assert regions == 1 and max(by_nodes(tiled, model_memory(tiled)).live) <= 24 << 10
    assert axes[0] == 1 and axes[-1] == 2


def test_a_search_begins_anew_around_the_step_that_resists() -> None:
    """The judge wants d in tiles and b whole: tiles around b, which is worst at first, leave d above the budget."""
    text = """g (float[64,16] x) => (float[64,16] y) {
        a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, w) d = Softmax(c) y = MatMul(d, w)
    }"""
    model = load(support.model(text, w=ones(16, 16)))
    for node in model.graph:
        node.name = node.outputs[0].name

    def judge(one: ir.Model, memory: ModelMemory) -> search.Seen:
        tiled = {node.metadata_props.get(nodes.TILED, "")[:1] for node in one.graph}  # "d_2" in tiles is d too
        live = {"b": 10 if "b" in tiled else 100_000, "d": 90_000}
        order = [memory.nodes[operator.name] for operator in memory.graph.operators]
        names = [(node.name or "")[:1] for node in order]
        most = [10 if "d" in tiled and "b" not in tiled else live.get(name, 10) for name in names]
        return search.Seen(most, most, 1.0)

    def found(*, again: bool) -> set[str]:
        tiled, _ = tile_within(model, 50_000, columns=0, judge=judge, further=True, again=again)
        return {node.metadata_props.get(nodes.TILED, "")[:1] for node in tiled.graph}

    assert "b" in found(again=False)
    assert "d" in found(again=True) and "b" not in found(again=True)


def test_images_are_as_large_as_their_blocks_of_channels_where_asked() -> None:
    """24 channels take two blocks of 16, also what is computed of them; 16 take one, and a product none."""
    text = """g (float[1,3,4,4] x) => (float[1,16] y) {
        a = Conv(x, w) b = Sigmoid(a) c = Conv(b, v) d = GlobalAveragePool(c) e = Flatten(d) y = MatMul(e, m)
    }"""
    model = load(support.model(text, w=ones(24, 3, 1, 1), v=ones(16, 24, 1, 1), m=ones(16, 16)))
    for whole, channels in ((False, 24), (True, 32)):
        memory = model_memory(model, vector=16, whole_vectors=whole)
        sizes = {value.name: value.size for value in memory.graph.values}
        assert [sizes[name] for name in "abcy"] == [64 * channels, 64 * channels, 64 * 16, 64]
