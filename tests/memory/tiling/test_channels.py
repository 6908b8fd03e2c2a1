"""Tiles along channels: rows of weights, groups that are cut and groups that are whole."""

from __future__ import annotations

from graphopt.model import nodes
from graphopt.model.load import load
from tests import support
from tests.memory.tiling.tiles import assert_tiles_equal, tiled, weights


def test_channels_of_a_convolution_take_rows_of_its_weights() -> None:
    """The weights of a tile are weights of the file: nothing is cut in a run, and nothing is stored twice."""
    proto = support.model(
        "g (float[1,3,6,6] x) => (float[1,8,6,6] y) { a = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Relu(a) }",
        w=weights(8, 3, 3, 3), b=weights(8),
    )  # fmt: skip
    assert_tiles_equal(proto, 1, 4)
    done = tiled(load(proto), 1, 4)
    assert done is not None
    assert [node.op_type for node in done.graph] == ["Conv", "Relu"] * 4 + ["Concat"]
    stored = {name: value.shape for name, value in done.graph.initializers.items()}
    assert sorted(tuple(shape or ()) for shape in stored.values()) == [(2,)] * 4 + [(2, 3, 3, 3)] * 4


def test_channels_go_through_groups_and_pools() -> None:
    """Expanded, by groups of two, pooled: all of it along the channels."""
    text = """g (float[1,4,12,12] x) => (float[1,16,3,3] y) {
        a = Conv(x, up) b = Relu(a) c = Conv<group = 8, pads = [1, 1, 1, 1], strides = [2, 2]>(b, each, bias)
        y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
    }"""
    proto = support.model(text, up=weights(16, 4, 1, 1), each=weights(16, 2, 3, 3), bias=weights(16))
    for count in (2, 4, 8):
        assert_tiles_equal(proto, 1, count)
    done = tiled(load(proto), 1, 4)
    assert done is not None
    groups = [nodes.int_attribute(node, "group", 1) for node in done.graph if node.op_type == "Conv"]
    assert groups == [1, 2] * 4


def test_a_group_is_computed_whole() -> None:
    """Three tiles of two groups with six channels each: the middle one needs both groups, and is cut from them."""
    proto = support.model(
        "g (float[1,4,5,5] x) => (float[1,12,5,5] y) { y = Conv<group = 2>(x, w) }", w=weights(12, 2, 1, 1)
    )
    assert_tiles_equal(proto, 1, 3)
    done = tiled(load(proto), 1, 3)
    assert done is not None
    groups = [nodes.int_attribute(node, "group", 1) for node in done.graph if node.op_type == "Conv"]
    assert groups == [1, 2, 1]


def test_weights_that_a_caller_gives_are_not_cut() -> None:
    text = "g (float[1,3,6,6] x, float[8,3,1,1] w) => (float[1,8,6,6] y) { y = Conv(x, w) }"
    assert tiled(load(support.model(text)), 1, 4) is None


def test_a_constant_operand_is_cut_when_the_model_is_written() -> None:
    proto = support.model("g (float[1,8,6,6] x) => (float[1,8,6,6] y) { y = Add(x, c) }", c=weights(8, 1, 1))
    assert_tiles_equal(proto, 1, 4)
    done = tiled(load(proto), 1, 4)
    assert done is not None
    assert [node.op_type for node in done.graph] == ["Slice", "Add"] * 4 + ["Concat"], "x is cut, c is not"
