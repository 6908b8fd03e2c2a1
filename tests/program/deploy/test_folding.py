"""What is folded before a model is cut: the bounds on what results take, and what is left alone for another reason."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.model.facts import Facts
from graphopt.program.deploy import folding
from graphopt.program.deploy.folding import fold_constants, reads_only_constants
from tests import support


def _left(text: str, opset: int = 20, **arrays: np.ndarray) -> list[str]:
    """The operators that are left of a model."""
    return [
        node.op_type for node in fold_constants(ir.from_proto(support.model(text, opset, **arrays)), whole=False).graph
    ]


@pytest.mark.parametrize(("times", "folded"), [(12, True), (13, False)])
def test_a_result_may_be_eight_times_what_it_is_made_of(
    times: int, folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 bytes of numbers and 8 of how often they are repeated: 192 bytes, which is 12 times the numbers."""
    monkeypatch.setattr(folding, "SMALL", 0)
    text = f"g (float[{4 * times}] x) => (float[{4 * times}] y) {{ t = Tile(w, count) y = Add(x, t) }}"
    left = _left(text, w=np.arange(4, dtype=np.float32), count=np.array([times]))
    assert left == (["Add"] if folded else ["Tile", "Add"])


@pytest.mark.parametrize(("small", "folded"), [(128, True), (127, False)])
def test_a_small_result_is_always_folded(small: int, folded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "SMALL", small)
    text = "g (float[32] x) => (float[32] y) { t = Tile(one, count) y = Add(x, t) }"
    arrays = {"one": np.arange(1, dtype=np.float32), "count": np.array([32])}
    assert _left(text, **arrays) == (["Add"] if folded else ["Tile", "Add"])


def test_nodes_in_a_row_are_folded_together() -> None:
    text = """g (float[3,4] x) => (float[3,4] y) {
        a = Transpose(w) b = Neg(a) c, d = Split<num_outputs = 2>(b) y = Add(x, d)
    }"""
    assert _left(text, w=np.arange(24, dtype=np.float32).reshape(4, 6)) == ["Add"]


STAYS = {
    "no operands": ("g () => (float[4] y) { y = RandomNormal<shape = [4]>() }", ["RandomNormal"]),
    "random": ("g (float[4] x) => (float[4] y) { r = RandomNormalLike(w) y = Add(x, r) }", ["RandomNormalLike", "Add"]),
    "an unknown operator": ("g (float[4] x) => (float[4] y) { r = other.Foo(w) y = Add(x, r) }", ["Foo", "Add"]),
    "a computed operand": ("g (float[4] x) => (float[4] y) { y = Add(x, w) }", ["Add"]),
    "a splat": (
        "g (float[4] x) => (float[4] y) { s = ConstantOfShape(four) y = Add(x, s) }", ["ConstantOfShape", "Add"]
    ),
    "a product of integers": (
        "g (float[4,4] x) => (float[4,4] y) { q = QuantizeLinear(x, half) d = DequantizeLinear(q, half)"
        " v = DequantizeLinear(bytes, half) y = MatMul(d, v) }",
        ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"],
    ),
    "a product of floats": (
        "g (float[4,4] x) => (float[4,4] y) { v = DequantizeLinear(bytes, half) y = MatMul(x, v) }", ["MatMul"]
    ),
    "a sum of two dequantized": (
        "g (float[4,4] x) => (float[4,4] y) { q = QuantizeLinear(x, half) d = DequantizeLinear(q, half)"
        " v = DequantizeLinear(bytes, half) y = Add(d, v) }", ["QuantizeLinear", "DequantizeLinear", "Add"],
    ),
    "a product of two constants": (
        "g (float[4,4] x) => (float[4,4] y) { v = DequantizeLinear(bytes, half) u = DequantizeLinear(other, half)"
        " p = MatMul(v, u) y = Add(x, p) }", ["Add"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    text, left = STAYS[name]
    found = _left(
        text, w=np.arange(4, dtype=np.float32), four=np.array([4]), half=np.float32(0.5),
        bytes=np.arange(16, dtype=np.uint8).reshape(4, 4), other=np.ones((4, 4), np.uint8),
    )  # fmt: skip
    assert found == left


def test_a_result_that_is_given_out_keeps_its_name_and_one_that_nobody_reads_is_gone() -> None:
    proto = support.model(
        "g (float[4] x) => (float[4] y, float[2] c) { c, d = Split<num_outputs = 2>(w) y = Neg(x) }", 20,
        w=np.arange(4, dtype=np.float32),
    )  # fmt: skip
    folded = fold_constants(ir.from_proto(proto), whole=False)
    assert [value.name for value in folded.graph.outputs] == ["y", "c"]
    assert folded.graph.outputs[1].const_value.numpy().tolist() == [0, 1]
    assert "d" not in folded.graph.initializers


def test_a_node_with_a_subgraph_reads_more_than_its_operands() -> None:
    proto = support.model(
        """g (float[4] x) => (float[4] y) {
            t = If (yes) <then_branch = a () => (float[4] p) { p = Identity(x) },
                          else_branch = b () => (float[4] q) { q = Neg(x) }> y = Neg(t)
        }""", 20, yes=np.array(True),
    )  # fmt: skip
    model = ir.from_proto(proto)
    node = next(iter(model.graph))
    assert not reads_only_constants(Facts(model), node)
