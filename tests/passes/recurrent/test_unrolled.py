"""Unrolled GRU and LSTM cells become the operator, in every form, and only where that is equal."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.passes.recurrent import stack, unrolled
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests import support
from tests.passes.recurrent.unrolled_cells import gru, lstm

PASSES = (
    Pass("roll-up-cells", 2, run=unrolled.roll_up_cells),
    Pass("stack-of-steps", 1, stack.RULES),
)


def rolled_up(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model after the two passes, checked and equal."""
    copy = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    run_passes(Editor(copy), PASSES)
    result = ir.to_proto(copy)
    onnx.checker.check_model(result)
    support.assert_equal(proto, result, rtol=1e-4)  # a GRU of ONNX Runtime has its own sigmoid and tanh
    return result


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(3, 6),
    update=st.sampled_from(["plain", "difference", "negated"]),
    form=st.sampled_from(["apart", "packed", "reset before"]),
    start=st.sampled_from(["zeros", "given"]),
    backwards=st.booleans(),
    returned=st.sampled_from(["last", "all"]),
)
def test_a_gru_is_recognised_in_every_form(
    steps: int, update: str, form: str, start: str, backwards: bool, returned: str
) -> None:
    model = gru(
        steps, update=update, reset_after=form != "reset before", packed=form == "packed", start=start,
        backwards=backwards, returned=returned,
    )  # fmt: skip
    result = rolled_up(model)
    assert support.op_types(result).count("GRU") == 1
    assert "Sigmoid" not in support.op_types(result)
    assert "Gather" not in support.op_types(result)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("returned", ["h", "h and c"])
def test_an_lstm_is_recognised_with_joined_and_separate_products(joined: bool, returned: str) -> None:
    result = rolled_up(lstm(4, joined=joined, forget=1.0, returned=returned))
    assert support.op_types(result).count("LSTM") == 1
    assert "Tanh" not in support.op_types(result)


def test_the_weights_of_a_gru_are_stacked_as_the_operator_wants_them() -> None:
    result = rolled_up(gru(3))
    node = next(node for node in result.graph.node if node.op_type == "GRU")
    shapes = {item.name: tuple(item.dims) for item in result.graph.initializer}
    assert [shapes[name] for name in node.input[1:4]] == [(1, 12, 3), (1, 12, 4), (1, 24)]
    assert onnx.helper.get_node_attr_value(node, "linear_before_reset") == 1


def test_a_first_step_from_which_folding_took_the_state_belongs_to_the_chain() -> None:
    model = gru(4, packed=True)
    for node in model.graph.node:  # what folding makes of a product with zeros: its bias, once for every sample
        if node.output[0] == "gh0":
            bias = onnx.numpy_helper.to_array(next(item for item in model.graph.initializer if item.name == "S"))
            model.graph.node.remove(node)
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.stack([bias, bias]), "gh0"))
            break
    result = rolled_up(model)
    assert support.op_types(result) == ["Transpose", "GRU", "Squeeze", "Relu"]


def test_a_first_step_with_another_bias_stays() -> None:
    model = gru(4, packed=True)
    for node in model.graph.node:
        if node.output[0] == "gh0":
            model.graph.node.remove(node)
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 12), np.float32), "gh0"))
            break
    result = rolled_up(model)
    assert support.op_types(result).count("GRU") == 1
    assert support.op_types(result).count("Sigmoid") == 2


def test_two_layers_hand_the_whole_sequence_on() -> None:
    first, second = gru(3), gru(3)
    graph = onnx.compose.add_prefix_graph(second.graph, "b_")
    graph.initializer.remove(next(item for item in graph.initializer if item.name == "b_Wz"))
    for item in list(graph.initializer):
        if item.name.startswith("b_W"):
            graph.initializer.remove(item)
    for gate in "zrn":
        square = np.random.default_rng(3).uniform(-0.5, 0.5, (4, 4)).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(square, f"b_W{gate}"))
    model = onnx.ModelProto()
    model.CopyFrom(first)
    del model.graph.node[-1]
    for node in graph.node:
        if node.op_type != "Gather":
            node.input[:] = [
                name.replace("b_x", "h") if name in ("b_x0", "b_x1", "b_x2") else name for name in node.input
            ]
            model.graph.node.append(node)
    model.graph.initializer.extend(graph.initializer)
    model.graph.output[0].name = "b_y"
    result = rolled_up(model)
    assert support.op_types(result) == ["Transpose", "GRU", "Squeeze", "GRU", "Squeeze", "Relu"]


def test_a_decoder_that_reads_its_own_output_is_left_alone() -> None:
    model = gru(4)
    for node in model.graph.node:  # the second input is computed from the first state
        if node.output[0] == "x1":
            node.CopyFrom(onnx.helper.make_node("Slice", ["h0", "zero", "three", "one"], ["x1"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3]), "three"))
    assert "GRU" not in support.op_types(rolled_up(model))


def test_a_gate_that_is_an_output_keeps_the_cells() -> None:
    model = gru(3)
    model.graph.output.append(onnx.helper.make_tensor_value_info("z1", onnx.TensorProto.FLOAT, [2, 4]))
    assert "GRU" not in support.op_types(rolled_up(model))


def test_two_steps_are_not_worth_an_operator() -> None:
    assert "GRU" not in support.op_types(rolled_up(gru(2)))


def test_cells_with_different_weights_are_no_recurrence() -> None:
    model = gru(3)
    other = np.eye(4, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(other, "other"))
    for node in model.graph.node:
        if node.output[0] == "hz1":
            node.input[1] = "other"
    assert "GRU" not in support.op_types(rolled_up(model))


def test_doubles_are_left_alone_because_no_runtime_has_the_operator() -> None:
    model = gru(3)
    for item in model.graph.initializer:
        if item.data_type == onnx.TensorProto.FLOAT:
            item.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(item).astype(np.float64), item.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert "GRU" not in support.op_types(rolled_up(model))


def test_a_stack_of_steps_of_two_tensors_stays() -> None:
    model = support.model(
        """g (float[2, 3] a, float[2, 3] b) => (float[2, 3] y) {
            p = Gather <axis = 0> (a, zero)  q = Gather <axis = 0> (b, one_d)
            u = Unsqueeze (p, axis)  v = Unsqueeze (q, axis)
            y = Concat <axis = 0> (u, v) }""",
        zero=np.array(0),
        one_d=np.array(1),
        axis=np.array([0]),
    )
    assert support.op_types(rolled_up(model)) == ["Gather", "Gather", "Unsqueeze", "Unsqueeze", "Concat"]


def test_a_stack_along_another_axis_is_a_transpose() -> None:
    model = support.model(
        """g (float[2, 3, 5] a) => (float[3, 2, 5] y) {
            p = Gather <axis = 0> (a, zero)  q = Gather <axis = 0> (a, minus)
            u = Unsqueeze (p, axis)  v = Unsqueeze (q, axis)
            y = Concat <axis = 1> (u, v) }""",
        zero=np.array(0),
        minus=np.array(-1),
        axis=np.array([1]),
    )
    assert support.op_types(rolled_up(model)) == ["Transpose"]
