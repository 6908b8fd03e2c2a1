"""What makes two nodes or two initializers equal: every kind of attribute, of tensor, and what keeps them apart."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from graphopt.model import nodes
from graphopt.passes import pipeline, sharing
from graphopt.rewrite.driver import run_passes
from graphopt.rewrite.editor import Editor
from tests import support

MERGE, SHARE = "merge-common-subexpressions", "share-equal-initializers"


def after(proto: onnx.ModelProto, name: str, **feed: np.ndarray) -> onnx.ModelProto:
    """The model after the pass alone; it gives the same."""
    editor = Editor(ir.from_proto(proto))
    run_passes(editor, pipeline.passes_named(name))
    result = ir.to_proto(editor.model)
    onnx.checker.check_model(result)
    given = feed or support.feeds(proto, {})
    for one, other in zip(support.session(proto).run(None, given), support.session(result).run(None, given),
                          strict=True):  # fmt: skip
        np.testing.assert_array_equal(one, other)
    return result


def two_encoders(**changed: object) -> onnx.ModelProto:
    """Two LabelEncoders of strings, the second with some attributes changed."""
    attributes = {"keys_strings": ["a", "b"], "values_int64s": [1, 2], "default_int64": 7}
    made = [
        helper.make_node("LabelEncoder", ["x"], [name], domain="ai.onnx.ml", **given)
        for name, given in (("p", attributes), ("q", attributes | changed))
    ]
    graph = helper.make_graph(
        [*made, helper.make_node("Sub", ["p", "q"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [3])],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@pytest.mark.parametrize(
    ("changed", "kept"),
    [({}, 1), ({"keys_strings": ["a", "c"]}, 2), ({"values_int64s": [1, 3]}, 2), ({"default_int64": 8}, 2)],
)
def test_lists_of_strings_and_numbers_are_compared(changed: dict[str, object], kept: int) -> None:
    result = after(two_encoders(**changed), MERGE, x=np.array(["a", "c", "b"], object))
    assert support.op_types(result).count("LabelEncoder") == kept


@pytest.mark.parametrize(("second", "kept"), [(["a", "b"], 1), (["a", "c"], 2), ([["a", "b"]], 2)])
def test_tensors_of_strings_are_compared(second: list[object], kept: int) -> None:
    proto = support.model(
        """g (string[2] x) => (bool[A,B] y, bool[C,D] z) {
            a = Constant() b = Constant() y = Equal(x, a) z = Equal(x, b) }""",
        21, 10,
    )  # fmt: skip
    for node, held in zip(proto.graph.node[:2], (["a", "b"], second), strict=True):
        array = np.array(held, object)
        tensor = helper.make_tensor("t", TensorProto.STRING, array.shape, [text.encode() for text in array.reshape(-1)])
        node.attribute.append(helper.make_attribute("value", tensor))
    editor = Editor(ir.from_proto(proto))
    run_passes(editor, pipeline.passes_named(MERGE))
    assert [node.op_type for node in editor.model.graph].count("Constant") == kept


@pytest.mark.parametrize(("second", "kept"), [("one", 1), ("two", 2)])
def test_what_a_function_is_given_is_the_same_only_under_one_name(second: str, kept: int) -> None:
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2,3] x) => (float[2,3] y) {{ y = own.twice<one = 0, two = 1>(x) }}
        <domain: "own", opset_import: ["" : 17]> twice <one, two> (p) => (q) {{
            a = Softmax<axis: int = @one>(p) b = Softmax<axis: int = @{second}>(p) q = Sub(a, b) }}""")
    result = after(proto, MERGE)
    assert [node.op_type for node in result.functions[0].node].count("Softmax") == kept


@pytest.mark.parametrize("key", [nodes.RECOMPUTED, nodes.TILED, nodes.TIED])
def test_what_a_memory_budget_computes_again_stays_apart(key: str) -> None:
    proto = support.model("g (float[4] x) => (float[4] y) { a = Exp(x) b = Exp(x) y = Sub(a, b) }")
    entry = proto.graph.node[1].metadata_props.add()
    entry.key, entry.value = key, "a"
    assert support.op_types(after(proto, MERGE)) == ["Exp", "Exp", "Sub"]
    editor = Editor(ir.from_proto(proto), stop_after=0)
    listed = list(editor.model.graph)
    told = sharing.why_not_merged(editor, listed[:2])
    assert set(told) == set(listed[:2]), "only what was asked for"
    assert told[listed[1]].reason == "it computes a value again or in tiles on purpose, to save memory"
    assert told[listed[0]].reason == "nothing before it computes the same"


