"""Passes that are wrong on purpose are caught, bisected to the rewrite, rolled back and named."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.check.given import Given
from graphopt.check.verification import UNCHANGED
from graphopt.model.load import load
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.optimizer import Outcome, optimize_verified
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, rule
from tests import support

CHAIN = support.model(
    """g (float[n,4] x) => (float[n,4] y, float[n,4] z) {
        a = Identity(x)
        b = Relu(a)
        c = Identity(b)
        d = Neg(c)
        y = Identity(d)
        e = Abs(c)
        z = Sigmoid(e)
    }"""
)


@rule(op("Identity", var("x")), level=0)
def remove_identity(match: Match) -> Replacement:
    """Identity(x)  -->  x"""
    return match["x"]


@rule(op("Neg", var("x")), level=1)
def neg_is_abs(match: Match) -> Replacement:
    """Neg(x)  -->  Abs(x), which is wrong"""
    return match.op("Abs", match["x"])


@rule(op("Abs", var("x")), level=1)
def abs_is_nothing(match: Match) -> Replacement:
    """Abs(x)  -->  x, which is wrong for negative numbers and right behind a Relu"""
    return match["x"]


@rule(op("Abs", var("x")), level=1)
def abs_is_nothing_at_all(match: Match) -> Replacement:
    """Abs(x)  -->  Sin(x), which is wrong"""
    return match.op("Sin", match["x"])


@rule(op("Sigmoid", var("x")), level=1)
def sigmoid_with_a_newer_operator(match: Match) -> Replacement:
    """Sigmoid(x)  -->  Swish(x), which does not exist at opset 17"""
    return match.op("Swish", match["x"])


@rule(op("Relu", var("x")), level=1)
def crashes(match: Match) -> Replacement:
    """Raises an error of its own."""
    raise ZeroDivisionError("a bug in a rule")


def _rename_output(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Breaks the signature."""
    output = editor.model.graph.outputs[0]
    if output.name == "y" and editor.accept("rename-output", output):
        output.name = "renamed"


