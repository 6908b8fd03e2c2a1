"""What a rule may ask of the place where it fits, and how it builds what it puts there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.rewrite import rule as rules
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Refused, Replacement, any_node, bind, rule
from tests import support

TEXT = """g (float[n,4] x, seq(float) s, float[2,3] z) => (float[n,4] y) {
    e = SequenceAt(s, i) a = Add(x, w) o = ConstantOfShape(axes) u = mine.Op(x) y = Neg(a)
}"""


def place(opset: int = 17) -> Match:
    """At the Neg, whose operand is `a`; beside it stand values of which less is known."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "mine" : 1]>\n{TEXT}')
    for name, array in {"w": np.arange(4, dtype=np.float32), "i": np.array(0), "axes": np.array([1, 2])}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = ir.from_proto(proto)
    root = list(model.graph)[-1]
    binding = bind(root)
    for node in model.graph:
        binding.values.update({str(value.name): value for value in (*node.inputs, *node.outputs) if value is not None})
    binding.values.update({str(value.name): value for value in model.graph.inputs})
    return Match(root, binding, Facts(model))


# The question, and what is answered or why nothing is.
ASKED: list[tuple[Callable[[Match], object], object]] = [
    (lambda match: match.static_shape("z"), (2, 3)),
    (lambda match: str(match.shape("x")), "(n, 4)"),
    (lambda match: match.static_shape("x"), "a dimension of 'x' is not known"),
    (lambda match: match.static_shape(match["x"]), "a dimension of 'x' is not known"),
    (lambda match: match.shape("u"), "the shape of 'u' is not known"),
    (lambda match: match.rank(match["e"]), "the shape of 'e' is not known"),
    (lambda match: match.rank("a"), 2),
    (lambda match: match.dtype("a"), ir.DataType.FLOAT),
    (lambda match: match.dtype("u"), "the type of 'u' is not known"),
    (lambda match: match.array("w").tolist(), [0, 1, 2, 3]),
    (lambda match: match.array("o").shape, (1, 2)),
    (lambda match: match.array("x"), "'x' is not a constant"),
    (lambda match: match.readable(match["o"]), None),
    (lambda match: match.readable(match["a"]), "'a' is not a constant"),
    (lambda match: match.ints(match["axes"], "the shape"), (1, 2)),
    (lambda match: match.ints(match["a"], "the shape"), "the shape is not constant"),
    (lambda match: match.require([], "nothing is there"), "nothing is there"),
    (lambda match: match.require([0], "nothing is there"), None),
    (lambda match: match.refuse("never"), "never"),
    (lambda match: match.opset, 17),
    (lambda match: match.output.name, "y"),
]


@pytest.mark.parametrize(("ask", "answer"), ASKED)
def test_what_a_rule_may_ask(ask: Callable[[Match], object], answer: object) -> None:
    try:
        assert ask(place()) == answer
    except Refused as refusal:
        assert str(refusal) == answer


def test_a_weight_on_the_disk_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = support.model("g (float[8] x) => (float[8] y) { y = Add(x, w) }", w=np.ones(8, np.float32))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    model = load(tmp_path / "m.onnx")
    (node,) = model.graph
    match = Match(node, bind(node), Facts(model))
    weight = node.inputs[1]
    assert weight is not None
    monkeypatch.setattr(rules, "READ_LIMIT", 32)
    assert match.array(weight).tolist() == [1] * 8, "32 bytes are no more than 32"
    monkeypatch.setattr(rules, "READ_LIMIT", 31)
    with pytest.raises(Refused, match="'w' is 0 MB on disk, too much to compute with"):
        match.array(weight)


