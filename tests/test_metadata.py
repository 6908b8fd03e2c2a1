"""Names, doc strings and metadata survive; a fused node says where it came from; the caller's model is not touched."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.rewrite.provenance import PROVENANCE
from tests import support


def _described() -> onnx.ModelProto:
    proto = support.model(
        """g (float[n,2,5,5] x) => (float[n,3,3,3] y) {
            c = Conv(x, w) b = Mul(c, s) r = Relu(b) i = Identity(r) y = Neg(i)
        }""",
        w=np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32),
        s=np.array([1, 2, 3], np.float32).reshape(3, 1, 1),
    )
    proto.doc_string, proto.domain, proto.model_version = "a model", "org.example", 7
    proto.producer_name, proto.producer_version = "exporter", "1.2"
    proto.graph.doc_string = "a graph"
    for owner, name in ((proto, "model"), (proto.graph, "graph"), (proto.graph.input[0], "input")):
        owner.metadata_props.add(key=name, value="kept")
    proto.graph.input[0].doc_string = "an input"
    for node, name in zip(proto.graph.node, ("conv", "scale", "act", "same", "sign"), strict=True):
        node.name, node.doc_string = name, f"doc of {name}"
        node.metadata_props.add(key="owner", value=name)
    annotation = proto.graph.quantization_annotation.add(tensor_name="r")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    return proto


def test_everything_that_stays_keeps_what_was_written_on_it() -> None:
    result = graphopt.optimize(_described()).to_proto()
    assert (result.doc_string, result.domain, result.model_version) == ("a model", "org.example", 7)
    assert (result.producer_name, result.producer_version) == ("exporter", "1.2")
    assert result.graph.doc_string == "a graph"
    assert [(p.key, p.value) for p in result.metadata_props] == [("model", "kept")]
    assert [(p.key, p.value) for p in result.graph.metadata_props] == [("graph", "kept")]
    assert [(p.key, p.value) for p in result.graph.input[0].metadata_props] == [("input", "kept")]
    assert result.graph.input[0].doc_string == "an input"
    nodes = {node.name: node for node in result.graph.node}
    assert list(nodes) == ["scale", "act", "sign"]
    assert nodes["act"].doc_string == "doc of act"
    assert {p.key: p.value for p in nodes["act"].metadata_props} == {"owner": "act"}
    assert list(nodes["act"].output) == ["r"]
    assert [annotation.tensor_name for annotation in result.graph.quantization_annotation] == ["r"]


def test_a_fused_node_says_where_it_came_from() -> None:
    result = graphopt.optimize(_described()).to_proto()
    fused = next(node for node in result.graph.node if node.op_type == "Conv")
    assert list(fused.output) == ["b"]  # the value keeps its name
    provenance = next(p.value for p in fused.metadata_props if p.key == PROVENANCE)
    assert provenance == "affine-after-layer(Mul, conv)"


def test_the_model_that_was_given_is_not_changed() -> None:
    proto = _described()
    before = proto.SerializeToString(deterministic=True)
    graphopt.optimize(proto)
    assert proto.SerializeToString(deterministic=True) == before
    model = ir.from_proto(_described())
    text = str(model)
    graphopt.optimize(model)
    assert str(model) == text


def test_levels_do_what_they_say() -> None:
    """0 cleans up, 1 folds and computes, 2 goes into weights."""
    text = """g (float[n,4] x) => (float[n,4] y) {
        i = Identity(x) two = Add(one, one) p = Add(i, two) q = Add(p, one) m = MatMul(q, w) y = Mul(m, one)
    }"""
    counts = []
    for level in range(4):
        proto = support.model(text, one=np.full(1, 1.5, np.float32), w=np.eye(4, dtype=np.float32))
        result = graphopt.optimize(proto, level=level)
        assert result.verification.passed
        counts.append(support.op_types(result.to_proto()))
    assert counts[0] == ["Add", "Add", "Add", "MatMul", "Mul"]
    assert counts[1] == ["Add", "MatMul", "Mul"]
    assert counts[2] == ["Add", "MatMul"] or counts[2] == ["MatMul", "Add"] or counts[2] == ["Gemm"]
    assert counts[3] == counts[2]


def test_skipping_a_pass_or_a_rule() -> None:
    text = "g (float[n,4] x) => (float[n,4] y) { i = Identity(x) a = Neg(i) b = Neg(a) y = Relu(b) }"
    kept = support.op_types(graphopt.optimize(support.model(text), skip=["double-negation"]).to_proto())
    assert kept == ["Neg", "Neg", "Relu"]
    kept = support.op_types(graphopt.optimize(support.model(text), skip=["elimination", "algebra"]).to_proto())
    assert kept == ["Identity", "Neg", "Neg", "Relu"]


def test_simplify_is_a_drop_in() -> None:
    text = "g (float[n,4] x) => (float[n,4] y) { i = Identity(x) y = Relu(i) }"
    model, ok = graphopt.simplify(support.model(text))
    assert ok
    assert support.op_types(model) == ["Relu"]
    fixed, ok = graphopt.simplify(support.model(text), overwrite_input_shapes={"x": [2, 4]})
    assert ok
    assert [dim.dim_value for dim in fixed.graph.input[0].type.tensor_type.shape.dim] == [2, 4]


FUSED = {
    "gelu": (
        20,
        "g (float[n,4] x) => (float[n,4] y) { d = Div(x, r) e = Erf(d) p = Add(e, o) m = Mul(x, p) y = Mul(m, h) }",
        {"r": np.array(2**0.5, np.float32), "o": np.array(1, np.float32), "h": np.array(0.5, np.float32)},
    ),
    "layer-normalization": (
        17,
        """g (float[n,4] x) => (float[n,4] y) {
            m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes = [-1]>(q)
            e = Add(v, eps) s = Sqrt(e) y = Div(d, s)
        }""",
        {"eps": np.array(1e-5, np.float32)},
    ),
    "matmul-add-to-gemm": (
        17,
        "g (float[n,4] x) => (float[n,3] y) { m = MatMul(x, w) y = Add(m, b) }",
        {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)},
    ),
    "merge-clamps": (
        17,
        "g (float[n,4] x) => (float[n,4] y) { a = Relu(x) y = Clip(a, lo, hi) }",
        {"lo": np.array(-1, np.float32), "hi": np.array(6, np.float32)},
    ),
    "transpose-of-transpose": (
        17,
        """g (float[2,3,4] x) => (float[3,4,2] y) {
            a = Transpose<perm = [2, 0, 1]>(x) y = Transpose<perm = [2, 0, 1]>(a)
        }""",
        {},
    ),
    "split-into-tensors": (
        17,
        """g (float[6,4] x) => (float[2,4] y) {
            s = SplitToSequence<axis = 0>(x, sizes) a = SequenceAt(s, i0) b = SequenceAt(s, i1) y = Add(a, b)
        }""",
        {"sizes": np.array([2, 2, 2]), "i0": np.array(0), "i1": np.array(1)},
    ),
    "merge-projections": (
        17,
        """g (float[n,4] x) => (float[n,3] y) {
            q = MatMul(x, a) k = MatMul(x, b) v = MatMul(x, c) p = Mul(q, k) y = Mul(p, v)
        }""",
        {name: np.arange(12, dtype=np.float32).reshape(4, 3) + shift for shift, name in enumerate("abc")},
    ),
}


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("rule", FUSED)
def test_what_stands_for_several_nodes_names_them(rule: str, named: bool) -> None:
    opset, text, weights = FUSED[rule]
    proto = support.model(text, opset, 10 if opset > 17 else 8, **weights)
    names = {}
    for position, node in enumerate(proto.graph.node):
        names[node.output[0]] = f"node{position}"
        if named:
            node.name = f"node{position}"
        node.metadata_props.add(key=f"owner{position}", value="kept")
    result = graphopt.optimize(proto, level=3)
    assert rule in {item.rule for item in result.rewrites}
    written = [
        (prop.value, node)
        for node in result.to_proto().graph.node
        for prop in node.metadata_props
        if prop.key == PROVENANCE and f"{rule}(" in prop.value
    ]
    assert len(written) == 1
    line, node = written[0]
    listed = line.split(f"{rule}(")[1].split(")")[0].split(", ")
    assert len(listed) >= 2
    if named:
        assert any(name in names.values() for name in listed)
    else:
        assert set(listed) <= {other.op_type for other in proto.graph.node}
    assert sum(prop.value == "kept" for prop in node.metadata_props) >= 2
