"""Passes inside model-local functions and inside the bodies of If and Loop."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from tests import support


def _optimized(proto: onnx.ModelProto) -> onnx.ModelProto:
    result = graphopt.optimize(proto)
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    return result.to_proto()


def test_folding_inside_a_function_leaves_a_constant_node() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (float[4] x) => (float[4] y) { y = local.shift(x) }
        <domain: "local", opset_import: ["" : 17]>
        shift (a) => (b) {
            two = Constant<value_float = 2.0>()
            three = Constant<value_float = 3.0>()
            six = Mul(two, three)
            kept = Identity(a)
            b = Add(kept, six)
        }"""
    )
    optimized = _optimized(proto)
    assert [node.op_type for node in optimized.functions[0].node] == ["Constant", "Add"]
    assert support.op_types(optimized) == ["shift"]


def test_a_function_whose_result_is_constant() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (float[1] x) => (float[1] y) { s = local.six() y = Add(x, s) }
        <domain: "local", opset_import: ["" : 17]>
        six () => (b) {
            two = Constant<value_floats = [2.0]>()
            b = Mul(two, two)
        }"""
    )
    optimized = _optimized(proto)
    assert [node.op_type for node in optimized.functions[0].node] == ["Constant"]


TURN = """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
g (float[2,3] x, float[2,3] z) => (float[3,2] y, float[?,?] v) { CALLS }
<domain: "local", opset_import: ["" : 17]>
turn <order> (a) => (b) {
    c = Transpose<perm: ints = @order>(a)
    d = Transpose<perm = [1, 0]>(c)
    b = Transpose<perm: ints = @order>(d)
}"""


def test_attributes_that_two_calls_give_differently_are_not_read() -> None:
    calls = "y = local.turn<order = [1, 0]>(x) v = local.turn<order = [0, 1]>(z)"
    optimized = _optimized(onnx.parser.parse_model(TURN.replace("CALLS", calls)))
    assert [node.op_type for node in optimized.functions[0].node] == ["Transpose", "Transpose", "Transpose"]


def test_attributes_of_the_only_call_are_bound() -> None:
    calls = "y = local.turn<order = [1, 0]>(x) v = Neg(z)"
    optimized = _optimized(onnx.parser.parse_model(TURN.replace("CALLS", calls)))
    assert [node.op_type for node in optimized.functions[0].node] == ["Transpose"]
    call = optimized.graph.node[0]
    assert [attribute.name for attribute in call.attribute] == ["order"]  # whoever recognises the call still can


@pytest.mark.fires("fold-shape-arithmetic", "shape-arithmetic")
def test_the_only_call_says_what_a_condition_inside_needs() -> None:
    """As exporters write it: the function asks for the rank of its input, which the call fixes."""
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (float[n,3] x) => (float[?] y) { y = local.norm(x) }
        <domain: "local", opset_import: ["" : 17]>
        norm (a) => (b) {
            s = Shape(a)
            rank = Size(s)
            zero = Constant<value_int = 0>()
            scalar = Equal(rank, zero)
            c = If(scalar) <
                then_branch = t () => (t0) { axes = Constant<value_ints = [0]>() t0 = Unsqueeze(a, axes) },
                else_branch = e () => (e0) { two = Constant<value_float = 2.0>() e0 = Mul(a, two) }
            >
            last = Constant<value_ints = [-1]>()
            b = ReduceSum<keepdims = 0>(c, last)
        }"""
    )
    optimized = _optimized(proto)
    assert [node.op_type for node in optimized.functions[0].node if node.op_type != "Constant"] == ["Mul", "ReduceSum"]


LOOP = """
g (float[4] x, int64 n) => (float[4] y) {
    keep = Constant<value = bool {1}>()
    two = Constant<value_float = 2.0>()
    y = Loop(n, keep, x) <body = b (int64 i, bool going, float[4] a) => (bool still, float[4] c) {
        still = Identity(keep)
        three = Constant<value_float = 3.0>()
        six = Mul(two, three)
        scaled = Mul(a, six)
        again = Mul(a, six)
        zero = Sub(scaled, again)
        c = Add(zero, a)
    }>
}"""


def test_folding_and_sharing_inside_a_loop() -> None:
    optimized = _optimized(support.model(LOOP))
    assert support.op_types(optimized) == ["Loop"]
    body = next(attribute.g for attribute in optimized.graph.node[0].attribute if attribute.name == "body")
    assert [node.op_type for node in body.node] == ["Mul", "Sub", "Add"]


