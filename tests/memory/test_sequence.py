"""An order written into a graph: the same results, nodes that compute again, and optimizers that leave them."""

from __future__ import annotations

import onnx_ir as ir

import graphopt
from graphopt.memory.sequence import write_order
from graphopt.memory.tensors import model_memory
from graphopt.model import nodes
from graphopt.model.load import load
from graphopt.model.save import to_proto
from tests import support

TEXT = """g (float[4] x) => (float[4] y, float[4] b) {
    a = Exp(x) b = Neg(a) c = Sqrt(a) d = Add(b, c) y = Mul(d, a)
}"""


def ordered(*order: str) -> tuple[ir.Model, int]:
    model = load(support.model(TEXT))
    memory = model_memory(model)
    by_type = {node.op_type: name for name, node in memory.nodes.items()}
    return model, write_order(model, [by_type[name] for name in order], memory.nodes)


def test_nodes_stand_in_the_order_asked_for_and_the_rest_computes_again() -> None:
    model, added = ordered("Exp", "Sqrt", "Neg", "Add", "Exp", "Mul")
    assert added == 1 and [node.op_type for node in model.graph] == ["Exp", "Sqrt", "Neg", "Add", "Exp", "Mul"]
    again, product = list(model.graph)[4:]
    assert again.metadata_props[nodes.RECOMPUTED] and again.outputs[0].name == "a_recomputed"
    assert product.inputs[1] is again.outputs[0]
    support.assert_equal(support.model(TEXT), to_proto(model))


def test_an_output_keeps_its_name_when_it_is_what_is_computed_again() -> None:
    model, added = ordered("Exp", "Neg", "Sqrt", "Add", "Mul", "Neg")
    assert added == 1 and [value.name for value in model.graph.outputs] == ["y", "b"]
    assert model.graph.outputs[1].producer() is list(model.graph)[-1]
    support.assert_equal(support.model(TEXT), to_proto(model))


def test_our_own_merging_of_equal_nodes_leaves_them() -> None:
    model, _ = ordered("Exp", "Sqrt", "Neg", "Add", "Exp", "Mul")
    result = graphopt.optimize(to_proto(model))
    assert support.op_types(result.to_proto()).count("Exp") == 2
    merged = support.model("g (float[4] x) => (float[4] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }")
    assert support.op_types(graphopt.optimize(merged).to_proto()).count("Exp") == 1, "which it does otherwise"


def test_a_value_computed_twice_more_is_read_where_it_is_newest() -> None:
    model, added = ordered("Exp", "Neg", "Exp", "Sqrt", "Add", "Exp", "Mul")
    names = [node.outputs[0].name for node in model.graph]
    assert added == 2 and names == ["a", "b", "a_recomputed", "c", "d", "a_recomputed2", "y"]
    support.assert_equal(support.model(TEXT), to_proto(model))


def test_what_is_computed_again_is_called_by_its_node_or_operator() -> None:
    model = load(support.model(TEXT))
    next(iter(model.graph)).name = "first"
    memory = model_memory(model)
    by_type = {node.op_type: name for name, node in memory.nodes.items()}
    write_order(model, [by_type[kind] for kind in ("Exp", "Neg", "Exp", "Sqrt", "Neg", "Add", "Mul")], memory.nodes)
    again = [node for node in model.graph if nodes.RECOMPUTED in node.metadata_props]
    assert [(node.name, node.metadata_props[nodes.RECOMPUTED]) for node in again] == [
        ("first_recomputed", "first"), ("Neg_recomputed", "b")
    ]  # fmt: skip
    assert [node.op_type for node in model.graph] == ["Exp", "Sqrt", "Neg", "Add", "Mul"], (
        "nothing reads the first ones"
    )


def test_a_new_name_is_nobodys() -> None:
    text = """g (float[4] a_recomputed) => (float[4] y, float[4] b) <float a_recomputed2 = {1}> {
        a = Exp(a_recomputed) b = Neg(a) c = Add(a, a_recomputed2) y = Mul(c, a) }"""
    model = load(support.model(text))
    memory = model_memory(model)
    by_type = {node.op_type: name for name, node in memory.nodes.items()}
    write_order(model, [by_type[kind] for kind in ("Exp", "Neg", "Exp", "Add", "Mul")], memory.nodes)
    assert [node.outputs[0].name for node in model.graph] == ["a", "b", "a_recomputed3", "c", "y"]
    support.assert_equal(support.model(text), to_proto(model))


def test_nodes_of_constants_come_first() -> None:
    text = "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { a = Exp(x) t = Neg(w) y = Add(a, t) }"
    model = load(support.model(text))
    memory = model_memory(model)
    assert write_order(model, [operator.name for operator in memory.graph.operators], memory.nodes) == 0
    assert [node.op_type for node in model.graph] == ["Neg", "Exp", "Add"]


def test_a_run_that_nothing_reads_is_left_out() -> None:
    """A view stands wherever its operand does; here its reader has the later one."""
    text = """g (float[2,2] x) => (float[2,2] y) {
        a = Exp(x) f = Flatten<axis = 1>(a) b = Sin(a) c = Cos(b) y = Sub(c, f)
    }"""
    model = load(support.model(text))
    memory = model_memory(model)
    by_type = {node.op_type: name for name, node in memory.nodes.items()}
    order = ["Exp", "Flatten", "Sin", "Cos", "Exp", "Flatten", "Sub"]
    assert write_order(model, [by_type[kind] for kind in order], memory.nodes) == 1
    assert [node.op_type for node in model.graph] == ["Exp", "Sin", "Cos", "Exp", "Flatten", "Sub"]
    support.assert_equal(support.model(text), to_proto(model))


def test_a_run_is_not_asked_for_results_that_nothing_reads() -> None:
    """ONNX Runtime would keep the indices of the first run to the end."""
    text = """g (float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] z) {
        a, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) b = Sin(a) y = Cos(b) z = Neg(i)
    }"""
    model = load(support.model(text))
    memory = model_memory(model)
    by_type = {node.op_type: name for name, node in memory.nodes.items()}
    order = ["MaxPool", "Sin", "Cos", "MaxPool", "Neg"]
    assert write_order(model, [by_type[kind] for kind in order], memory.nodes) == 1
    assert [len(node.outputs) for node in model.graph if node.op_type == "MaxPool"] == [1, 2]
    support.assert_equal(support.model(text), to_proto(model))
