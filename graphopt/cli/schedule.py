"""`graphopt schedule`: a model's regions placed on the workers of a device, simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt import api
from graphopt.cli.options import (
    FixDefaults,
    UsageError,
    Values,
    check_outputs,
    json_or_console,
    parse_shapes,
    parse_sizes,
    parse_values,
    progress,
    write_reports,
)
from graphopt.flows.schedule import DEFAULT_SCHEDULE_WORK
from graphopt.report.json_report import encode
from graphopt.report.schedule.page import schedule_page
from graphopt.report.schedule.terminal import print_schedule
from graphopt.report.schedule.trace import schedule_trace
from scheduler.policies.choose import POLICIES
from scheduler.program import write


def command(
    source: Annotated[Path, typer.Argument(metavar="MODEL", help="The model to read.")],
    device: Annotated[
        str, typer.Option(metavar="h200|v100|cpu:2|FILE", help="A preset, so many CPU workers, or a machine file.")
    ],
    policy: Annotated[str, typer.Option(metavar="NAME", help="One policy, or the best of all.")] = "best",
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1x3x224x224", help="Fix the shape of an input; repeatable.")
    ] = None,
    dim: Annotated[list[str] | None, typer.Option(metavar="NAME=SIZE", help="Fix a dynamic dim; repeatable.")] = None,
    value: Values = None,
    fix_defaults: FixDefaults = False,
    work: Annotated[
        int, typer.Option(min=0, metavar="N", help="Blocks that the searches of each schedule may place.")
    ] = DEFAULT_SCHEDULE_WORK,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with a Gantt chart.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the record as JSON; - prints it.")
    ] = None,
    program: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the program, for python -m scheduler check.")
    ] = None,
) -> None:
    """Show the makespan of MODEL under each policy, lower bounds, utilisation and waits. Nothing is run but simulated.

    Schedule and memory are planned together: buffers share bytes only where one use happens before the other.
    """
    if policy not in POLICIES:
        raise UsageError("--policy", f"there is no policy '{policy}'; there are {', '.join(POLICIES)}.")
    shapes, dims = parse_shapes(shape or ()), parse_sizes(dim or ())
    check_outputs(source, (("--json", json_file), ("--html", html), ("--trace", trace), ("--program", program)))
    with progress(f"scheduling {source.name}") as tell:
        report = api.schedule(
            source,
            device=device,
            policy=policy,
            shapes=shapes,
            dims=dims,
            values=parse_values(value or ()),
            fix_defaults=fix_defaults,
            work=work,
            progress=tell,
        )
    record = report.record
    screen = json_or_console(record, json_file)
    print_schedule(screen, record)
    write_reports(
        screen,
        record,
        (
            (json_file, "record", encode),
            (html, "page", schedule_page),
            (trace, "trace", schedule_trace),
            (program, "program", lambda _: write(report.together.scheduled.program)),
        ),
    )
