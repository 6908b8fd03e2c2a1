"""`graphopt schedule`: a model's regions placed on the workers of a device, simulated."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.options import (
    PATH,
    UsageError,
    check_outputs,
    defaults_option,
    json_option,
    parse_shapes,
    parse_sizes,
    parse_values,
    progress,
    shape_option,
    shown,
    size_option,
    value_option,
    write_reports,
)
from graphopt.cli.streams import read_source
from graphopt.flows.schedule import DEFAULT_SCHEDULE_WORK
from graphopt.lazy import Lazy
from graphopt.report.schedule.terminal import print_schedule
from graphopt.report.schedule.trace import schedule_trace
from scheduler.policies.choose import POLICIES
from scheduler.program import write

pages = Lazy("graphopt.report.schedule.page")


@click.command()
@click.argument("source", metavar="MODEL", type=PATH)
@click.option(
    "--device", required=True, metavar="h200|v100|cpu:2|FILE", help="A preset, so many CPU workers, or a machine file."
)
@click.option("--policy", default="best", metavar="NAME", show_default=True, help="One policy, or the best of all.")
@shape_option
@size_option
@value_option
@defaults_option
@click.option(
    "--work", type=click.IntRange(min=0), default=DEFAULT_SCHEDULE_WORK, metavar="N", show_default=True,
    help="Blocks that the searches of each schedule may place.",
)  # fmt: skip
@click.option("--html", type=PATH, metavar="FILE", help="Write a page with a Gantt chart.")
@click.option("--trace", type=PATH, metavar="FILE", help="Write a trace for Perfetto.")
@json_option
@click.option("--program", type=PATH, metavar="FILE", help="Write the program, for python -m scheduler check.")
def command(
    source: Path, device: str, policy: str, shape: tuple[str, ...], dim: tuple[str, ...], value: tuple[str, ...],
    fix_defaults: bool, work: int, html: Path | None, trace: Path | None, json: bool, program: Path | None,
) -> None:  # fmt: skip
    """Show the makespan of MODEL under each policy, lower bounds, utilisation and waits. Nothing is run but simulated.

    Schedule and memory are planned together: buffers share bytes only where one use happens before the other.
    """
    if policy not in POLICIES:
        raise UsageError("--policy", f"there is no policy '{policy}'; there are {', '.join(POLICIES)}.")
    shapes, dims = parse_shapes(shape), parse_sizes(dim)
    check_outputs(source, (("--html", html), ("--trace", trace), ("--program", program)))
    with progress(f"scheduling {source.name}") as tell:
        report = graphopt.schedule(
            read_source(source), device=device, policy=policy, shapes=shapes, dims=dims, values=parse_values(value),
            fix_defaults=fix_defaults, work=work, progress=tell,
        )  # fmt: skip
    place = shown(report.record, json, print_schedule)
    write_reports(
        place, report.record,
        (
            (html, "page", _page), (trace, "trace", schedule_trace),
            (program, "program", lambda _: write(report.together.scheduled.program)),
        ),
    )  # fmt: skip


def _page(record: object) -> bytes:
    made: bytes = pages.schedule_page(record)
    return made