# Operator, inputs by name ('' stands for none), attributes, and the node that is written for an opset.
BUILT: list[tuple[int, str, str, dict[str, object], str]] = [
    (11, "ReduceSum", "x", {"axes": [1], "keepdims": 0}, "ReduceSum(x) axes=[1] keepdims=0"),
    (13, "ReduceSum", "x", {"axes": [1], "keepdims": 0}, "ReduceSum(x, [1]) keepdims=0"),
    (17, "ReduceMean", "x", {"axes": [1]}, "ReduceMean(x) axes=[1]"),
    (18, "ReduceMean", "x", {"axes": [1]}, "ReduceMean(x, [1])"),
    (12, "Squeeze", "x", {"axes": [0]}, "Squeeze(x) axes=[0]"),
    (13, "Squeeze", "x", {"axes": None}, "Squeeze(x)"),
    (9, "Slice", "x", {"starts": [0], "ends": [2], "axes": [1]}, "Slice(x) starts=[0] ends=[2] axes=[1]"),
    (10, "Slice", "x", {"starts": [0], "ends": [2], "axes": [1]}, "Slice(x, [0], [2], [1])"),
    (13, "Slice", "x", {"starts": [0], "ends": [2], "steps": [2]}, "Slice(x, [0], [2], , [2])"),
    (17, "CumSum", "x", {"axis": 1, "reverse": 1}, "CumSum(x, 1) reverse=1"),
    (17, "Clip", "x w ", {}, "Clip(x, w)"),
    (17, "Clip", "x  w", {}, "Clip(x, , w)"),
    (17, "LeakyRelu", "x", {"alpha": 0.5, "unused": None}, "LeakyRelu(x) alpha=0.5"),
]


@pytest.mark.parametrize(("opset", "kind", "inputs", "attributes", "written"), BUILT)
def test_a_parameter_is_written_where_the_opset_has_it(
    opset: int, kind: str, inputs: str, attributes: dict[str, object], written: str
) -> None:
    match = place(opset)
    read = [match[name] if name else None for name in inputs.split(" ")]
    node = match.node_of(kind, *read, attributes=attributes)  # type: ignore[arg-type]
    operands = [
        "" if value is None else str(value.const_value.numpy().tolist()) if value.name is None else value.name
        for value in node.inputs
    ]
    said = "".join(f" {each.name}={each.value}" for each in node.attributes.values())
    assert (
        f"{kind}({', '.join(operands)}){said}".replace("(1,)", "[1]").replace("(0,)", "[0]").replace("(2,)", "[2]")
        == written
    )
    assert match.new_nodes == [node]
    assert match.facts.opset(node) == opset, "a new node is read under the imports of the one that it replaces"


def test_an_attribute_given_is_of_a_like_node_or_says_otherwise() -> None:
    match = place()
    old = ir.Node("", "Gemm", [], [ir.AttrFloat32("alpha", 2.0), ir.AttrInt64("transB", 1)], num_outputs=1)
    made = match.node_of("Gemm", match["x"], like=old, attributes={"alpha": 3.0, "transB": None}, outputs=1)
    assert {name: each.value for name, each in made.attributes.items()} == {"alpha": 3.0}
    kept = match.op("Gemm", match["x"], like=old, attributes={"transB": ir.AttrInt64("transB", 0)}).producer()
    assert kept is not None
    assert {name: each.value for name, each in kept.attributes.items()} == {"alpha": 2.0, "transB": 0}
    split = match.node_of("Split", match["x"], outputs=3, domain="mine")
    assert len(split.outputs) == 3 and split.domain == "mine"
    assert split.outputs[0] is not match.op("Split", match["x"])


# Elements, opset, and whether the constant of ones is written as a ConstantOfShape.
SPLATS = [(64, 17, False), (65, 17, True), (65, 9, True), (65, 8, False)]


@pytest.mark.parametrize(("size", "opset", "short"), SPLATS)
def test_a_number_that_repeats_is_written_once_where_that_is_shorter(size: int, opset: int, short: bool) -> None:
    match = place(opset)
    value = match.constant(np.broadcast_to(np.float32(2), (size,)))
    node = value.producer()
    assert (node is not None) is short
    if node is None:
        assert value.const_value is not None and value.const_value.numpy().tolist() == [2] * size
    else:
        assert node.op_type == "ConstantOfShape" and node.attributes["value"].as_tensor().numpy().tolist() == [2]
    held = match.facts.array(value)
    assert held is not None and held.tolist() == [2] * size and match.static_shape(value) == (size,)


