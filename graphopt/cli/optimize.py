"""`graphopt optimize`: write a better model that was checked against the input, or show what would change."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

import graphopt
from graphopt.cli.many import many_options, run_folder
from graphopt.cli.options import (
    PATH,
    UsageError,
    defaults_option,
    feeds_option,
    json_option,
    level_option,
    parse_budget,
    parse_dims,
    parse_shapes,
    parse_skips,
    parse_values,
    print_json,
    progress,
    same_file,
    seconds_option,
    several,
    shape_option,
    switch,
    tolerance_option,
    value_option,
)
from graphopt.cli.streams import STREAM, read_source, write_stream
from graphopt.errors import VerificationError
from graphopt.files.place import find_place
from graphopt.files.single import prepared
from graphopt.flows.records.encode import encode
from graphopt.flows.result import OptimizeResult
from graphopt.lazy import Lazy
from graphopt.passes import pipeline
from graphopt.report.screen import screen
from graphopt.report.terminal import print_optimize

pages = Lazy("graphopt.report.page")
REPORTS = (".json", ".html")


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.argument("out", metavar="[OUT]", type=PATH, required=False)
@click.option("-o", "--output", metavar="OUT", type=PATH, help="The model to write; OUT in another place.")
@shape_option
@several(
    "--dim", metavar="NAME=SIZE",
    text="Fix a dynamic dim (batch=1), one without a name as INPUT:AXIS, or free a fixed one: batch=N for the "
    "first dim of every input, INPUT:AXIS=N for one dim",
)  # fmt: skip
@value_option
@defaults_option
@level_option
@click.option(
    "--target", type=click.Choice(pipeline.TARGET_NAMES), default="standard", show_default=True,
    help="Operators the result may use: those of ONNX, or also ONNX Runtime's com.microsoft.",
)  # fmt: skip
@click.option("--opset", type=int, metavar="N", help="Lift the model to this newer opset first.")
@switch("--inline", "Inline model-local functions.")
@click.option(
    "--layout", type=click.Choice(pipeline.LAYOUT_NAMES),
    help="Turn images at inputs and outputs, and everything between, to this layout.",
)  # fmt: skip
@click.option(
    "--layout-functions", type=click.Choice(("on", "off")), default="on", show_default=True,
    help="Write operators in the wanted layout as model-local functions; off: as Transposes around ONNX's own.",
)  # fmt: skip
@click.option(
    "--memory-budget", metavar="SIZE",
    help="Order nodes, compute values again or in tiles, so that tensors fit an arena of this size, for example 40MiB, "
    "or 50% of the best order's.",
)  # fmt: skip
@click.option(
    "--measure/--no-measure", default=True,
    help="With --memory-budget: run the result in ONNX Runtime, and keep the budget by the heap that it takes.",
)  # fmt: skip
@several("--skip", metavar="NAME", text="Leave out a pass or rule; docs/rules.md names them")
@click.option("--stop-after", type=click.IntRange(min=0), metavar="N", help="Stop after N rewrites.")
@click.option("--verify/--no-verify", default=True, help="Check the result against the input.")
@seconds_option
@feeds_option
@tolerance_option
@click.option(
    "--report", type=PATH, metavar="FILE",
    help="Also write what was done: FILE.json the JSON object with every rewrite, FILE.html a page to read.",
)  # fmt: skip
@switch("--in-place", "Allow OUT to be IN (OUT may then be left out).")
@json_option
@many_options
def command(
    ctx: click.Context, source: Path, out: Path | None, output: Path | None, shape: tuple[str, ...],
    dim: tuple[str, ...], value: tuple[str, ...], fix_defaults: bool, level: int, target: pipeline.Target,
    opset: int | None, inline: bool,
    layout: pipeline.Layout | None, layout_functions: str, memory_budget: str | None, measure: bool,
    skip: tuple[str, ...], stop_after: int | None, verify: bool, verify_seconds: float, feeds: tuple[str, ...],
    tolerance: float | None, report: Path | None, in_place: bool, json: bool, jobs: int,
    dask: str | None,
) -> None:  # fmt: skip
    """Optimize IN, check the result against it, and write it to OUT. Without OUT, show what would change.

    A rewrite that the check objects to is taken back and listed; what is written is correct all the same. IN and OUT
    may be - for a pipe, or folders: then every model in IN is written to OUT, each in a process of its own. Exit
    status: 0 done and checked, 1 the input is at fault or no checked model could be made, 2 wrong usage.
    """
    if source.is_dir():
        return _folder(ctx, source, out if output is None else output, in_place)
    destination = _destination(source, out if output is None else output, in_place)
    if out is not None and output is not None:
        raise UsageError("-o", f"OUT is given twice, '{out}' and '{output}'.")
    if report is not None and (same_file(report, source) or destination in (report, report.resolve())):
        raise UsageError("--report", f"'{report}' is a model; choose another file.")
    if report is not None and report.suffix.lower() not in REPORTS:
        raise UsageError("--report", f"'{report}' is neither {' nor '.join(REPORTS)}; the ending says what is written.")
    if json and destination == STREAM:
        raise UsageError("--json", "stdout can hold the model or the object; choose a file for one of them.")
    known = [*pipeline.names(), *(rule.name for rule in pipeline.rules())]
    shapes, dims, skips, values = parse_shapes(shape), parse_dims(dim), parse_skips(skip, known), parse_values(value)
    for path in (destination, report):
        if path is not None and path != STREAM:
            find_place(path)  # refuses before the work is done what could not be written after it
    place = "" if destination is None else "stdout" if destination == STREAM else str(destination)
    with progress(f"optimizing {source.name}") as tell:
        result = graphopt.optimize(
            read_source(source), shapes=shapes, dims=dims, values=values, fix_defaults=fix_defaults, level=level,
            target=target, opset=opset, inline=inline, layout=layout, layout_functions=layout_functions == "on",
            skip=skips, stop_after=stop_after, verify=verify, verify_seconds=verify_seconds, details=_is_page(report),
            memory_budget=parse_budget(memory_budget, "--memory-budget"), measure=measure,
            feeds=feeds or None, tolerance=tolerance, progress=tell,
        )  # fmt: skip
        if result.unverified is not None:
            raise VerificationError(
                f"'{source}' could not be verified, so nothing was written: {result.unverified}; "
                "pass --no-verify to write the result unchecked."
            )
        tell("writing")
        record = result.record(place, str(source))
        with contextlib.ExitStack() as stack:
            if report is not None:  # it is moved to its place only when the model has been written too
                stack.enter_context(prepared(report, _report(report, result, record.input, place)))
            if destination == STREAM:
                write_stream(result.to_bytes())
            elif destination is not None:
                result.save(destination, in_place=in_place and same_file(source, destination))
    text = screen(for_errors=json or destination == STREAM)
    if json:
        print_json(record)
    print_optimize(text, record)
    if report is not None:
        text.line(f"report        written to {report}")


def _folder(ctx: click.Context, folder: Path, output: Path | None, in_place: bool) -> None:
    """Each model of a folder to the same place in OUT."""
    if in_place or output is None:
        raise UsageError("OUT", "a folder of models is written to another folder; give it.")

    def words(model: Path) -> tuple[tuple[str, str], Path]:
        makes = output.absolute() / model.relative_to(folder.absolute())
        return (str(model), str(makes)), makes

    run_folder(ctx, folder, output, words)


def _destination(source: Path, output: Path | None, in_place: bool) -> Path | None:
    if output is None:
        return source if in_place else None
    if output != STREAM and same_file(source, output) and not in_place:
        raise UsageError("OUT", f"'{output}' is the input itself; choose another output or pass --in-place.")
    return output


def _is_page(report: Path | None) -> bool:
    return report is not None and report.suffix.lower() == ".html"


def _report(path: Path, result: OptimizeResult, source: str, output: str) -> bytes:
    """What is written to the file: the ending of its name decides."""
    if not _is_page(path):
        return encode(result.full_record(output, source))
    drawn: bytes = pages.page_of(result, output, source)
    return drawn
