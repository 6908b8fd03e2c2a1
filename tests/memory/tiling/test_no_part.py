"""Operators of which no range of the result is told: one reason at a time, beside one that has a part."""

from __future__ import annotations

import onnx
import pytest

from graphopt.memory.tiling.locality import part
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.model.operators.parts import Range
from tests import support

FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[4,6] x) => (float[4,6] y) { y = own.Relu(x) }
    <domain: "own", opset_import: ["" : 17]> Relu (p) => (q) { q = Neg(p) }"""
OPEN = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[4,6] x) => (float[4,6] y) { y = own.f<to = 1>(x) }
    <domain: "own", opset_import: ["" : 17]> f <to> (p) => (q) { q = Cast<to: int = @to>(p) }"""


def told(proto: onnx.ModelProto, axis: int = 0, place: int = -1) -> bool:
    """Whether positions 1 and 2 along an axis of what the node makes have a part."""
    model = load(proto)
    return part(Facts(model), list(model.graph)[place], Range(axis, 1, 3)) is not None


def test_an_elementwise_operator_has_the_same_rows() -> None:
    model = load(support.model("g (float[4,6] x) => (float[4,6] y) { y = Relu(x) }"))
    found = part(Facts(model), next(iter(model.graph)), Range(0, 1, 3))
    assert found is not None and found.inputs == (Range(0, 1, 3),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("g (float[4,6] x) => (float[4,6] y) { y = RandomUniformLike(x) }", "two runs differ"),
        ("g (float[n,6] x) => (float[n,6] y) { y = Relu(x) }", "no number of rows is known"),
        ("g (float[4,6] x, float[n,6] z) => (float[4,6] y) { y = Add(x, z) }", "those of an operand are not known"),
        ("g (float[4,6] x) => (float[4,6] y, uint8[4,6] q) { q, s, z = DynamicQuantizeLinear(x) y = Neg(x) }",
         "its scale is of all elements"),
        ("g (float[4,6] x, float t) => (float[4,6] y, float[4,6] q) { q = CastLike(x, t) y = Neg(x) }",
         "no rule for ranges"),
        ("g (float[4,6] x) => (float[4,6] y, float[4,2] v, int64[4,2] i) <int64[1] k = {2}> "
         "{ i0, i = TopK<axis = 1>(x, k) v = Neg(i0) y = Neg(x) }", "it has two results"),
    ],
)  # fmt: skip
def test_what_has_no_part(text: str, why: str) -> None:
    assert not told(support.model(text), place=0), why


def test_an_axis_that_the_result_does_not_have() -> None:
    assert not told(support.model("g (float[4,6] x) => (float[4,6] y) { y = Relu(x) }"), axis=2)
    assert told(support.model("g (float[4,6] x) => (float[4,6] y) { y = Relu(x) }"), axis=1)


def test_a_function_of_the_same_name_is_another_operator() -> None:
    assert not told(onnx.parser.parse_model(FUNCTION))


@pytest.mark.parametrize(("kind", "known"), [("to: int = @to", False), ("to = 1", True)])
def test_what_a_caller_gives_is_not_known(kind: str, known: bool) -> None:
    model = load(onnx.parser.parse_model(OPEN.replace("to: int = @to", kind)))
    (function,) = model.functions.values()
    assert (part(Facts(model), next(iter(function)), Range(0, 1, 3)) is not None) == known