def test_why_two_stay_is_told_of_each_kind() -> None:
    proto = support.model(
        """g (float[4] x, bool c) => (float[4] y, float[4] z, float[4] e, float[4] t) {
            y = Exp(x) z = Exp(x) r = RandomUniformLike(x) e = Add(r, x)
            t = If(c) <then_branch = p () => (float[4] k) { k = Exp(x) },
                       else_branch = q () => (float[4] l) { l = Neg(x) }> }"""
    )
    editor = Editor(ir.from_proto(proto), stop_after=0)
    told = sharing.why_not_merged(editor, [node for graph in editor.graphs() for node in graph])
    assert {node.outputs[0].name: (left.reason, left.near) for node, left in told.items()} == {
        "y": ("nothing before it computes the same", False),
        "z": ("Exp 'y' computes the same, but both results have names that must stay", True),
        "r": ("it may give another result in each run", False),
        "e": ("nothing before it computes the same", False),
        "t": ("it holds a graph", False),
        "k": ("Exp 'y' computes the same, but both results have names that must stay", True),
        "l": ("nothing before it computes the same", False),
    }


def test_a_result_of_a_branch_that_the_branch_returns_stays() -> None:
    proto = support.model(
        """g (float[4] x, bool c) => (float[4] y, float[4] t) { a = Exp(x) y = Neg(a)
            t = If(c) <then_branch = p () => (float[4] k) { k = Exp(x) },
                       else_branch = q () => (float[4] l) { m = Exp(x) l = Abs(m) }> }"""
    )
    branches = [attribute.g for attribute in after(proto, MERGE).graph.node[-1].attribute]
    found = {branch.output[0].name: [node.op_type for node in branch.node] for branch in branches}
    assert found == {"k": ["Exp"], "l": ["Abs"]}


def test_initializers_of_strings_are_compared() -> None:
    proto = support.model(
        """g (string[2] x) => (bool[2] y, bool[2] z, bool[2] u) {
            y = Equal(x, a) z = Equal(x, b) u = Equal(x, c) }""",
        21, 10,
    )  # fmt: skip
    for name, held in (("a", [b"p", b"q"]), ("b", [b"p", b"q"]), ("c", [b"p", b"r"])):
        proto.graph.initializer.append(helper.make_tensor(name, TensorProto.STRING, [2], held))
    editor = Editor(ir.from_proto(proto))
    run_passes(editor, pipeline.passes_named(SHARE))
    assert [node.inputs[1].name for node in editor.model.graph if node.inputs[1] is not None] == ["a", "a", "c"]


@pytest.mark.parametrize("place", [0, 1, 5000, 9999])
def test_every_element_of_a_long_vector_counts(place: int) -> None:
    first = np.arange(10_000, dtype=np.float32)
    other = first.copy()
    other[place] += 0.5
    proto = support.model(
        """g (float[1] x) => (float[10000] y, float[10000] z, float[10000] u) {
            y = Add(x, a) z = Add(x, b) u = Add(x, c) }""",
        a=first, b=first.copy(), c=other,
    )  # fmt: skip
    assert sorted(tensor.name for tensor in after(proto, SHARE).graph.initializer) == ["a", "c"]


def test_an_initializer_that_the_graph_returns_or_takes_stays() -> None:
    numbers = np.arange(4, dtype=np.float32)
    proto = support.model(
        """g (float[4] x, float[4] d) => (float[4] y, float[4] z, float[4] c) {
            y = Add(x, a) e = Add(y, b) z = Add(e, d) }""",
        a=numbers, b=numbers.copy(), c=numbers.copy(), d=numbers.copy(),
    )  # fmt: skip
    result = after(proto, SHARE)
    assert sorted(tensor.name for tensor in result.graph.initializer) == ["a", "c", "d"]
    assert [list(node.input) for node in result.graph.node] == [["x", "a"], ["y", "a"], ["e", "d"]]


@pytest.mark.parametrize(
    ("elements", "large", "free", "count", "stored"),
    [
        (8, 1600, 1600, 5, 2),  # what repeats beside them tells that the large ones may
        (7, 1600, 1600, 5, 6),  # so short a vector tells nothing
        (7, 1601, 1600, 5, 2),  # none is large
        (7, 1600, 8000, 5, 2),  # so much is read without a sign
        (7, 1600, 7999, 5, 6),
        (7, 1600, 0, 3, 2),  # so few are always compared
        (7, 1600, 0, 4, 5),
    ],
)
def test_which_large_weights_are_compared(
    elements: int, large: int, free: int, count: int, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each matrix takes 1,600 bytes; all are equal, and so are two vectors."""
    monkeypatch.setattr(sharing, "LARGE", large)
    monkeypatch.setattr(sharing, "FREE_TO_READ", free)
    weight = np.arange(400, dtype=np.float32).reshape(20, 20)
    vector = np.arange(elements, dtype=np.float32)
    names = [f"w{place}" for place in range(count)]
    products = " ".join(f"p{name} = MatMul(x, {name})" for name in names)
    results = ", ".join(f"float[1,20] p{name}" for name in names)
    proto = support.model(
        f"g (float[1,20] x, float[1] z) => ({results}, float[{elements}] a, float[{elements}] b) "
        f"{{ {products} a = Add(z, s) b = Mul(z, t) }}",
        s=vector, t=vector.copy(), **{name: weight.copy() for name in names},
    )  # fmt: skip
    assert len(after(proto, SHARE).graph.initializer) == stored
