"""`target="ort"` as a whole: what is written is valid, equal and loads; the standard target has none of it."""

from __future__ import annotations

import collections

import onnx
import pytest

import graphopt
import models
from graphopt.passes import pipeline
from tests.support import op_types, session

# What the target adds to, and takes from, the operators that the standard target leaves.
DIFFERENCE = {
    "bert_small_rawdynamo": {"Gelu": 4, "MultiHeadAttention": 4, "Sum": 9, "Erf": -4, "Softmax": -4},
    "resnet18_qdq": {"DequantizeLinear": -5},
}


@pytest.mark.parametrize("name", DIFFERENCE)
def test_models_of_the_zoo_are_verified_for_it(name: str, fired: set[str]) -> None:
    model = models.load(name)
    result = graphopt.optimize(model, target="ort")
    proto, standard = result.to_proto(), graphopt.optimize(model, verify=False).to_proto()
    onnx.checker.check_model(proto)
    session(proto)
    assert not result.rolled_back
    assert ("share-equal-initializers-at-the-end" in fired) == (name == "bert_small_rawdynamo"), "weights are joined"
    counted = collections.Counter(op_types(proto))
    counted.subtract(op_types(standard))
    assert {kind: counted[kind] for kind in DIFFERENCE[name]} == DIFFERENCE[name]
    assert {node.domain for node in proto.graph.node} <= {entry.domain for entry in proto.opset_import}
    assert {node.domain for node in standard.graph.node} == {""}


def test_each_level_has_its_share() -> None:
    kept = [
        {rule.name for step in pipeline.select(pipeline.TARGETS["ort"], level, frozenset()) for rule in step.rules}
        for level in (1, 2, 3)
    ]
    assert kept[0] == set()
    assert "multi-head-attention" in kept[1]
    assert kept[2] - kept[1] == {
        "gelu-with-bias", "quick-gelu", "scaled-matmul", "fused-matmul", "fused-gemm", "fused-conv",
    }  # fmt: skip
