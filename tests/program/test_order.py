"""The order of regions: who reads what another one wrote comes after it, wherever that lies."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.program.lifetimes import memory_problem
from graphopt.program.order import region_graph, side_by_side, within_budget
from graphopt.program.regions.lower import lower
from kernels.target import host
from memplan.bounds import live_peak
from tests import support


def test_who_reads_a_result_of_the_graph_comes_after_its_writer() -> None:
    text = """g (float[8,8] x) => (float[8,8] y, float[8,8] z) {
        y = Softmax(x) s = Softmax<axis = 0>(y) z = Softmax(s)
    }"""
    first, second, third = region_graph(lower(ir.from_proto(support.model(text)), host())).operators
    assert first.after == () and second.after == ("0",)
    assert third.after == () and third.inputs == second.outputs


def test_the_pieces_of_a_result_are_written_one_after_the_other() -> None:
    text = """g (float[8,8] x) => (float[16,8] y) {
        s = Softmax(x) t = Softmax<axis = 0>(x) y = Concat<axis = 0>(s, t)
    }"""
    operators = region_graph(lower(ir.from_proto(support.model(text)), host())).operators
    assert [one.after for one in operators[-2:]] == [(), (operators[-2].name,)]


def test_parts_of_a_convolution_are_run_again_together() -> None:
    """Columns and product of each part are one operator, whose columns are memory to work in."""
    text = """g (float[5,16,24,24] x, float[16,16,3,3] w) => (float[5,16,24,24] y, float[5,16,24,24] z) {
        c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Softmax(c) z = Softmax<axis = 0>(c)
    }"""
    lowered = lower(ir.from_proto(support.model(text)), host())
    groups = side_by_side(lowered)
    assert groups == {0: (0, 1, 2, 3, 4, 5)}
    whole, first, _ = region_graph(lowered, groups=groups).operators
    assert whole.recomputable and whole.inputs == () and first.inputs == whole.outputs
    assert whole.workspace == 4 * 2 * 16 * 9 * 24 * 24
    assert not any(one.recomputable for one in region_graph(lowered).operators[1:6:2])


def test_pieces_that_are_read_once_are_made_one_by_one() -> None:
    text = """g (float[8,8] x) => (float[16,8] z) {
        s = Softmax(x) t = Softmax<axis = 0>(x) y = Concat<axis = 0>(s, t) z = Softmax(y)
    }"""
    assert side_by_side(lower(ir.from_proto(support.model(text)), host())) == {}


def test_pieces_of_which_some_are_made_of_others_are_no_group() -> None:
    """As in DenseNet, whose layers read what is joined so far."""
    text = """g (float[1,16,9,9] x) => (float[1,16,9,9] y) {
        a = Conv<pads = [1,1,1,1]>(x, w) p = Conv(a, b1) c = Conv<pads = [1,1,1,1]>(p, w) d = Concat<axis = 1>(a, c)
        q = Conv(d, b2) e = Conv<pads = [1,1,1,1]>(q, w) f = Concat<axis = 1>(d, e) y = Conv(f, b3)
    }"""
    shapes = {"w": (16, 16, 3, 3), "b1": (16, 16, 1, 1), "b2": (16, 32, 1, 1), "b3": (16, 48, 1, 1)}
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    lowered = lower(ir.from_proto(support.model(text, 18, **arrays)), host())
    groups = side_by_side(lowered)
    assert groups == {} and len(region_graph(lowered, groups=groups).operators) == len(lowered.regions)


def test_a_result_in_the_place_of_an_operand_is_offered_and_may_run_again() -> None:
    """The sum may lie where the term stood that nothing else reads; where a budget is kept, and only there."""
    text = """g (float[8,8] x, float[8,8] m) => (float[8,8] y) {
        a = MatMul(x, m) b = Softmax(a) c = MatMul(b, m) d = Add(c, a) y = Softmax(d)
    }"""
    lowered = lower(ir.from_proto(support.model(text)), host())
    assert not region_graph(lowered).shares and not any(one.reused for one in region_graph(lowered).operators)
    graph = region_graph(lowered, places=True)
    normal, added = (one for one in graph.operators if one.reused)
    assert normal.reused == added.reused == 8 * 8 * 4 and added.recomputable
    # Rows of the softmax over its own; the sum over the term, or over the rows that the product has read.
    offered = {(share.value, share.of) for share in graph.shares}
    assert offered == {(one.outputs[0], of) for one in (normal, added) for of in one.inputs}
    assert all(share.overwrites for share in graph.shares)


def test_a_smaller_result_in_the_place_of_an_operand_keeps_a_budget() -> None:
    """Places are offered to the planner for results of one size; smaller ones may lie over operands all the same."""
    text = """g (float[1,64] x) => (float[1,16] y) {
        a = MatMul(x, m) b = Relu(a) c = MatMul(b, n) d = Relu(c) y = MatMul(d, o)
    }"""
    shapes = {"m": (64, 64), "n": (64, 48), "o": (48, 16)}
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    lowered = lower(ir.from_proto(support.model(text, 18, **arrays)), host())
    assert live_peak(memory_problem(lowered)) == 256 + 192
    assert live_peak(memory_problem(within_budget(lowered, 256))) == 256
