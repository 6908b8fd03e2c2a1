"""`graphopt explain`: where a rule fired, why it did not elsewhere, and what became of a node."""

from __future__ import annotations

import numpy as np
import pytest

from tests import support
from tests.cli.shell import Shell

TWO = """g (float[n,4] x, float[n,3] z) => (float[n,3] y, float[n,3] v) {
    a = Identity(x)
    m = MatMul(a, w)
    y = Add(m, b)
    v = Add(z, y)
}"""


@pytest.fixture
def two(shell: Shell) -> Shell:
    """The first Add has a constant bias, the second has not."""
    weights = {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)}
    shell.write("two.onnx", support.model(TWO, 17, 8, **weights))
    return shell


def test_a_rule_that_fired_once_and_missed_once(two: Shell) -> None:
    answer = two.run("explain", "two.onnx", "--rule", "matmul-add-to-gemm", "--json")
    assert answer.status == 0
    record = answer.json
    assert (record["schema"], record["subject"]) == ("graphopt.explain/1", "rule")
    assert [item["site"] for item in record["fired"]] == ["y"]
    (missed,) = record["missed"]
    assert missed["rule"] == "matmul-add-to-gemm"
    assert [reason["nodes"] for reason in missed["reasons"]] == [["Add 'v'"]]
    assert "fired 1 time:" in answer.err
    assert "did not fire at 1 place:" in answer.err
    assert two.files() == {"in.onnx", "two.onnx"}, "nothing is written"


def test_equal_reasons_are_grouped_whatever_names_they_quote(shell: Shell) -> None:
    shell.write("a.onnx", support.model(
        """g (float[2,3] x, float[2,3] z) => (float[2,3] y) {
            a = Add(x, z)
            b = Mul(a, x)
            c = Add(b, a)
            y = Mul(c, b)
        }"""
    ))  # fmt: skip
    (missed,) = shell.run("explain", "a.onnx", "--rule", "add-zero", "--json").json["missed"]
    (reason,) = missed["reasons"]
    assert (reason["count"], reason["nodes"]) == (2, ["Add 'a'", "Add 'c'"])
    assert reason["reason"] == "'...' is not a constant"


def test_a_pass_tells_what_it_does_and_where_it_fired(two: Shell) -> None:
    answer = two.run("explain", "two.onnx", "--rule", "elimination", "--json")
    assert answer.json["subject"] == "pass"
    assert [item["rule"] for item in answer.json["fired"]] == ["identity"]
    answer = two.run("explain", "two.onnx", "--rule", "fold-constants")
    assert "constant subgraph  -->  its value" in answer.out
    assert "did not fire" in answer.out


def test_a_rule_above_the_level_is_said_to_be_left_out(two: Shell) -> None:
    answer = two.run("explain", "two.onnx", "--rule", "matmul-add-to-gemm", "--level", "1")
    assert "Not run at level 1: it needs --level 2." in answer.out
    assert "  1 x it fits here, but was not applied" in answer.out


@pytest.mark.parametrize("name", ["a", "m"])
def test_a_node_that_is_gone(two: Shell, name: str) -> None:
    record = two.run("explain", "two.onnx", "--node", name, "--json").json
    assert record["subject"] == "node"
    assert "is not in the optimized model" in record["text"]
    assert len(record["fired"]) == 1 and f"'{name}'" in " ".join(record["fired"][0]["before"])


def test_a_node_that_stays_tells_why_no_rule_took_it(two: Shell) -> None:
    answer = two.run("explain", "two.onnx", "--node", "v")
    assert answer.status == 0
    assert "Add 'v' is still in the optimized model." in answer.out
    assert "not touched by any rewrite" in answer.out
    assert "add-zero did not fire: " in answer.out


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--rule", "add-zeros"), 2, "--rule: there is no rule or pass 'add-zeros'; the nearest names are add-zero"),
        (("--node", "yy"), 1, "'two.onnx' has no node or value 'yy'; the nearest names are y."),
        (("--node", "nothing"), 1, "'two.onnx' has no node or value 'nothing'; there are a, m, y, v."),
        ((), 2, "--rule or --node: give one of the two."),
        (("--rule", "add-zero", "--node", "y"), 2, "--rule or --node: give one of the two."),
    ],
)
def test_an_unknown_name_gets_the_nearest(two: Shell, options: tuple[str, ...], status: int, message: str) -> None:
    answer = two.run("explain", "two.onnx", *options)
    assert answer.status == status
    assert message in answer.error
