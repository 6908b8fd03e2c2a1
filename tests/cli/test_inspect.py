"""`graphopt inspect`: what a model consists of and costs."""

from __future__ import annotations

import onnx

from tests import support
from tests.cli.shell import Shell


def test_counts_of_a_small_model(shell: Shell) -> None:
    answer = shell.run("inspect", "in.onnx", "--dim", "batch=10", "--json")
    record = answer.json
    assert record["schema"] == "graphopt.inspect/1"
    assert (record["nodes"], record["parameters"], record["opsets"]) == (5, 12, {"ai.onnx": 17})
    assert record["inputs"] == [{"name": "x", "type": "float", "dims": ["batch", 4], "default": False}]
    assert (record["dynamic_dims"], record["assumed"]) == (["batch"], {"batch": 10})
    costs = {item["op_type"]: (item["nodes"], item["flops"], item["bytes"]) for item in record["operators"]}
    assert costs == {
        "MatMul": (1, 2 * 10 * 4 * 3, 4 * (10 * 4 + 4 * 3 + 10 * 3)),
        "Add": (1, 10 * 3, 4 * (10 * 3 + 3 + 10 * 3)),
        "Relu": (1, 10 * 3, 4 * 2 * 10 * 3),
        "Identity": (1, 0, 0),
        "Constant": (1, 0, 0),
    }
    assert record["flops"] == 300
    assert record["initializers"] == [{"type": "float", "tensors": 1, "parameters": 12, "bytes": 48}]


def test_the_tables(shell: Shell) -> None:
    answer = shell.run("inspect", "in.onnx")
    assert answer.status == 0
    assert "opset ai.onnx 17" in answer.out
    assert "input         x: float[batch, 4]" in answer.out
    assert "dynamic dims  batch" in answer.out
    assert "flops and bytes with batch=1; choose with --dim NAME=SIZE" in answer.out
    assert ("MatMul", "1", "24", "80.0%", "76", "B") in {tuple(line.split()) for line in answer.out.splitlines()}


def test_dims_without_a_name_can_be_chosen(shell: Shell) -> None:
    shell.write("a.onnx", support.model("g (float[?,4] x) => (float[?,4] y) { y = Relu(x) }"))
    record = shell.run("inspect", "a.onnx", "--dim", "x:0=5", "--json").json
    assert (record["dynamic_dims"], record["flops"]) == (["x:0"], 20)


def test_an_unknown_dim_is_refused(shell: Shell) -> None:
    answer = shell.run("inspect", "in.onnx", "--dim", "bathc=2")
    assert answer.status == 1
    assert answer.error == "'in.onnx' has no dynamic dim 'bathc'; the nearest name is 'batch'."


def test_a_size_is_needed(shell: Shell) -> None:
    answer = shell.run("inspect", "in.onnx", "--dim", "batch=N")
    assert answer.status == 2
    assert answer.error == "--dim: 'batch=N' gives no size; give a number, batch=8 for example."


FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[2,4] x) => (float[2,4] y) { a = local.twice(x) y = local.twice(a) }
<opset_import: ["" : 17], domain: "local">
twice (x) => (y) { y = Add(x, x) }"""


def test_functions_are_counted_where_they_are_called(shell: Shell) -> None:
    shell.write("a.onnx", onnx.parser.parse_model(FUNCTION))
    record = shell.run("inspect", "a.onnx", "--json").json
    assert record["flops"] == 2 * 8
    assert record["notes"] == ["model-local functions are counted where they are called"]


def test_what_cannot_be_counted_is_said(shell: Shell) -> None:
    shell.write("a.onnx", support.model("g (float[2] x) => (float[2] y) { a = com.acme.Foo(x) y = Relu(a) }"))
    answer = shell.run("inspect", "a.onnx", "--json")
    counted = {item["op_type"]: item["unknown"] for item in answer.json["operators"]}
    assert counted["com.acme.Foo"] == 1
    assert "nodes of custom operators and of unknown dims are left out of flops and bytes" in answer.err
