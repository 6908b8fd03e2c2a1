"""`graphopt schedule`: a model's regions placed on the workers of a device, simulated."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.machine import machine_option, read_machine
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
    progress,
    shape_option,
    shown,
    size_option,
    value_option,
    write_reports,
)
from graphopt.cli.streams import read_source
from graphopt.cli.tune import seconds_of, tune_option
from graphopt.flows.schedule import DEFAULT_SCHEDULE_WORK
from graphopt.lazy import Lazy
from graphopt.program import coplaced
from graphopt.report.schedule.terminal import print_schedule
from graphopt.report.schedule.trace import schedule_trace
from scheduler.buffers import write_buffers
from scheduler.device import CPU
from scheduler.policies.choose import POLICIES
from scheduler.program import write, write_graph

pages = Lazy("graphopt.report.schedule.page")


@click.command()
@click.argument("source", metavar="MODEL", type=PATH)
@click.option(
    "--device",
    required=True,
    metavar="h200|v100|cpu|cpu:2|FILE",
    help="A preset, the cores of this machine, so many CPU workers, or a machine file.",
)
@click.option(
    "--policy", default="best", metavar="NAME", show_default=True,
    help="One policy, or the best of all; for CPU workers what compile writes.",
)  # fmt: skip
@shape_option
@size_option
@value_option
@defaults_option
@click.option(
    "--work", type=click.IntRange(min=0), default=DEFAULT_SCHEDULE_WORK, metavar="N", show_default=True,
    help="Blocks that the searches of each schedule may place.",
)  # fmt: skip
@click.option(
    "--memory-budget", metavar="SIZE",
    help="What the arena may take, for example 40MiB, or 50% of what it takes without: the fastest plan within it is "
    "taken.",
)  # fmt: skip
@click.option(
    "--measure/--no-measure", default=True,
    help="For CPU workers: run kernels and programs on this machine; else their times are estimated.",
)  # fmt: skip
@machine_option
@tune_option
@click.option("--html", type=PATH, metavar="FILE", help="Write a page with a Gantt chart.")
@click.option("--trace", type=PATH, metavar="FILE", help="Write a trace for Perfetto.")
@json_option
@click.option("--program", type=PATH, metavar="FILE", help="Write the program, for python -m scheduler check.")
@click.option("--graph", type=PATH, metavar="FILE", help="Write the task graph, for python -m scheduler check.")
@click.option("--buffers", type=PATH, metavar="FILE", help="Write where buffers lie, for python -m scheduler check.")
def command(
    source: Path, device: str, policy: str, shape: tuple[str, ...], dim: tuple[str, ...], value: tuple[str, ...],
    fix_defaults: bool, work: int, memory_budget: str | None, measure: bool, machine: str | None,
    tune: float | None, html: Path | None, trace: Path | None,
    json: bool, program: Path | None, graph: Path | None, buffers: Path | None,
) -> None:  # fmt: skip
    """Show the makespan of MODEL under each policy, lower bounds, utilisation and waits, by simulation.

    For CPU workers that is the program that compile writes, measured beside it where this machine has the cores.
    Schedule and memory are planned together: buffers share bytes only where one use happens before the other.
    """
    known = dict.fromkeys((*POLICIES, *coplaced.POLICIES))
    if policy not in known:
        raise UsageError("--policy", f"there is no policy '{policy}'; there are {', '.join(known)}.")
    budget = parse_budget(memory_budget, "--memory-budget")
    by_record = device.partition(":")[0] == CPU or machine is not None
    shapes, dims = parse_shapes(shape), parse_sizes(dim)
    check_outputs(
        source,
        (
            ("--html", html),
            ("--trace", trace),
            ("--program", program),
            ("--graph", graph),
            ("--buffers", buffers),
        ),
    )
    with progress(f"scheduling {source.name}") as tell:
        report = graphopt.schedule(
            read_source(source), device=device, policy=policy, shapes=shapes, dims=dims, values=parse_values(value),
            fix_defaults=fix_defaults, work=work, memory_budget=budget, measure=measure,
            machine=read_machine(machine, tell) if by_record else None,
            tune=seconds_of(tune, here=True), progress=tell,
        )  # fmt: skip
    place = shown(report.record, json, print_schedule)
    write_reports(
        place, report.record,
        (
            (html, "page", _page), (trace, "trace", schedule_trace),
            (program, "program", lambda _: write(report.together.scheduled.program)),
            (graph, "task graph", lambda _: write_graph(report.together.scheduled.graph)),
            (buffers, "buffers", lambda _: write_buffers(report.buffers())),
        ),
    )  # fmt: skip


def _page(record: object) -> bytes:
    made: bytes = pages.schedule_page(record)
    return made
