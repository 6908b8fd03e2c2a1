"""The order of regions: who reads what another one wrote comes after it, wherever that lies."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.program.order import region_graph
from graphopt.program.regions.lower import lower
from kernels.target import host
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
