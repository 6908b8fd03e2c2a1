"""`graphopt memory`: how much memory a model needs, where its tensors live, and what would save some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from graphopt import api
from graphopt.cli.options import (
    FixDefaults,
    UsageError,
    Values,
    check_outputs,
    json_or_console,
    parse_budget,
    parse_shapes,
    parse_sizes,
    parse_values,
    progress,
    write_reports,
)
from graphopt.report.json_report import encode, read_memory
from graphopt.report.memory.page import memory_page
from graphopt.report.memory.terminal import print_memory
from graphopt.report.memory.trace import memory_trace
from graphopt.report.terminal import line

CURVE_POINTS = 5  # plans between memory and time that a page shows


def command(
    source: Annotated[Path, typer.Argument(metavar="MODEL", help="The model to read.")],
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1x3x224x224", help="Fix the shape of an input; repeatable.")
    ] = None,
    dim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SIZE", help="Fix a dim, batch=8 for example; repeatable.")
    ] = None,
    value: Values = None,
    fix_defaults: FixDefaults = False,
    order: Annotated[
        Literal["given", "best"], typer.Option(help="The order of the file, or the one that needs least.")
    ] = "given",
    budget: Annotated[
        str | None, typer.Option(metavar="40MiB", help="Keep the arena below this by order, recomputation, tiles.")
    ] = None,
    tiers: Annotated[
        str | None, typer.Option(metavar="FILE|PRESET", help="Place tensors over the tiers of a machine.")
    ] = None,
    tier_mode: Annotated[
        Literal["static", "sync", "async"],
        typer.Option(help="No moves, moves that are waited for, or overlapped ones."),
    ] = "sync",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with charts.")] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Another run's --json, to be compared on the page; repeatable."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the record as JSON; - prints it.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto.")] = None,
    annotate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the model with offsets and tiers as metadata of its nodes."),
    ] = None,
    what_if: Annotated[
        list[str] | None, typer.Option(metavar="batch=1,2,4,8", help="The figures for these dims; repeatable.")
    ] = None,
) -> None:
    """Show the memory that MODEL needs between its weights: the peak, the arena, what causes it, and what would save.

    Nothing is run, except where the size of a tensor cannot be told otherwise.
    """
    shapes, dims = parse_shapes(shape or ()), parse_sizes(dim or ())
    check_outputs(source, (("--json", json_file), ("--html", html), ("--trace", trace), ("--annotate", annotate)))
    if beside and html is None:
        raise UsageError("--beside", "other runs are shown on the page; give --html FILE.")
    others = [read_memory(file) for file in beside or ()]
    points = CURVE_POINTS if html is not None else 0
    with progress(f"planning {source.name}") as tell:
        report = api.memory(
            source, shapes=shapes, dims=dims, values=parse_values(value or ()), fix_defaults=fix_defaults,
            order=order, budget=parse_budget(budget, "--budget"), tiers=tiers, tier_mode=tier_mode,
            what_if=_what_ifs(what_if or ()), points=points, progress=tell,
        )  # fmt: skip
    record = report.record
    screen = json_or_console(record, json_file)
    print_memory(screen, record)
    pages = (html, "page", lambda shown: memory_page(shown, others))
    write_reports(screen, record, ((json_file, "record", encode), pages, (trace, "trace", memory_trace)))
    if annotate is not None:
        report.annotate(annotate)
        line(screen, f"model          written to {annotate}")


def _what_ifs(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    found = {}
    for text in texts:
        name, _, values = text.rpartition("=")
        sizes = values.split(",")
        if not name or not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
            raise UsageError("--what-if", f"'{text}' is not of the form batch=1,2,4,8.")
        found[name] = tuple(int(size) for size in sizes)
    return found
