"""`explain`: where a rule or pass fired, what became of a node, and why a rule did not fire."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.flows.optimize import DEFAULT_LEVEL, optimize
from graphopt.flows.records.models import ExplainRecord, ReasonLine, RuleReasons
from graphopt.flows.result import OptimizeResult, rewrite_lines
from graphopt.model.load import load
from graphopt.model.nodes import describe, graphs_of
from graphopt.model.text import Progress, nearest, silent
from graphopt.passes import pipeline
from graphopt.passes.meaning import doc_of
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.explain import Explainer, NearMisses, Reason, find_node, fired, is_anchored_at, touching
from graphopt.rewrite.rule import Rule

NEAR_TRIES = 50_000  # of rules at nodes


def unknown_rule(name: str) -> str | None:
    """What to say of a name that no rule and no pass has; None for one that is known."""
    names = [*(rule.name for rule in pipeline.rules()), *pipeline.names()]
    return None if name in names else f"there is no rule or pass '{name}'; {nearest(name, names)}."


def explain_rule(
    source: Path, rule: str, *, level: int = DEFAULT_LEVEL, progress: Progress | None = None
) -> ExplainRecord:
    """Where a rule or pass fires in a model, and why not elsewhere; raises OptionError for a name that none has."""
    fault = unknown_rule(rule)
    if fault is not None:
        raise OptionError(fault)
    result = optimize(source, level=level, verify=False, progress=progress)
    (progress or silent)("looking for reasons")
    return _of_rule(result, rule, str(source), level)


def explain_node(
    source: Path, node: str, *, level: int = DEFAULT_LEVEL, progress: Progress | None = None
) -> ExplainRecord:
    """What became of a node, by its name or that of a value; raises OptionError for a name that none has."""
    original = load(source)
    known = _require_node(original, node, str(source))
    result = optimize(original, level=level, verify=False, progress=progress)
    (progress or silent)("looking for reasons")
    return _of_node(result, known, node, str(source), level)


def near_misses(result: OptimizeResult) -> NearMisses:
    """Where rules nearly fired on the optimized model, for a page."""
    steps = [step for stage in pipeline.stages(result.request) for step in stage]
    # A copy: rules are tried on it, and the model may still be written.
    return Explainer(result.model.clone()).near_misses(steps, result.request.level, NEAR_TRIES)


def _require_node(model: ir.Model, name: str, source: str) -> ir.Node:
    every = [node for graph in graphs_of(model) for node in graph]
    found = find_node(every, name)
    if found is None:
        names = [item for node in every for item in (node.name, *(value.name for value in node.outputs)) if item]
        raise OptionError(f"'{source}' has no node or value '{name}'; {nearest(name, names)}.")
    return found


def _of_rule(result: OptimizeResult, name: str, source: str, level: int) -> ExplainRecord:
    explainer = Explainer(result.model)
    rules = [rule for rule in pipeline.rules() if rule.name == name]
    steps = list(pipeline.passes_named(name))
    text = rules[0].doc if rules else doc_of(steps[0])
    if rules:
        missed: tuple[RuleReasons, ...] = (_reasons(explainer, rules[0], explainer.nodes),)
    else:
        missed = tuple(_left_alone(explainer, step, explainer.nodes) for step in steps if step.why is not None)
    too_high = rules[0].level if rules else steps[0].level
    if too_high > level:
        text += f"\n\nNot run at level {level}: it needs level={too_high}."
    return ExplainRecord(
        model=source,
        subject="rule" if rules else "pass",
        name=name,
        level=level,
        text=text,
        fired=rewrite_lines(fired(result.rewrites, name)),
        rolled_back=tuple(item for item in result.rolled_back if item.rule == name),
        missed=missed,
    )


def _of_node(result: OptimizeResult, node: ir.Node, name: str, source: str, level: int) -> ExplainRecord:
    explainer = Explainer(result.model)
    log = touching(result.rewrites, node)
    final = find_node(explainer.nodes, name)
    if final is None:
        text = f"{describe(node)} is not in the optimized model."
        missed: tuple[RuleReasons, ...] = ()
    else:
        same = final.op_type == node.op_type
        text = f"{describe(node)} is {'still' if same else f'now {describe(final)}'} in the optimized model."
        rules = dict.fromkeys(rule for rule in pipeline.rules() if rule.level <= level and is_anchored_at(rule, final))
        asked = [_left_alone(explainer, step, [final]) for step in pipeline.every_pass() if step.level <= level]
        missed = (
            *(item for item in asked if item.reasons),
            *(_reasons(explainer, rule, [final]) for rule in rules),
        )
    return ExplainRecord(
        model=source,
        subject="node",
        name=name,
        level=level,
        text=text,
        fired=rewrite_lines(log),
        rolled_back=tuple(item for item in result.rolled_back if item.site in {output.name for output in node.outputs}),
        missed=missed,
    )


def _reasons(explainer: Explainer, rule: Rule, where: Sequence[ir.Node]) -> RuleReasons:
    return RuleReasons(rule.name, rule.level, rule.doc, _lines(explainer.reasons(rule, where)))


def _left_alone(explainer: Explainer, step: Pass, where: Sequence[ir.Node]) -> RuleReasons:
    return RuleReasons(step.name, step.level, doc_of(step), _lines(explainer.left_alone(step, where)))


def _lines(reasons: Sequence[Reason]) -> tuple[ReasonLine, ...]:
    return tuple(ReasonLine(reason.named, len(reason.nodes), reason.nodes) for reason in reasons)
