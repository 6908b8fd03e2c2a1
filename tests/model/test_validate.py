"""The door says no: every refusal of `validate`, made to happen and read in full."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphopt
from graphopt.errors import ModelError
from tests import support

Fault = Callable[[onnx.ModelProto], object]


def _model() -> onnx.ModelProto:
    """x -> Transpose -> a -> MatMul with w -> y, with a function that nothing calls."""
    proto = support.model(
        "g (float[2,3] x) => (float[3,4] y) { a = Transpose <perm = [1, 0]> (x) y = MatMul(a, w) }",
        w=np.ones((2, 4), np.float32),
    )
    proto.functions.append(_function("twice", [helper.make_node("Add", ["v", "v"], ["r"])]))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


def _function(name: str, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["v"], ["r"], nodes, imports)


def _call(name: str, given: str = "v", result: str = "r") -> onnx.NodeProto:
    return helper.make_node(name, [given], [result], domain="own")


def _weight(proto: onnx.ModelProto) -> onnx.TensorProto:
    return proto.graph.initializer[0]


def _doubling(proto: onnx.ModelProto) -> None:
    """Each of 22 functions calls the one before twice."""
    for number in range(22):
        before = f"f{number - 1}" if number else "twice"
        proto.functions.append(_function(f"f{number}", [_call(before, "v", "m"), _call(before, "m", "r")]))
    proto.graph.node.append(_call("f21", "x", "z"))


def _recursive(proto: onnx.ModelProto) -> None:
    proto.functions.append(_function("here", [_call("there")]))
    proto.functions.append(_function("there", [_call("here")]))


def _external(**entries: str) -> Fault:
    def outside(proto: onnx.ModelProto) -> None:
        tensor = _weight(proto)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)

    return outside


def _text_outside(proto: onnx.ModelProto) -> None:
    _external(location="w.bin")(proto)
    _weight(proto).data_type = TensorProto.STRING


def _floats_in_integers(proto: onnx.ModelProto) -> None:
    tensor = _weight(proto)
    tensor.ClearField("raw_data")
    tensor.data_type = TensorProto.INT64
    tensor.float_data.extend([1.0] * 8)


def _few_values(proto: onnx.ModelProto) -> None:
    tensor = _weight(proto)
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0] * 7)


def _raw_text(proto: onnx.ModelProto) -> None:
    _weight(proto).data_type = TensorProto.STRING


def _dims(*dims: int) -> Fault:
    def lie(proto: onnx.ModelProto) -> None:
        _weight(proto).dims[:] = dims

    return lie


def _node(change: Callable[[onnx.NodeProto], object], place: int = 0) -> Fault:
    return lambda proto: change(proto.graph.node[place])


def _sixty_seven_dims(proto: onnx.ModelProto) -> None:
    for _ in range(65):
        proto.graph.input[0].type.tensor_type.shape.dim.add()


def _shift_nowhere(node: onnx.NodeProto) -> None:
    node.op_type = "BitShift"
    node.attribute[0].CopyFrom(helper.make_attribute("direction", b"\xff"))


def _cast_to_nothing(node: onnx.NodeProto) -> None:
    node.ClearField("attribute")
    node.op_type = "Cast"


def _set(name: str, value: object) -> Fault:
    """Set a field of the model; dots lead inside, numbers are places."""

    def change(proto: onnx.ModelProto) -> None:
        holder: object = proto
        *way, last = name.split(".")
        for step in way:
            holder = holder[int(step)] if step.isdigit() else getattr(holder, step)  # type: ignore[index]
        setattr(holder, last, value)

    return change


NODE = "node Transpose 'a'"
FAULTS: dict[str, tuple[Fault, str]] = {
    "no IR version": (
        _set("ir_version", 0), "the model claims IR version 0, which does not exist; export the model again.",
    ),
    "an opset of no time": (
        _set("opset_import.1.version", 1 << 40),
        "the model claims opset version 1,099,511,627,776, which does not exist; export the model again.",
    ),
    "no outputs": (
        lambda proto: proto.graph.ClearField("output"),
        "the model has no outputs, so there is nothing to compute; export the model again.",
    ),
    "an input of no type": (
        lambda proto: proto.graph.input[0].ClearField("type"),
        "the model: input 'x' has no type; export the model "
        "again.",
    ),
    "a null character in a name": (
        _set("graph.node.0.name", "a\0b\x1b[31m"),
        "the model: 'a\\x00b\\x1b[31m' in field 'onnx.NodeProto.name' has a null character, where a name "
        "ends; rename it.",
    ),
    "a null character in a tensor's name": (
        _set("graph.initializer.0.doc_string", "a\0b"),
        "the model is damaged: tensor 'w' holds 'a\\x00b', which is no text; export the model again.",
    ),
    "a null character in a location": (
        _external(location="a\0b"),
        "the model is damaged: tensor 'w' holds 'a\\x00b', which is no text; export the model again.",
    ),
    "an unknown data type": (
        _set("graph.initializer.0.data_type", 99),
        "the model: tensor 'w' has the unknown data type 99; export the model again.",
    ),
    "negative dims": (
        _dims(-2, 4), "the model: tensor 'w' has the impossible dims [-2, 4]; export the model again.",
    ),
    "dims beyond any memory": (
        _dims(1 << 40, 1 << 40),
        "the model: tensor 'w' has the impossible dims [1,099,511,627,776, 1,099,511,627,776]; export the model again.",
    ),
    "too many dims": (
        _dims(*[1] * 65),
        "the model: tensor 'w' has the impossible dims [1, 1, 1, 1, 1, 1, 1, 1, ...]; export the model again.",
    ),
    "dims that lie about bytes": (
        _dims(3, 4),
        "the model: tensor 'w' with dims [3, 4] of float needs 48 bytes and holds 32; export the model again.",
    ),
    "dims that lie about values": (
        _few_values,
        "the model: tensor 'w' with dims [2, 4] of float needs 8 values and holds 7; export the model "
        "again.",
    ),
    "values of another type": (
        _floats_in_integers,
        "the model: tensor 'w' with dims [2, 4] of int64 has its values in the field of another type; export the model "
        "again.",
    ),
    "text as bytes": (
        _raw_text, "the model: tensor 'w' holds text as bytes, which ONNX does not allow; export the model again.",
    ),
    "text outside": (
        _text_outside, "the model: tensor 'w' holds text, which cannot lie in a data file; export the model again.",
    ),
    "no location": (
        _external(offset="0"), "the model: tensor 'w' lies in a data file that is not named; export the model again.",
    ),
    "an offset that is no number": (
        _external(location="w.bin", offset="-4"),
        "the model: the offset of tensor 'w' in 'w.bin' is '-4', which is no number of bytes; export the model again.",
    ),
    "a length that is no number": (
        _external(location="w.bin", length="1e3"),
        "the model: the length of tensor 'w' in 'w.bin' is '1e3', which is no number of bytes; export the model again.",
    ),
    "two functions of one name": (
        lambda proto: proto.functions.append(proto.functions[0]),
        "the model has two functions 'twice'; export the model again.",
    ),
    "functions that call each other": (
        _recursive, "the model: function 'here' calls itself, which ONNX does not allow; export the model again.",
    ),
    "functions without end": (
        _doubling,
        "the model has 4,194,306 nodes when its functions take the place of their calls, more than "
        "1,000,000; export the "
        "model in parts.",
    ),
    "an output without a name": (
        _set("graph.output.0.name", ""), "the model has an input or output without a name; export the model again.",
    ),
    "an unknown element type": (
        _set("graph.input.0.type.tensor_type.elem_type", 99),
        "the model: value 'x' has the unknown element type 99; export the model again.",
    ),
    "a value of too many dims": (
        _sixty_seven_dims,
        "the model: value 'x' has 67 dims; export it again.",
    ),
    "two outputs of one name": (
        _node(lambda node: node.output.__setitem__(0, "a"), 1),
        "the model: value 'a' is defined twice; export the model again.",
    ),
    "an input computed again": (
        _node(lambda node: node.output.__setitem__(0, "x")),
        "the model: value 'x' is defined twice; export the model again.",
    ),
    "a node without an operator": (
        _set("graph.node.0.op_type", ""), "the model: node  'a' has no operator; export the model again.",
    ),
    "an attribute twice": (
        _node(lambda node: node.attribute.append(node.attribute[0])),
        f"the model: {NODE} has an attribute twice, or one without a name; export the model again.",
    ),
    "an attribute of no value": (
        _set("graph.node.0.attribute.0.type", onnx.AttributeProto.TENSOR),
        f"the model: attribute 'perm' of {NODE} does not hold the value that its type names; export the model again.",
    ),
    "an attribute of another type": (
        _node(lambda node: node.attribute[0].CopyFrom(helper.make_attribute("perm", 1.5))),
        f"the model: attribute 'perm' of {NODE} is of type FLOAT, the operator takes INTS; export the model again.",
    ),
    "an attribute that is no text": (
        _node(_shift_nowhere),
        "the model: attribute 'direction' of node BitShift 'a' holds b'\\xff', which is no text; export the model "
        "again.",
    ),
    "a missing attribute": (
        _node(_cast_to_nothing),
        "the model: node Cast 'a' lacks the attribute 'to'; export the model again.",
    ),
    "too few inputs": (
        _node(lambda node: node.input.pop(), 1),
        "the model: node MatMul 'y' has 1 inputs, the operator takes 2 to 2; export the model again.",
    ),
    "too many outputs": (
        _node(lambda node: node.output.append("more")),
        f"the model: {NODE} has 2 outputs, the operator takes 1 to 1; export the model again.",
    ),
    "a function that reads what nobody gives": (
        lambda proto: proto.functions[0].node[0].input.__setitem__(0, "u"),
        "the model, function 'twice': node Add 'r' reads 'u', which nothing defines; the model was cut or "
        "edited wrongly, "
        "export it again.",
    ),
    "a function that does not compute its result": (
        lambda proto: proto.functions[0].output.__setitem__(0, "u"),
        "the model, function 'twice': output 'u' is not computed by any node; export the model again.",
    ),
    "an IR version of the future": (
        _set("ir_version", 255),
        f"the model has IR version 255, but the installed onnx {onnx.__version__} knows versions up to "
        f"{onnx.IR_VERSION}; upgrade onnx or export the model with an older exporter.",
    ),
}  # fmt: skip


def test_the_model_that_is_damaged_here_is_right_before() -> None:
    assert len(graphopt.load(_model()).graph) == 2


@pytest.mark.parametrize("name", FAULTS)
def test_a_damaged_model_is_refused_by_its_sentence(name: str) -> None:
    fault, sentence = FAULTS[name]
    proto = _model()
    fault(proto)
    with pytest.raises(ModelError) as caught:
        graphopt.load(proto)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("place", ["producer", "tensor"])
def test_text_that_is_no_text_is_refused(place: str) -> None:
    proto = _model()
    proto.producer_name = "producer"
    proto.graph.initializer[0].doc_string = "a tensor"
    data = proto.SerializeToString().replace(place.encode(), b"\xff" * len(place))
    with pytest.raises(ModelError, match=r"which is no (UTF-8 )?text; |is not an ONNX protobuf"):
        graphopt.load(data)


def test_an_output_of_a_subgraph_must_be_computed_in_it() -> None:
    proto = support.model(
        """g (bool c, float[2] x) => (float[2] y) {
          a = Neg(x)
          y = If (c) <
            then_branch = t () => (float[2] u) { u = Abs(a) },
            else_branch = e () => (float[2] v) { v = Exp(a) }>
        }"""
    )
    assert graphopt.load(proto).graph.num_nodes() == 2
    proto.graph.node[1].attribute[0].g.output[0].name = "a"
    with pytest.raises(ModelError) as caught:
        graphopt.load(proto)
    assert str(caught.value) == (
        "the model: output 'a' of the graph 't' is not computed by any node; export the model again."
    )


@pytest.mark.parametrize("kind", ["float", "int64"])
def test_what_only_one_operator_objects_to_is_left_to_whoever_runs_it(kind: str) -> None:
    """A Slice with two starts and one end: it loads, and is neither inferred nor a traceback."""
    proto = support.model(
        f"g ({kind}[4,4] x) => ({kind}[a,b] y) {{ z = Neg(x) y = Slice(z, starts, ends) }}",
        starts=np.array([1, 1], np.int64), ends=np.array([2], np.int64),
    )  # fmt: skip
    assert graphopt.optimize(proto).verification.status in ("verified", "not run")


def test_a_tensor_whose_name_is_no_text_is_refused() -> None:
    data = support.model("g (float[2] x) => (float[2] y) { y = Add(x, name) }", name=np.ones(2, np.float32))
    damaged = data.SerializeToString().replace(b"B\x04name", b"B\x04na\xffe")
    with pytest.raises(ModelError, match=r"^the model is damaged: a tensor holds b'na\\xffe', which is no text;"):
        graphopt.load(damaged)