BRANCHES = """
g (float[4] x, bool flag) => (float[4] y) {
    y = If(flag) <
        then_branch = t () => (float[4] a) { one = Constant<value_float = 1.0>() a = Add(x, one) },
        else_branch = e () => (float[4] b) { m = Neg(x) k = Neg(m) b = Relu(k) }
    >
}"""


def test_an_unknown_condition_keeps_both_branches() -> None:
    optimized = _optimized(support.model(BRANCHES))
    branches = {attribute.name: attribute.g for attribute in optimized.graph.node[0].attribute}
    assert [node.op_type for node in branches["then_branch"].node] == ["Add"]
    assert [node.op_type for node in branches["else_branch"].node] == ["Relu"]


def test_a_constant_condition_takes_its_branch() -> None:
    proto = support.model(BRANCHES.replace(", bool flag", ""), flag=np.array(False))
    assert support.op_types(_optimized(proto)) == ["Relu"]


def test_a_condition_that_follows_from_a_static_shape() -> None:
    text = BRANCHES.replace(", bool flag", "").replace(
        "y = If(flag)", "s = Size(x) four = Constant<value_int = 4>() flag = Equal(s, four) y = If(flag)"
    )
    assert support.op_types(_optimized(support.model(text))) == ["Add"]


def test_dims_that_a_branch_declares_wrongly_go_with_the_if() -> None:
    """TorchScript declares the dims of one branch for the results of both."""
    model = support.model(
        """g (float[4, 2] x) => (float[8] y) {
            a = If(flag) <
                then_branch = t () => (float[8] c) { c = Flatten <axis = 0> (x) },
                else_branch = e () => (float[8] d) { d = Relu(x) }
            >
            m = Constant <value_ints = [-1]> ()
            y = Reshape(a, m)
        }""", flag=np.array(False)
    )  # fmt: skip
    onnx.checker.check_model(_optimized(model), full_check=True)


@pytest.mark.fires("resolve-constant-if")
def test_nested_ifs_resolve() -> None:
    proto = support.model(
        """g (float[4] x) => (float[4] y) {
            y = If(flag) <
                then_branch = t () => (float[4] a) {
                    a = If(flag) <
                        then_branch = t2 () => (float[4] c) { c = Relu(x) },
                        else_branch = e2 () => (float[4] d) { d = Neg(x) }
                    >
                },
                else_branch = e () => (float[4] b) { b = Abs(x) }
            >
        }""",
        flag=np.array(True),
    )
    assert support.op_types(_optimized(proto)) == ["Relu"]


def test_two_branches_that_use_the_same_names() -> None:
    branches = """<
        then_branch = t () => (float[4] o) { c = Neg(VALUE) o = Exp(c) },
        else_branch = e () => (float[4] o) { o = Abs(VALUE) }
    >"""
    first, second = branches.replace("VALUE", "x"), branches.replace("VALUE", "z")
    proto = support.model(f"g (float[4] x) => (float[4] y) {{ z = If(flag) {first} y = If(flag) {second} }}")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "flag"))
    assert support.op_types(_optimized(proto)) == ["Neg", "Exp", "Neg", "Exp"]


@pytest.mark.fires("drop-unused-outputs")
def test_results_of_branches_and_loops_that_nothing_reads_are_not_computed() -> None:
    optimized = _optimized(
        support.model(
            """g (float[4] x, bool f, int64 n) => (float[4] y, float[4] v) {
                y, unread = If(f) <
                    then_branch = t () => (float[4] a, float[4] a2) { a = Neg(x) a2 = Exp(x) },
                    else_branch = e () => (float[4] b, float[4] b2) { b = Abs(x) b2 = Log(x) }
                >
                v, history = Loop(n, f, x) <body = l (int64 i, bool c, float[4] s) => (bool k, float[4] w, float[4] h) {
                    k = Identity(c) w = Relu(s) h = Sqrt(s)
                }>
            }"""
        )
    )
    operators = [node.op_type for graph in _graphs(optimized.graph) for node in graph.node]
    assert sorted(operators) == ["Abs", "Identity", "If", "Loop", "Neg", "Relu"]


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [graph, *(deeper for held in inner for deeper in _graphs(held))]
