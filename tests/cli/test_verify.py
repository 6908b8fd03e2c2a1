"""`graphopt verify`: equal, different, and where two models part."""

from __future__ import annotations

import re

import onnx
import pytest

from tests import support
from tests.cli.shell import TEXT, Shell, small_model

CHAIN = """g (float[batch,4] x) => (float[batch,4] y) {
    a = Relu(x)
    b = Neg(a)
    c = Abs(b)
    d = Sigmoid(c)
    y = Mul(d, c)
}"""


def test_equal_models(shell: Shell) -> None:
    shell.run("optimize", "in.onnx", "out.onnx")
    answer = shell.run("verify", "in.onnx", "out.onnx", "--json")
    assert answer.status == 0
    record = answer.json
    assert (record["schema"], record["equal"], record["divergence"]) == ("graphopt.verify/1", True, None)
    assert record["verification"]["status"] == "verified" and record["verification"]["feeds"] > 10
    assert re.search(r"verification  verified \(1\d feeds, max error 0\)", answer.err)


def test_bisect_names_the_first_value_that_differs(shell: Shell) -> None:
    """Relu and Neg are equal; Abs became Neg, which is equal; Sigmoid became Tanh: d, not y, is where they part."""
    wrong = CHAIN.replace("Abs(b)", "Neg(b)").replace("Sigmoid", "Tanh")
    shell.write("a.onnx", support.model(CHAIN))
    shell.write("b.onnx", support.model(wrong))
    answer = shell.run("verify", "a.onnx", "b.onnx", "--bisect", "--json")
    assert answer.status == 1
    found = answer.json["divergence"]
    assert (found["name"], found["node_a"], found["node_b"]) == ("d", "Sigmoid 'd'", "Tanh 'd'")
    assert found["compared"] == 3 and found["max_rel"] > 1e-3
    assert "more than 4e-06 for float32" in found["reason"]
    assert "first difference  'd': off by" in answer.err
    assert "in B            Tanh 'd'" in answer.err


def test_bisect_follows_the_order_of_the_first_model_and_skips_values_that_one_lacks(shell: Shell) -> None:
    shell.write("a.onnx", support.model(CHAIN))
    shell.write("b.onnx", support.model(CHAIN.replace("d = Sigmoid(c)", "e = Tanh(c)").replace("Mul(d", "Mul(e")))
    answer = shell.run("verify", "a.onnx", "b.onnx", "--bisect", "--json")
    assert answer.json["divergence"]["name"] == "y"


def test_a_difference_without_bisect(shell: Shell) -> None:
    shell.write("a.onnx", support.model(CHAIN))
    shell.write("b.onnx", support.model(CHAIN.replace("Sigmoid", "Tanh")))
    answer = shell.run("verify", "a.onnx", "b.onnx")
    assert answer.status == 1
    assert "verification  different: output 'y': off by" in answer.out
    assert "first difference" not in answer.out


def test_other_inputs_cannot_be_compared(shell: Shell) -> None:
    shell.write("b.onnx", small_model(TEXT.replace(" x)", " z)").replace("(x)", "(z)")))
    answer = shell.run("verify", "in.onnx", "b.onnx")
    assert answer.status == 1
    assert answer.error == "the models cannot be compared: their inputs are ['x'] and ['z']."


@pytest.mark.parametrize("options", [(), ("--bisect",)])
def test_a_model_that_nothing_runs_is_an_error(shell: Shell, options: tuple[str, ...]) -> None:
    impossible = "g (float[2] x) => (float[r] y) { s = Constant<value = int64[1] {3}>() y = Reshape(x, s) }"
    shell.write("a.onnx", support.model(impossible))
    answer = shell.run("verify", "a.onnx", "a.onnx", "--json", *options)
    assert answer.status == 1
    assert "'a.onnx' and 'a.onnx' could not be compared" in answer.error
    assert set(answer.json) == {"error", "schema"}


def test_bisect_passes_around_an_operator_that_nothing_runs(shell: Shell) -> None:
    text = """g (float[2] x) => (float[2] y) {
        a = Relu(x)
        b = com.acme.Foo(a)
        c = Sigmoid(b)
        y = Neg(c)
    }"""
    for name, model in (("a.onnx", text), ("b.onnx", text.replace("Sigmoid", "Tanh"))):
        proto = support.model(model)
        proto.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
        shell.write(name, proto)
    answer = shell.run("verify", "a.onnx", "b.onnx", "--bisect", "--json")
    assert answer.status == 1
    assert answer.json["divergence"]["name"] == "c"
