"""`graphopt explain`: where a rule or pass fired, what became of a node, and why a rule did not fire."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec import structs

import graphopt
from graphopt.cli.flags import in_flags
from graphopt.cli.options import PATH, UsageError, json_option, level_option, progress, shown
from graphopt.flows.explain import unknown_rule
from graphopt.report.explanation import print_explain


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.option("--rule", metavar="NAME", help="A rule or a pass.")
@click.option("--node", metavar="NAME", help="A node's name, or a value it computes.")
@level_option
@json_option
def command(source: Path, rule: str | None, node: str | None, level: int, json: bool) -> None:
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
            record = graphopt.explain_rule(source, rule, level=level, progress=tell)
        else:
            record = graphopt.explain_node(source, node or "", level=level, progress=tell)
    shown(structs.replace(record, text=in_flags(record.text)), json, print_explain)
