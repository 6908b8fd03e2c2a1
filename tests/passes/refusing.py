"""Hands for tables of refusals: a rule, the reason it must give, and a graph in which one condition does not hold."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from _pytest.mark import ParameterSet

from graphopt.passes import pipeline
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.explain import Explainer, is_anchored_at
from graphopt.rewrite.rule import Refused

RULES = {rule.name: rule for rule in pipeline.rules()}


def refusal(rule: str, reason: str, proto: onnx.ModelProto) -> ParameterSet:
    """A row of a table: the parameters `rule`, `reason` and `proto` of a test."""
    return pytest.param(rule, reason, proto, id=f"{rule}: {reason}")


def refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    """The rule changes nothing, and gives exactly this reason at one of the nodes it looks at."""
    editor = Editor(ir.from_proto(proto))
    run_passes(editor, [Pass("test", 1, (RULES[rule],))])
    assert editor.log == []
    explainer = Explainer(ir.from_proto(proto))
    given = [explainer.reason(RULES[rule], node) for node in explainer.nodes if is_anchored_at(RULES[rule], node)]
    assert reason in given, f"other reasons are given: {given}"


def pass_refuses(name: str, reason: str, proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass, a function, changes nothing, and one of the refusals within it has exactly this reason."""
    given: list[str] = []
    monkeypatch.setattr(Refused, "__init__", lambda _, text: given.append(text))
    editor = Editor(ir.from_proto(proto))
    run_passes(editor, pipeline.passes_named(name))
    assert editor.log == []
    assert reason in given, f"other reasons are given: {given}"
