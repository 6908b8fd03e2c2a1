"""`graphopt inspect`: what a model consists of and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt import api
from graphopt.cli.options import Json, console, parse_sizes, print_json
from graphopt.errors import OptionError
from graphopt.flows.inspect import inspect_model
from graphopt.model.text import nearest
from graphopt.report.inspection import print_inspect


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model to read.")],
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZE", help="Size of a dynamic dim for flops and bytes (1 otherwise); repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Show operators, opsets, parameters, shapes, dynamic dims, and flops and bytes for each type of operator.

    A multiplication with an addition counts as two flops; bytes are those that all nodes read and write.
    """
    sizes = parse_sizes(dim or ())
    model = api.load(source)
    record = inspect_model(model, str(source), api.census(model).bytes, sizes)
    for name in sizes:
        if name not in record.dynamic_dims:
            raise OptionError(f"'{source}' has no dynamic dim '{name}'; {nearest(name, record.dynamic_dims)}.")
    if json:
        print_json(record)
    print_inspect(console(json), record)
