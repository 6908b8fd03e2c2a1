"""What a newer definition asks that a node of the older one does not have: each is said, with the operator's name."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.passes.versions.lift import _not_extended
from tests import support


@pytest.mark.parametrize(
    ("text", "opset", "reason"),
    [
        ("g (float[4] x) => (float[4] y) { y = Selu (x) }", 5, "the default of 'gamma' is another one"),
        ("g (float[4] x, float t, float a) => (float[8] y) { y = Tile (x, t, a) }", 5,
         "it takes another number of inputs"),
        ("g (float[4] x, float[4] z) => (float[4] y) { y = Add <axis = 0, broadcast = 1> (x, z) }", 6,
         "it has no attribute 'axis' any more"),
    ],
)  # fmt: skip
def test_an_operator_that_has_changed_is_named(text: str, opset: int, reason: str) -> None:
    proto = support.model(text, opset)
    kind = proto.graph.node[0].op_type
    with pytest.raises(OptionError) as refused:
        graphopt.optimize(proto, opset=opset + 1, level=0)
    assert str(refused.value).startswith(f"opset={opset + 1}: {kind} 'y' changes with opset {opset + 1}")
    assert f"no lift is known ({reason})" in str(refused.value)


def schema(kind: str, opset: int) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(kind, opset)


def node(kind: str, inputs: int = 1, outputs: int = 1, **attributes: int) -> ir.Node:
    given = [ir.Value(name=f"i{place}") for place in range(inputs)]
    return ir.Node("", kind, given, ir.convenience.convert_attributes(attributes), num_outputs=outputs)


@pytest.mark.parametrize(
    ("one", "old", "new", "reason"),
    [
        (node("Upsample", 2), ("Upsample", 9), ("Upsample", 10), "it is deprecated"),
        (node("Relu"), ("Relu", 13), ("Cast", 13), "it wants an attribute 'to'"),
        (node("Relu", to=1), ("Relu", 13), ("Cast", 13), None),
        (node("Relu", to=1), ("Relu", 13), ("Relu", 14), "it has no attribute 'to' any more"),
        (node("Selu"), ("Selu", 5), ("Selu", 6), "the default of 'alpha' is another one"),
        (node("Selu", alpha=1), ("Selu", 5), ("Selu", 6), "the default of 'gamma' is another one"),
        (node("Selu", alpha=1, gamma=1), ("Selu", 5), ("Selu", 6), None),
        (node("Relu", 0), ("Relu", 13), ("Relu", 14), "it takes another number of inputs"),
        (node("Relu", 2), ("Relu", 13), ("Relu", 14), "it takes another number of inputs"),
        (node("Relu", 1, 2), ("Relu", 13), ("Relu", 14), "it has fewer outputs"),
        (node("Relu"), ("Relu", 13), ("Relu", 14), None),
        (node("Split", 1, 3), ("Split", 13), ("Split", 13), None),
    ],
)  # fmt: skip
def test_what_a_newer_definition_asks(
    one: ir.Node, old: tuple[str, int], new: tuple[str, int], reason: str | None
) -> None:
    found = _not_extended(one, schema(*old), schema(*new))
    assert found == reason or (found is not None and reason is not None and found.split("'")[0] == reason.split("'")[0])
