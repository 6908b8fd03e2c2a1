"""`graphopt optimize`: write a better model that was checked equal to the input."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from graphopt import api
from graphopt.cli.options import (
    FeedFiles,
    FixDefaults,
    Json,
    Layout,
    Level,
    Seconds,
    Switch,
    Target,
    Tolerance,
    UsageError,
    Values,
    console,
    parse_budget,
    parse_dims,
    parse_shapes,
    parse_skips,
    parse_values,
    print_json,
    progress,
    same_file,
)
from graphopt.errors import VerificationError
from graphopt.files.place import find_place
from graphopt.files.single import prepared
from graphopt.flows.explain import near_misses
from graphopt.flows.optimize import DEFAULT_LEVEL, DEFAULT_VERIFY_SECONDS
from graphopt.report.json_report import encode
from graphopt.report.page import page
from graphopt.report.terminal import line, print_optimize

REPORTS = (".json", ".html")


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model to read.")],
    output: Annotated[Path | None, typer.Argument(metavar="OUT", help="The model to write.")] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1x3x224x224", help="Fix the shape of an input; repeatable.")
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE",
            help="Fix a dynamic dim (batch=1), or free a fixed one: batch=N for the first dim of every input, "
            "INPUT:AXIS=N for one dim; repeatable.",
        ),
    ] = None,
    value: Values = None,
    fix_defaults: FixDefaults = False,
    level: Level = DEFAULT_LEVEL,
    target: Target = "standard",
    opset: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Lift the model to this newer opset first."),
    ] = None,
    inline: Annotated[bool, typer.Option("--inline", help="Inline model-local functions.")] = False,
    layout: Annotated[
        Layout | None,
        typer.Option(help="Turn images at inputs and outputs, and everything between, to this layout."),
    ] = None,
    layout_functions: Annotated[
        Switch, typer.Option(help="Whether operators in the wanted layout may be model-local functions.")
    ] = "on",
    memory_budget: Annotated[
        str | None,
        typer.Option(
            metavar="40MiB", help="Order nodes, compute values again or in tiles, so that tensors fit this arena."
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="PASS", help="Leave out a pass or rule; repeatable.")
    ] = None,
    stop_after: Annotated[int | None, typer.Option(min=0, metavar="N", help="Stop after N rewrites.")] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Check the result against the input.")] = True,
    verify_seconds: Seconds = DEFAULT_VERIFY_SECONDS,
    feeds: FeedFiles = None,
    tolerance: Tolerance = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write what was done: FILE.json the JSON object with every rewrite, FILE.html a page to read.",
        ),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Allow OUT to be IN (OUT may then be left out).")
    ] = False,
    json: Json = False,
) -> None:
    """Optimize IN, verify the result against it, and write it to OUT.

    A rewrite that the check objects to is taken back and listed; what is written is correct all the same. Exit status:
    0 a verified model was written, 1 the input is at fault or no verified model could be made, 2 wrong usage.
    """
    destination = _destination(source, output, in_place)
    if report is not None and (report.resolve() == destination.resolve() or same_file(report, source)):
        raise UsageError("--report", f"'{report}' is a model; choose another file.")
    if report is not None and report.suffix.lower() not in REPORTS:
        raise UsageError("--report", f"'{report}' is neither {' nor '.join(REPORTS)}; the ending says what is written.")
    shapes, dims, skips = parse_shapes(shape or ()), parse_dims(dim or ()), parse_skips(skip or ())
    values = parse_values(value or ())
    for path in (destination, *([report] if report is not None else [])):
        find_place(path)  # refuses before the work is done what could not be written after it
    with progress(f"optimizing {source.name}") as tell:
        result = api.optimize(
            source, shapes=shapes, dims=dims, values=values, fix_defaults=fix_defaults, level=level, target=target,
            opset=opset, inline=inline, layout=layout, layout_functions=layout_functions == "on", skip=skips,
            stop_after=stop_after, verify=verify, verify_seconds=verify_seconds, details=_is_page(report),
            memory_budget=parse_budget(memory_budget, "--memory-budget"), feeds=feeds, tolerance=tolerance,
            progress=tell,
        )  # fmt: skip
        if result.unverified is not None:
            raise VerificationError(
                f"'{source}' could not be verified, so nothing was written: {result.unverified}; "
                "pass --no-verify to write the result unchecked."
            )
        tell("writing")
        record = result.record(str(destination))
        with contextlib.ExitStack() as stack:
            if report is not None:  # it is moved to its place only when the model has been written too
                stack.enter_context(prepared(report, _report(report, result, str(destination))))
            result.save(destination, in_place=in_place and same_file(source, destination))
    if json:
        print_json(record)
    print_optimize(console(json), record)
    if report is not None:
        line(console(json), f"report        written to {report}")


def _destination(source: Path, output: Path | None, in_place: bool) -> Path:
    if output is None:
        if not in_place:
            raise UsageError("OUT", "give the file to write, or pass --in-place.")
        return source
    if same_file(source, output) and not in_place:
        raise UsageError("OUT", f"'{output}' is the input itself; choose another output or pass --in-place.")
    return output


def _is_page(report: Path | None) -> bool:
    return report is not None and report.suffix.lower() == ".html"


def _report(path: Path, result: api.OptimizeResult, output: str) -> bytes:
    """What is written to the file: the ending of its name decides."""
    record = result.full_record(output)
    return (
        page(record, result.rewrites, result.flops, near_misses(result)).encode() if _is_page(path) else encode(record)
    )
