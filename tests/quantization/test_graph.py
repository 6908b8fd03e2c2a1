"""What may be quantized, and what may compute in bytes between."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.quantization.formats import FORMATS
from graphopt.quantization.graph import Graph, named
from tests import support
from tests.quantization import networks


def _graph(text: str, **weights: np.ndarray) -> Graph:
    proto = support.model(text, **weights)
    named(proto)
    return Graph(proto)


def test_products_and_convolutions_of_constant_weights_are_candidates() -> None:
    proto = networks.convolutions()
    named(proto)
    first, second, product = Graph(proto).candidates(FORMATS)
    assert (first.op_type, first.x, first.weights, first.y, first.tail) == ("Conv", "x", "w", "r", "Relu_1")
    assert (second.y, second.tail) == ("c", None)
    assert first.formats == ("static",) and product.formats == FORMATS


W = networks.normal(4, 4)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("g (float[2,4] x, float[4,4] w) => (float[2,4] y) { y = MatMul(x, w) }", {}),  # no constant
        ("g (double[2,4] x) => (double[2,4] y) { y = MatMul(x, w) }", {"w": W.astype(np.float64)}),
        ("g (float[3,2,4] x) => (float[3,2,4] y) { y = MatMul(x, w) }", {"w": np.stack([W] * 3)}),  # of three dims
        ("g (float[4,2] x) => (float[2,4] y) { y = Gemm <transA=1> (x, w) }", {"w": W}),
        ("g (float[2,4] x) => (float[2,4] y) { y = Gemm <alpha=2.0> (x, w) }", {"w": W}),
        ("g (float[2,4] x, float[4] b) => (float[2,4] y) { y = Gemm (x, w, b) }", {"w": W}),  # an open bias
        ("g (float[2,4] x) => (float[2,4] y) { y = Add(x, w) }", {"w": W[:1]}),
    ],
)
def test_others_are_not(text: str, weights: dict[str, np.ndarray]) -> None:
    assert _graph(text, **weights).candidates(FORMATS) == ()


@pytest.mark.parametrize(
    "behind",
    [
        "y = Relu(h) z = Neg(h)",  # two read it
        "h2 = Identity(h) y = Relu(h2) z = Neg(y)",  # not directly
        "y = Clip(h, low) z = Neg(y)",  # a bound is no constant
    ],
)
def test_a_relu_belongs_to_the_node_that_it_alone_reads(behind: str) -> None:
    text = f"g (float[2,4] x, float low) => (float[2,4] y, float[2,4] z) {{ h = MatMul(x, w) {behind} }}"
    (one,) = _graph(text, w=W).candidates(FORMATS)
    assert one.tail is None and one.y == "h"


def test_a_result_that_is_an_output_or_read_inside_a_branch_has_no_tail() -> None:
    (one,) = _graph("g (float[2,4] x) => (float[2,4] y, float[2,4] h) { h = MatMul(x, w) y = Relu(h) }",
                    w=W).candidates(FORMATS)  # fmt: skip
    assert one.tail is None
    inside = """g (float[2,4] x, bool c) => (float[2,4] y, float[2,4] z) {
      h = MatMul(x, w) y = Relu(h)
      z = If (c) <then_branch = t () => (float[2,4] o) { o = Neg(h) },
                  else_branch = e () => (float[2,4] n) { n = Neg(y) }>
    }"""
    (one,) = _graph(inside, w=W).candidates(FORMATS)
    assert one.tail is None


def test_operators_compute_in_bytes_where_all_around_them_do() -> None:
    proto = networks.convolutions()
    named(proto)
    graph = Graph(proto)
    candidates = graph.candidates(FORMATS)
    assert graph.carriers(candidates) == {"Add_3", "GlobalAveragePool_4", "Flatten_5"}
    assert graph.carriers(candidates[:2]) == frozenset()  # the last product is in floats, and all lie before it
    assert graph.carriers(()) == frozenset()


def test_nodes_get_names_of_their_own() -> None:
    proto = support.model("g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) y = Neg(b) }")
    proto.graph.node[0].name = proto.graph.node[1].name = "same"
    named(proto)
    assert [node.name for node in proto.graph.node] == ["same", "same_", "Neg_2"]
