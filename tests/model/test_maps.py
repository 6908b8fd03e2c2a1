"""Types that hold maps, as scikit-learn's classifiers give them: kept from load to save, and compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import graphopt
from graphopt.errors import ModelError
from graphopt.model.load import load
from graphopt.model.maps import MapType
from graphopt.model.save import to_proto
from tests import support

LABELS = ["ant", "bee", "cat"]


def _map(key: int) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))


def _classifier(first: float = 0.5) -> onnx.ModelProto:
    """A linear classifier as scikit-learn's converter writes it, with an Identity too many."""
    nodes = [
        helper.make_node("Identity", ["x"], ["features"]),
        helper.make_node(
            "LinearClassifier", ["features"], ["label", "scores"], domain="ai.onnx.ml", post_transform="SOFTMAX",
            coefficients=[first, 1.0, -1.0, 0.25, 0.0, 2.0], intercepts=[0.1, 0.2, 0.3], classlabels_strings=LABELS,
        ),
        helper.make_node("ZipMap", ["scores"], ["chances"], domain="ai.onnx.ml", classlabels_strings=LABELS),
    ]  # fmt: skip
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["n"]),
        helper.make_value_info("chances", helper.make_sequence_type_proto(_map(TensorProto.STRING))),
    ]
    graph = helper.make_graph(
        nodes, "classifier", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])], outputs
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_a_classifier_is_optimized_and_verified(tmp_path: Path) -> None:
    result = graphopt.optimize(_classifier())
    assert result.verification.passed and result.verification.feeds > 0
    result.save(tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert support.op_types(written) == ["LinearClassifier", "ZipMap"]
    assert [value.type for value in written.graph.output] == [value.type for value in _classifier().graph.output]
    feed = {"x": np.array([[1, 2], [-3, 0]], np.float32)}
    (labels, chances), (wanted, others) = (support.session(one).run(None, feed) for one in (written, _classifier()))
    assert labels.tolist() == wanted.tolist() and chances == others


def test_other_chances_are_noticed() -> None:
    assert graphopt.verify(_classifier(), _classifier()).passed
    assert graphopt.verify(_classifier(), _classifier(first=0.75)).status == "different"


def test_the_signature_names_the_type() -> None:
    result = graphopt.optimize(_classifier())
    assert str(result.signature.outputs[1]) == "chances: Sequence(Map(STRING, FLOAT))[?]"
    other = helper.make_sequence_type_proto(_map(TensorProto.INT64))
    assert MapType(other) != MapType(_classifier().graph.output[1].type)


def test_a_map_that_a_branch_gives_is_written_as_it_was_read() -> None:
    branch = _classifier().graph
    branch.ClearField("input")
    del branch.output[0]
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2]),
        ],
        [helper.make_value_info("y", _classifier().graph.output[1].type)],
    )
    proto = helper.make_model(graph, opset_imports=_classifier().opset_import, ir_version=8)
    before = proto.SerializeToString(deterministic=True)
    written = to_proto(load(proto))
    assert proto.SerializeToString(deterministic=True) == before, "what the caller holds is left alone"
    assert written.graph.output[0].type == proto.graph.output[0].type
    inside = [attribute.g.output[0].type for attribute in written.graph.node[0].attribute]
    assert inside == [branch.output[0].type] * 2


def test_optionals_of_maps_have_a_name_too() -> None:
    assert str(MapType(helper.make_optional_type_proto(_map(TensorProto.INT64)))) == "Optional(Map(INT64, FLOAT))"


def test_an_input_that_is_a_map_is_refused_by_name() -> None:
    graph = helper.make_graph(
        [helper.make_node("DictVectorizer", ["words"], ["y"], domain="ai.onnx.ml", string_vocabulary=LABELS)],
        "g",
        [helper.make_value_info("words", _map(TensorProto.STRING))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    with pytest.raises(ModelError, match=r"input 'words' is a Map\(STRING, FLOAT\), for which there are no feeds"):
        graphopt.optimize(helper.make_model(graph, opset_imports=imports, ir_version=8))


SEQUENCE = """g (seq(float[2]) s, int64 i) => (seq(float[2]) y) {
    a = SequenceAt(s, i) b = Identity(a) c = Relu(b) y = SequenceConstruct(c, b)
}"""
OPTIONAL = "g (optional(float[2]) o) => (float[2] y) { a = OptionalGetElement(o) b = Identity(a) y = Relu(b) }"


@pytest.mark.parametrize(("text", "left"), [(SEQUENCE, 3), (OPTIONAL, 2)])
def test_sequences_and_optionals_pass_through(text: str, left: int) -> None:
    proto = support.model(text, opset=18)
    result = graphopt.optimize(proto)
    assert result.verification.passed and result.verification.feeds > 0
    written = result.to_proto()
    assert len(written.graph.node) == left
    assert [value.type for value in written.graph.input] == [value.type for value in proto.graph.input]
    assert isinstance(result.model.graph.inputs[0].type, (ir.SequenceType, ir.OptionalType))