def test_numbers_that_differ_are_written_out() -> None:
    match = place()
    value = match.constant(np.arange(100, dtype=np.float32), ir.DataType.FLOAT)
    assert value.producer() is None and match.new_constants == [value]
    assert match.facts.array(value) is not None and match.dtype(value) == ir.DataType.FLOAT
    assert match.facts.ints(match.ints_constant(3, 4)) == (3, 4)
    assert match.ints_constant().const_value.shape == (0,)  # type: ignore[union-attr]


def test_a_deferred_constant_is_computed_once_and_when_it_is_read() -> None:
    match, calls = place(), []

    def compute() -> np.ndarray:
        calls.append("computed")
        return np.ones((2, 3), np.float32)

    value = match.deferred((2, 3), ir.DataType.FLOAT, compute, name="late")
    assert match.static_shape(value) == (2, 3) and value.name == "late" and not calls
    assert value.const_value is not None
    assert value.const_value.numpy().sum() == value.const_value.numpy().sum() == 6 and calls == ["computed"]


def test_new_weights_of_a_model_on_disk_are_counted() -> None:
    match = place()
    match.facts.memory_left = 24
    match.constant(np.arange(6, dtype=np.float32))
    match.deferred((2, 3), ir.DataType.FLOAT, lambda: np.ones((2, 3), np.float32))
    match.facts.memory_left = 23
    for build in (
        lambda: match.constant(np.arange(6, dtype=np.float32)),
        lambda: match.deferred((2, 3), ir.DataType.FLOAT, lambda: np.ones((2, 3), np.float32)),
    ):
        with pytest.raises(Refused, match="too many new weights for a model with weights on disk"):
            build()


def chain(*kinds: str) -> ir.Node:
    """The last of operators that read one another; the first reads an input."""
    body = " ".join(f"v{number + 1} = {kind}(v{number})" for number, kind in enumerate(kinds))
    return list(ir.from_proto(support.model(f"g (float[4] v0) => (float[4] v{len(kinds)}) {{ {body} }}")).graph)[-1]


@pytest.mark.parametrize(
    ("kinds", "fits"),
    [
        (("Neg",), False),
        (("Exp", "Neg"), True),
        (("Exp", "Abs", "Neg"), True),
        (("Exp", "Abs", "Abs", "Neg"), False),
        (("Abs", "Neg"), False),
        (("Abs", "Exp"), False),
    ],
)
def test_a_rule_that_names_its_neighbours_looks_two_operators_up(kinds: tuple[str, ...], fits: bool) -> None:
    @any_node("Neg", level=1, near=("Exp", "Log"))
    def looking_up(match: Match) -> Replacement:
        """Never."""
        match.refuse("it is only asked whether it is tried")

    @any_node(level=2)
    def anywhere(match: Match) -> Replacement:
        """Never."""
        match.refuse("it is only asked whether it is tried")

    assert looking_up.may_fit(chain(*kinds)) is fits
    assert anywhere.may_fit(chain(*kinds))
    assert (looking_up.name, looking_up.anchors, looking_up.level) == ("looking-up", ("Neg",), 1)
    assert (anywhere.name, anywhere.anchors, anywhere.doc) == ("anywhere", ("*",), "Never.")


def test_an_operand_that_is_left_out_has_nothing_above_it() -> None:
    @any_node("Clip", level=1, near=("Exp",))
    def looking_up(match: Match) -> Replacement:
        """Never."""
        match.refuse("it is only asked whether it is tried")

    text = "g (float[4] x) => (float[4] y) { p = Clip(x, , w) q = Exp(w) y = Clip(p, , w) }"
    last = list(ir.from_proto(support.model(text, w=np.array(1, np.float32))).graph)[-1]
    assert not looking_up.may_fit(last)


def test_a_rule_has_its_functions_name_unless_it_is_given_one() -> None:
    def _to_nothing(match: Match) -> Replacement:
        """Relu(x)  -->  x"""
        return match["x"]

    pattern = op("Relu", var("x"))
    assert rule(pattern, level=1)(_to_nothing).name == "to-nothing"
    made = rule(pattern, level=1, name="other")(_to_nothing)
    assert (made.name, made.anchors, made.doc) == ("other", ("Relu",), "Relu(x)  -->  x")
    assert made.may_fit(chain("Relu")), "a pattern looks at the operands"
