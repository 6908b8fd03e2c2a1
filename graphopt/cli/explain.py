"""`graphopt explain`: where a rule or pass fired, what became of a node, and why a rule did not fire."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import onnx_ir as ir
import typer

from graphopt import api
from graphopt.cli import convert
from graphopt.cli.options import Json, Level, UsageError, console, print_json, progress
from graphopt.errors import OptionError
from graphopt.model.nodes import describe, graphs_of
from graphopt.model.text import nearest
from graphopt.passes import pipeline
from graphopt.report.explanation import print_explain
from graphopt.report.meaning import doc_of
from graphopt.report.records import ExplainRecord, RuleReasons
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.explain import Explainer, find_node, fired, is_anchored_at, touching
from graphopt.rewrite.rule import Rule


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model to read.")],
    rule: Annotated[str | None, typer.Option(metavar="NAME", help="A rule or a pass.")] = None,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="A node's name, or a value it computes.")] = None,
    level: Level = api.DEFAULT_LEVEL,
    json: Json = False,
) -> None:
    """Tell where a rule fired and why not elsewhere (--rule), or what was done to a node and why not more (--node).

    Optimizes IN without verification and writes nothing. Reasons are those on the optimized graph.
    """
    if (rule is None) == (node is None):
        raise UsageError("--rule or --node", "give one of the two.")
    if rule is not None and not _known(rule):
        names = [*(item.name for item in pipeline.rules()), *pipeline.names()]
        raise UsageError("--rule", f"there is no rule or pass '{rule}'; {nearest(rule, names)}.")
    with progress(f"optimizing {source.name}") as tell:
        original = api.load(source)
        known = None if node is None else _require_node(original, node, source)
        result = api.optimize(original, level=level, verify=False, progress=tell)
        tell("looking for reasons")
        if rule is not None:
            record = _of_rule(result, rule, str(source), level)
        else:
            assert node is not None and known is not None, "one of the two is given"
            record = _of_node(result, known, node, str(source), level)
    if json:
        print_json(record)
    print_explain(console(json), record)


def _known(name: str) -> bool:
    return name in pipeline.names() or any(rule.name == name for rule in pipeline.rules())


def _require_node(model: ir.Model, name: str, source: Path) -> ir.Node:
    every = [node for graph in graphs_of(model) for node in graph]
    found = find_node(every, name)
    if found is None:
        names = [item for node in every for item in (node.name, *(value.name for value in node.outputs)) if item]
        raise OptionError(f"'{source}' has no node or value '{name}'; {nearest(name, names)}.")
    return found


def _of_rule(result: api.OptimizeResult, name: str, source: str, level: int) -> ExplainRecord:
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
        text += f"\n\nNot run at level {level}: it needs --level {too_high}."
    return ExplainRecord(
        model=source,
        subject="rule" if rules else "pass",
        name=name,
        level=level,
        text=text,
        fired=convert.rewrite_lines(fired(result.rewrites, name)),
        rolled_back=tuple(convert.rollback_line(item) for item in result.rolled_back if item.rule == name),
        missed=missed,
    )


def _of_node(result: api.OptimizeResult, node: ir.Node, name: str, source: str, level: int) -> ExplainRecord:
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
        fired=convert.rewrite_lines(log),
        rolled_back=tuple(
            convert.rollback_line(item)
            for item in result.rolled_back
            if item.site in {output.name for output in node.outputs}
        ),
        missed=missed,
    )


def _reasons(explainer: Explainer, rule: Rule, where: Sequence[ir.Node]) -> RuleReasons:
    return RuleReasons(
        rule.name, rule.level, rule.doc,
        tuple(convert.reason_line(reason) for reason in explainer.reasons(rule, where)),
    )  # fmt: skip


def _left_alone(explainer: Explainer, step: Pass, where: Sequence[ir.Node]) -> RuleReasons:
    return RuleReasons(
        step.name, step.level, doc_of(step),
        tuple(convert.reason_line(reason) for reason in explainer.left_alone(step, where)),
    )  # fmt: skip
