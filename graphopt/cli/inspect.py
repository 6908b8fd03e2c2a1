"""`graphopt inspect`: what a model consists of and what it costs."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.options import PATH, json_option, parse_sizes, several, shown
from graphopt.cli.streams import read_source
from graphopt.errors import OptionError
from graphopt.flows.inspect import inspect_model
from graphopt.model.census import census
from graphopt.model.text import nearest
from graphopt.report.inspection import print_inspect


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@several("--dim", metavar="NAME=SIZE", text="Size of a dynamic dim for flops and bytes (1 otherwise)")
@json_option
def command(source: Path, dim: tuple[str, ...], json: bool) -> None:
    """Show operators, opsets, parameters, shapes, dynamic dims, and flops and bytes for each type of operator.

    A multiplication with an addition counts as two flops; bytes are those that all nodes read and write.
    """
    sizes = parse_sizes(dim)
    model = graphopt.load(read_source(source))
    record = inspect_model(model, str(source), census(model).bytes, sizes)
    for name in sizes:
        if name not in record.dynamic_dims:
            raise OptionError(f"'{source}' has no dynamic dim '{name}'; {nearest(name, record.dynamic_dims)}.")
    shown(record, json, print_inspect)
