"""`graphopt profile`: where the time of a program goes, step by step and worker by worker."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.arrays import input_option, random_option, read_inputs
from graphopt.cli.machine import machine_option, read_machine
from graphopt.cli.options import (
    PATH,
    check_outputs,
    json_option,
    parse_shapes,
    parse_sizes,
    progress,
    shape_option,
    shown,
    size_option,
    switch,
    write_reports,
)
from graphopt.cli.streams import read_source
from graphopt.cli.tune import seconds_of, tune_option
from graphopt.flows.profile import DEFAULT_ROUNDS, open_profiled, profile_record
from graphopt.lazy import Lazy
from graphopt.report.profile.terminal import print_profile
from graphopt.report.profile.trace import profile_trace

pages = Lazy("graphopt.report.profile.page")


@click.command()
@click.argument("program", metavar="BUNDLE|MODEL", type=PATH)
@input_option
@random_option
@shape_option
@size_option
@click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N", help="How many run it; 0: all cores.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=DEFAULT_ROUNDS, metavar="N", show_default=True,
    help="Calls that the figures are medians of.",
)  # fmt: skip
@switch("--in-order", "Show the steps in the program's order, and not by their work.")
@click.option("--html", type=PATH, metavar="FILE", help="Write a page with every block of every worker.")
@click.option("--trace", type=PATH, metavar="FILE", help="Write a trace for Perfetto.")
@machine_option
@tune_option
@json_option
def command(
    program: Path, input: tuple[str, ...], random: bool, shape: tuple[str, ...], dim: tuple[str, ...], threads: int,
    rounds: int, in_order: bool, html: Path | None, trace: Path | None, machine: str | None,
    tune: float | None, json: bool,
) -> None:  # fmt: skip
    """Show where the time of a program goes, step by step and worker by worker.

    A bundle is run as it is, with the greatest sizes of its ranges or those of --dim; a model is compiled first. `ms`
    is from the begin of a step's first block to the end of its last one, work the time of all its blocks; Gflop/s and
    the share of the measured peak are those of a worker.
    """
    shapes, dims = parse_shapes(shape), parse_sizes(dim)
    check_outputs(program, (("--html", html), ("--trace", trace)))
    with progress(f"profiling {program.name}") as tell:
        source = program if program.is_dir() else read_source(program)
        found = open_profiled(
            source, threads=threads, shapes=shapes, dims=dims,
            machine=None if program.is_dir() else read_machine(machine, tell),
            tune=seconds_of(tune, here=True), progress=tell,
        )  # fmt: skip
        feeds = read_inputs([one.name for one in found.program.inputs], input, random=random)
        tell("running")
        record = profile_record(found, found.feeds() | feeds, threads, rounds)
    place = shown(record, json, lambda screen, known: print_profile(screen, known, in_order=in_order))
    write_reports(place, record, ((html, "page", _page), (trace, "trace", profile_trace)))


def _page(record: object) -> bytes:
    made: bytes = pages.profile_page(record)
    return made