def _narrow_input(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Narrows a declared dim."""
    value = editor.model.graph.inputs[0]
    if value.shape is not None and not isinstance(value.shape[0], int) and editor.accept("narrow-input", value):
        value.shape = ir.Shape([2, 4])


def _optimize(*passes: Pass) -> Outcome:
    return optimize_verified(load(CHAIN), (passes,), seconds=60)


def test_right_rules_are_kept() -> None:
    outcome = _optimize(Pass("elimination", 0, (remove_identity,)))
    assert outcome.verification.status == "verified"
    assert outcome.verification.feeds > 10  # of a cheap model: every draw, and n above 16 and 32 besides
    assert {1, 2} < {size["n"] for size in outcome.verification.sizes}
    assert [node.op_type for node in outcome.model.graph] == ["Relu", "Neg", "Abs", "Sigmoid"]
    assert outcome.rolled_back == ()


def test_a_wrong_rule_is_found_among_right_ones_and_only_it_is_taken_back() -> None:
    outcome = _optimize(Pass("elimination", 0, (remove_identity,)), Pass("wrong", 1, (neg_is_abs, abs_is_nothing)))
    assert outcome.verification.status == "verified"
    assert [(item.rule, item.site) for item in outcome.rolled_back] == [("neg-is-abs", "y")]
    assert "output 'y'" in outcome.rolled_back[0].reason
    assert [node.op_type for node in outcome.model.graph] == ["Relu", "Neg", "Sigmoid"]


def test_each_wrong_rewrite_is_told_by_what_it_broke_itself() -> None:
    """Both outputs are wrong in the end; the first wrong rewrite breaks z, which the first verdict does not name."""
    proto = support.model("g (float[n,4] x) => (float[n,4] y, float[n,4] z) { z = Abs(x) y = Neg(x) }")
    outcome = optimize_verified(load(proto), ((Pass("wrong", 1, (abs_is_nothing_at_all, neg_is_abs)),),), seconds=60)
    assert [(item.site, "output 'z'" in item.reason) for item in outcome.rolled_back] == [("z", True), ("y", False)]
    assert "output 'y'" in outcome.rolled_back[1].reason


def test_an_operator_newer_than_the_opset_is_taken_back() -> None:
    outcome = _optimize(Pass("wrong", 1, (sigmoid_with_a_newer_operator, remove_identity)))
    assert [item.rule for item in outcome.rolled_back] == ["sigmoid-with-a-newer-operator"]
    assert "not a valid model" in outcome.rolled_back[0].reason
    assert outcome.verification.status == "verified"


def test_a_rule_that_raises_is_left_out_and_named() -> None:
    outcome = _optimize(Pass("broken", 1, (crashes, remove_identity)))
    assert [(item.rule, item.reason) for item in outcome.rolled_back] == [
        ("crashes", "ZeroDivisionError: a bug in a rule")
    ]
    assert [node.op_type for node in outcome.model.graph] == ["Relu", "Neg", "Abs", "Sigmoid"]


def _fails(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    raise KeyError("a bug in a pass")


def test_a_pass_that_raises_is_left_out_and_named() -> None:
    outcome = _optimize(Pass("broken", 1, run=_fails), Pass("elimination", 0, (remove_identity,)))
    assert [(item.rule, item.site, item.reason) for item in outcome.rolled_back] == [
        ("broken", "*", "KeyError: 'a bug in a pass'")
    ]
    assert [node.op_type for node in outcome.model.graph] == ["Relu", "Neg", "Abs", "Sigmoid"]


@pytest.mark.parametrize(("function", "name"), [(_rename_output, "rename-output"), (_narrow_input, "narrow-input")])
def test_a_changed_signature_is_taken_back(function: object, name: str) -> None:
    outcome = _optimize(Pass("elimination", 0, (remove_identity,)), Pass("signature", 0, run=function))  # type: ignore[arg-type]
    assert [item.rule for item in outcome.rolled_back] == [name]
    assert "signature" in outcome.rolled_back[0].reason or "loaded" in outcome.rolled_back[0].reason
    assert outcome.model.graph.outputs[0].name == "y"


def test_many_wrong_rewrites_block_the_rule_as_a_whole() -> None:
    lines = "\n".join(f"y{i} = Neg(x)\nz{i} = Relu(y{i})" for i in range(20))
    outputs = ", ".join(f"float[3] z{i}" for i in range(20))
    model = support.model(f"g (float[3] x) => ({outputs}) {{ {lines} }}")
    outcome = optimize_verified(load(model), ((Pass("wrong", 1, (neg_is_abs,)),),), seconds=60)
    assert outcome.verification.status == "verified"
    assert {node.op_type for node in outcome.model.graph} == {"Neg", "Relu"}
    assert len(outcome.rolled_back) == 9  # eight single rewrites, and with the ninth the rule


def test_many_failures_block_the_rule_as_a_whole() -> None:
    for count, taken in ((8, 8), (20, 9)):
        lines = "\n".join(f"y{i} = Neg(x)\nz{i} = Relu(y{i})" for i in range(count))
        outputs = ", ".join(f"float[3] z{i}" for i in range(count))
        model = support.model(f"g (float[3] x) => ({outputs}) {{ {lines} }}")
        outcome = optimize_verified(load(model), ((Pass("broken", 1, (crashes,)),),), seconds=None)
        assert [item.site for item in outcome.rolled_back] == [f"z{number}" for number in range(taken)]


def test_a_run_tells_what_it_is_at() -> None:
    told: list[str] = []
    passes = (Pass("elimination", 0, (remove_identity,)), Pass("wrong", 1, (neg_is_abs,)))
    optimize_verified(load(CHAIN), (passes,), seconds=60, progress=told.append)
    run = ["elimination", "wrong", "elimination", "wrong"]
    assert [text for text in told if text.startswith("verification")] == [
        "verification: running the original", "verification: comparing", "verification: looking for the guilty rewrite",
        "verification: comparing",
    ]  # fmt: skip
    assert told[: len(run)] == run and told[-2] == "elimination"


def test_stages_run_one_after_the_other() -> None:
    first, second = Pass("elimination", 0, (remove_identity,)), Pass("right", 1, (abs_is_nothing,))
    outcome = optimize_verified(load(CHAIN), ((first,), (second,)), seconds=None)
    assert [(record.name, record.rewrites) for record in outcome.passes] == [("elimination", 3), ("right", 1)]
    assert outcome.verification.status == "off"


def test_what_is_not_changed_is_not_run() -> None:
    outcome = optimize_verified(load(CHAIN), ((Pass("nothing", 0, ()),),), seconds=60)
    assert outcome.verification == UNCHANGED
    only_wrong = optimize_verified(load(CHAIN), ((Pass("wrong", 1, (neg_is_abs,)),),), seconds=60)
    assert only_wrong.verification == UNCHANGED and len(only_wrong.rolled_back) == 1
    feed = Given("mine", {"x": np.ones((2, 4), np.float32)}, {})
    given = optimize_verified(load(CHAIN), ((Pass("nothing", 0, ()),),), seconds=60, given=[feed])
    assert given.verification.passed and given.verification.feeds, "who gives feeds wants them run"


def test_stop_after_cuts_the_run() -> None:
    passes = (Pass("elimination", 0, (remove_identity,)),)
    for count in range(4):
        outcome = optimize_verified(load(CHAIN), (passes,), stop_after=count, seconds=60)
        assert len(outcome.log) == count
        assert len(outcome.model.graph) == 7 - count
        assert outcome.verification.passed


def test_without_verification_nothing_is_taken_back() -> None:
    outcome = optimize_verified(load(CHAIN), ((Pass("wrong", 1, (neg_is_abs,)),),), seconds=None)
    assert outcome.verification.status == "off"
    expected = support.session(CHAIN).run(None, {"x": np.ones((1, 4), np.float32)})[0]
    found = support.session(ir.to_proto(outcome.model)).run(None, {"x": np.ones((1, 4), np.float32)})[0]
    assert not np.array_equal(expected, found)
