"""`graphopt diff`: what changed between two models, node by node."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.options import PATH, json_option, shown
from graphopt.flows.diff import difference
from graphopt.report.difference import print_diff


@click.command()
@click.argument("a", metavar="A", type=PATH)
@click.argument("b", metavar="B", type=PATH)
@json_option
def command(a: Path, b: Path, json: bool) -> None:
    """Show what changed from A to B: nodes (matched by the values they compute), initializers, signature and opsets.

    Compares what is written, not what is computed: `graphopt verify` does that. Exit status 0 also when they differ.
    """
    shown(difference(graphopt.load(a), graphopt.load(b), str(a), str(b)), json, print_diff)
