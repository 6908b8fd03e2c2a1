"""`graphopt explain`: where a rule fired, why it did not elsewhere, and what became of a node."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.model.nodes import describe
from graphopt.passes import pipeline
from graphopt.rewrite.explain import FITS, Explainer, is_anchored_at
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
    assert reason["reason"] == "'x', 'b' is not a constant"


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
        (("--rule", "add-zeros"), 2, "--rule: there is no rule or pass 'add-zeros'; the nearest name is 'add-zero'"),
        (("--node", "yy"), 1, "'two.onnx' has no node or value 'yy'; the nearest name is 'y'."),
        (("--node", "nothing"), 1, "'two.onnx' has no node or value 'nothing'; there are 'a', 'm', 'y', 'v'."),
        ((), 2, "--rule or --node: give one of the two."),
        (("--rule", "add-zero", "--node", "y"), 2, "--rule or --node: give one of the two."),
    ],
)
def test_an_unknown_name_gets_the_nearest(two: Shell, options: tuple[str, ...], status: int, message: str) -> None:
    answer = two.run("explain", "two.onnx", *options)
    assert answer.status == status
    assert message in answer.error


@pytest.fixture
def refused(shell: Shell) -> Shell:
    """An outer product too large to write out, a twin that is an output, other attributes, and a random operator."""
    shell.write("refused.onnx", support.model(
        """g (float[n,200] x) => (float[n,200] y, float[n,200] z) {
            big = Mul(column, row)
            m = MatMul(x, big)
            s = Softmax<axis = 1>(m)
            t = Softmax<axis = 0>(m)
            r = RandomNormalLike(t)
            y = Add(s, r)
            z = Add(s, t)
        }""",
        column=np.arange(200, dtype=np.float32).reshape(200, 1), row=np.arange(200, dtype=np.float32).reshape(1, 200),
    ))  # fmt: skip
    return shell


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("big", "fold-constants did not fire: written out it would make the file 158,336 bytes larger; all folding"),
        ("m", "fold-constants did not fire: 'x' is an input of the graph"),
        ("s", "fold-constants did not fire: 'm' depends on 'x', an input of the graph"),
        ("t", "merge-common-subexpressions did not fire: Softmax 's' reads the same, but the attributes differ"),
        ("m", "merge-common-subexpressions did not fire: nothing before it computes the same"),
        ("r", "merge-common-subexpressions did not fire: it may give another result in each run"),
        ("r", "remove-dead-nodes did not fire: Add 'y' reads 'r'"),
    ],
)
def test_a_pass_that_is_a_function_says_why_it_left_a_node_alone(refused: Shell, node: str, said: str) -> None:
    assert said in refused.run("explain", "refused.onnx", "--node", node).out


def test_too_few_projections_are_counted(shell: Shell) -> None:
    shell.write("two.onnx", support.model(
        "g (float[n,4] x) => (float[n,4] y, float[n,4] z) { y = MatMul(x, a) z = MatMul(x, b) }",
        a=np.eye(4, dtype=np.float32), b=np.eye(4, k=1, dtype=np.float32),
    ))  # fmt: skip
    answer = shell.run("explain", "two.onnx", "--node", "y", "--level", "3")
    assert "merge-projections did not fire: 2 such products read 'x'; there must be 3" in answer.out


def test_a_pass_groups_why_it_left_nodes_alone(refused: Shell) -> None:
    (missed,) = refused.run("explain", "refused.onnx", "--rule", "fold-constants", "--json").json["missed"]
    assert missed["rule"] == "fold-constants"
    reasons = {reason["reason"]: reason["nodes"] for reason in missed["reasons"]}
    assert reasons["'m', 't', ... depends on 'x', an input of the graph"][0] == "Softmax 's'"


def test_a_rule_that_did_not_fire_says_so_once(two: Shell) -> None:
    for rule, last in (
        ("pad-into-conv", "there is no other place in the optimized model where it could fire"),
        ("add-zero", "      at Add 'v'"),
    ):
        lines = two.run("explain", "two.onnx", "--rule", rule).out.splitlines()
        assert len([line for line in lines if "did not fire" in line]) == 1 and lines[-1] == last


def test_every_rule_and_pass_has_something_to_say(two: Shell) -> None:
    """Each at its own level, so that it may fire; what fits and was not applied would be a fault."""
    model = graphopt.load("two.onnx")
    results = {level: graphopt.optimize(model, level=level, verify=False) for level in range(4)}
    for rule in pipeline.rules():
        result = results[rule.level]
        explainer = Explainer(result.model)
        anchored = [node for node in explainer.nodes if is_anchored_at(rule, node)]
        reasons = explainer.reasons(rule, explainer.nodes)
        assert sum(len(reason.nodes) for reason in reasons) == len(anchored), rule.name
        assert all(reason.text and reason.text != FITS for reason in reasons), (rule.name, reasons)
    for step in pipeline.every_pass():
        if step.why is not None:
            explainer = Explainer(results[3].model)
            known = set(map(describe, explainer.nodes))
            for reason in explainer.left_alone(step, explainer.nodes):
                assert reason.text and set(reason.nodes) <= known, step.name
