"""`graphopt memory`: how much memory a model needs, where its tensors live, and what would save some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

import graphopt
from graphopt.cli.flags import in_flags
from graphopt.cli.many import many_options, run_folder
from graphopt.cli.options import (
    PATH,
    UsageError,
    check_outputs,
    defaults_option,
    json_option,
    parse_budget,
    parse_shapes,
    parse_sizes,
    parse_values,
    print_json,
    progress,
    several,
    shape_option,
    value_option,
    write_reports,
)
from graphopt.cli.streams import read_source
from graphopt.flows.memory import LEVER_NAMES, MemoryReport, Order
from graphopt.flows.records.encode import read_memory
from graphopt.flows.records.memory import LeverLine, MemoryRecord
from graphopt.lazy import Lazy
from graphopt.model.text import Progress, silent
from graphopt.report.memory.terminal import print_lever, print_lever_head, print_memory
from graphopt.report.memory.trace import memory_trace
from graphopt.report.screen import Screen, screen

if TYPE_CHECKING:
    from memplan.tiers.plan import Mode

pages = Lazy("graphopt.report.memory.page")
CURVE_POINTS = 5  # plans between memory and time that a page shows


@click.command()
@click.argument("source", metavar="MODEL", type=PATH)
@click.argument("out", metavar="[OUT]", type=PATH, required=False)
@shape_option
@several("--dim", metavar="NAME=SIZE", text="Fix a dim, batch=8 for example")
@value_option
@defaults_option
@click.option(
    "--order", type=click.Choice(("given", "best")), default="given", show_default=True,
    help="The order of the file, or the one that needs least.",
)  # fmt: skip
@click.option(
    "--budget", metavar="SIZE",
    help="Keep the arena below this, for example 40MiB, or 50% of the best order's, by order and levers.",
)  # fmt: skip
@click.option(
    "--levers", metavar="NAMES", default="all", show_default=True,
    help=f"What would save memory, joined by commas: all, none, or of {', '.join(LEVER_NAMES)}.",
)  # fmt: skip
@click.option("--tiers", metavar="FILE|PRESET", help="Place tensors over the tiers of a machine.")
@click.option(
    "--tier-mode", type=click.Choice(("static", "sync", "async")), default="sync", show_default=True,
    help="No moves, moves that are waited for, or overlapped ones.",
)  # fmt: skip
@click.option("--html", type=PATH, metavar="FILE", help="Write a page with charts.")
@several("--beside", metavar="FILE", text="What another run printed with --json, to be compared on the page")
@json_option
@click.option("--trace", type=PATH, metavar="FILE", help="Write a trace for Perfetto.")
@click.option(
    "--annotate", type=PATH, metavar="FILE", help="Write the model with offsets and tiers as metadata of its nodes."
)
@several("--what-if", metavar="batch=1,2,4,8", text="The figures for these dims")
@many_options
def command(
    ctx: click.Context, source: Path, out: Path | None, shape: tuple[str, ...], dim: tuple[str, ...],
    value: tuple[str, ...], fix_defaults: bool, order: Order, budget: str | None, levers: str, tiers: str | None,
    tier_mode: Mode, html: Path | None, beside: tuple[str, ...], json: bool, trace: Path | None, annotate: Path | None,
    what_if: tuple[str, ...], jobs: int, dask: str | None,
) -> None:  # fmt: skip
    """Show the memory that MODEL needs for intermediate results (activations): the peak, the arena, what causes it.

    Then what would save some: another order, recomputation, tiles. Nothing is run, except where the size of a tensor
    cannot be told otherwise. Of a folder every model is planned; OUT, for a folder alone, is where results go.
    """
    if source.is_dir():
        return run_folder(ctx, source, out, lambda model: ((str(model),), None))
    if out is not None:
        raise UsageError("OUT", "is for a folder of models; of one model nothing is written unless an option asks.")
    shapes, dims = parse_shapes(shape), parse_sizes(dim)
    check_outputs(source, (("--html", html), ("--trace", trace), ("--annotate", annotate)))
    if beside and html is None:
        raise UsageError("--beside", "other runs are shown on the page; give --html FILE.")
    runs = [read_memory(Path(file)) for file in beside]
    points = CURVE_POINTS if html is not None else 0
    with progress(f"planning {source.name}") as tell:
        report = graphopt.memory(
            read_source(source), shapes=shapes, dims=dims, values=parse_values(value), fix_defaults=fix_defaults,
            order=order, budget=parse_budget(budget, "--budget"), tiers=tiers, tier_mode=tier_mode,
            what_if=_what_ifs(what_if), points=points, levers=None, progress=tell,
        )  # fmt: skip
    place = screen(for_errors=json)
    print_memory(place, report.record)
    report = report.with_lines(_told(report, place, _levers(levers)))
    record = report.record
    if json:
        print_json(record)
    page = (html, "page", lambda shown: pages.memory_page(_in_flags(shown), runs))
    write_reports(place, record, (page, (trace, "trace", memory_trace)))
    if annotate is not None:
        report.annotate(annotate)
        place.line(f"{'model':<13} written to {annotate}")


def _told(report: MemoryReport, place: Screen, names: Sequence[str]) -> list[LeverLine]:
    """What each lever would save, each told as it is found."""
    heard: list[Progress] = [silent]
    lines: list[LeverLine] = []
    found = report.each_lever(names, lambda text: heard[0](text))
    while True:
        with progress("what would save memory") as heard[0]:
            line = next(found, None)
        if line is None:
            return lines
        if not lines:
            print_lever_head(place)
        print_lever(place, structs.replace(line, note=in_flags(line.note)))
        lines.append(line)


def _in_flags(record: MemoryRecord) -> MemoryRecord:
    """The record with options in the place of arguments, for a page that a command writes."""
    lines = tuple(structs.replace(line, note=in_flags(line.note)) for line in record.levers)
    return structs.replace(record, levers=lines)


def _levers(text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return LEVER_NAMES if text == "all" else ()
    names = tuple(text.split(","))
    for name in names:
        if name not in LEVER_NAMES:
            raise UsageError("--levers", f"there is no lever '{name}'; there are {', '.join(LEVER_NAMES)}.")
    return names


def _what_ifs(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    found = {}
    for text in texts:
        name, _, values = text.rpartition("=")
        sizes = values.split(",")
        if not name or not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
            raise UsageError("--what-if", f"'{text}' is not of the form batch=1,2,4,8.")
        found[name] = tuple(int(size) for size in sizes)
    return found
