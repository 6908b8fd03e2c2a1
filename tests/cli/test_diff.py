"""`graphopt diff`: nodes matched by what they compute, initializers, signature, opsets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import support
from tests.cli.shell import TEXT, Shell, small_model


def test_a_model_and_its_optimized_form(shell: Shell) -> None:
    shell.run("optimize", "in.onnx", "out.onnx")
    answer = shell.run("diff", "in.onnx", "out.onnx", "--json")
    assert answer.status == 0
    record = answer.json
    assert record["schema"] == "graphopt.diff/1" and record["identical"] is False and record["signature"] == []
    assert [node["outputs"] for node in record["only_in_a"]] == [["a"], ["m"], ["c"]]
    assert record["only_in_b"] == []
    (change,) = record["changed"]
    assert (change["output"], change["op_type_a"], change["op_type_b"]) == ("n", "Add", "Gemm")
    assert change["changes"][:2] == ["operator Add -> Gemm", "input 0 'm' -> 'x'"]
    assert {(item["op_type"], item["a"], item["b"]) for item in record["types"]} >= {("Identity", 1, 0), ("Gemm", 0, 1)}
    assert record["initializers_added"] == [{"name": "c", "type": "float[3]", "bytes": 12}]
    assert "  Gemm 'n': operator Add -> Gemm" in answer.err
    heads = [line.partition(":")[0] for line in answer.err.splitlines() if line[:1].strip() and ": " in line]
    assert heads == ["changed", "only in A", "initializers added"]


def test_the_same_model(shell: Shell) -> None:
    answer = shell.run("diff", "in.onnx", "in.onnx")
    assert answer.status == 0
    assert answer.out.splitlines() == ["A in.onnx", "B in.onnx", "no differences"]


def test_signature_opset_attributes_and_data(shell: Shell) -> None:
    other = small_model(TEXT.replace("batch", "n").replace("{1, 2, 3}", "{1, 2, 4}"), opset=18)
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((4, 3), np.float32), "w"))
    shell.write("b.onnx", other)
    record = shell.run("diff", "in.onnx", "b.onnx", "--json").json
    assert record["signature"][0] == "input x: float[batch, 4] -> float[n, 4]"
    assert record["header"] == ["opset of ai.onnx 17 -> 18"]
    assert record["changed"] == [
        {
            "output": "c", "op_type_a": "Constant", "op_type_b": "Constant",
            "changes": ["value float[3] [1.0, 2.0, 3.0] -> float[3] [1.0, 2.0, 4.0]"],
        }
    ]  # fmt: skip
    assert record["initializers_changed"] == [{"name": "w", "type": "float[4,3]", "bytes": 48}]


BRANCHES = """g (bool c, float[2] x) => (float[2] y) {
    y = If(c) <
        then_branch = t () => (float[2] a) { a = Neg(x) },
        else_branch = e () => (float[2] b) { b = Abs(x) }
    >
}"""


def test_nodes_of_subgraphs_are_compared_in_their_place(shell: Shell) -> None:
    shell.write("a.onnx", support.model(BRANCHES))
    shell.write("b.onnx", support.model(BRANCHES.replace("Abs", "Relu")))
    record = shell.run("diff", "a.onnx", "b.onnx", "--json").json
    assert [(item["output"], item["changes"]) for item in record["changed"]] == [("b", ["operator Abs -> Relu"])]


@pytest.mark.parametrize(("one", "other", "same"), [(float("nan"), float("nan"), True), (0.0, -0.0, False)])
def test_data_are_compared_bit_by_bit(shell: Shell, one: float, other: float, same: bool) -> None:
    text = "g (float[1] x) => (float[1] y) { y = Add(x, k) }"
    for name, number in (("a.onnx", one), ("b.onnx", other)):
        shell.write(name, support.model(text, k=np.array([number], np.float32)))
    assert shell.run("diff", "a.onnx", "b.onnx", "--json").json["identical"] is same
