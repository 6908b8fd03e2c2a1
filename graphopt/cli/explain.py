"""`graphopt explain`: where a rule or pass fired, what became of a node, and why a rule did not fire."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt import api
from graphopt.cli.options import Json, Level, UsageError, console, print_json, progress
from graphopt.flows.explain import unknown_rule
from graphopt.flows.optimize import DEFAULT_LEVEL
from graphopt.report.explanation import print_explain


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model to read.")],
    rule: Annotated[str | None, typer.Option(metavar="NAME", help="A rule or a pass.")] = None,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="A node's name, or a value it computes.")] = None,
    level: Level = DEFAULT_LEVEL,
    json: Json = False,
) -> None:
    """Tell where a rule fired and why not elsewhere (--rule), or what was done to a node and why not more (--node).

    Optimizes IN without verification and writes nothing. Reasons are those on the optimized graph.
    """
    if (rule is None) == (node is None):
        raise UsageError("--rule or --node", "give one of the two.")
    if rule is not None:
        fault = unknown_rule(rule)
        if fault is not None:
            raise UsageError("--rule", fault)
    with progress(f"optimizing {source.name}") as tell:
        if rule is not None:
            record = api.explain_rule(source, rule, level=level, progress=tell)
        else:
            record = api.explain_node(source, node or "", level=level, progress=tell)
    if json:
        print_json(record)
    print_explain(console(json), record)
