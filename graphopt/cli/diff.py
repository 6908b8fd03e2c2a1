"""`graphopt diff`: what changed between two models, node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt import api
from graphopt.cli.options import Json, console, print_json
from graphopt.flows.diff import difference
from graphopt.report.difference import print_diff


def command(
    a: Annotated[Path, typer.Argument(metavar="A", help="The first model.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The second model.")],
    json: Json = False,
) -> None:
    """Show what changed from A to B: nodes (matched by the values they compute), initializers, signature and opsets.

    Compares what is written, not what is computed: `graphopt verify` does that. Exit status 0 also when they differ.
    """
    record = difference(api.load(a), api.load(b), str(a), str(b))
    if json:
        print_json(record)
    print_diff(console(json), record)
