"""`graphopt bench`: a program beside other runtimes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import click
import msgspec

import graphopt
from graphopt.cli.machine import machine_option, read_machine
from graphopt.cli.options import (
    PATH,
    UsageError,
    feeds_option,
    json_option,
    parse_shapes,
    parse_sizes,
    progress,
    shape_option,
    shown,
    size_option,
)
from graphopt.cli.tune import seconds_of, tune_option
from graphopt.flows.records.bench import BenchFile, BenchRecord
from graphopt.flows.records.scenario import ScenarioRecord
from graphopt.flows.scenario import QUERIES, TURNS
from graphopt.model.text import binary_size, several
from graphopt.program.deploy.benchmark import SIDES
from graphopt.program.deploy.serving import Scenario
from graphopt.report.screen import Screen, Table


@click.command()
@click.argument("sources", metavar="IN...", nargs=-1, required=True, type=PATH)
@click.option(
    "--against", default="onnxruntime", metavar="NAMES", show_default=True,
    help=f"Peers, joined by commas: {', '.join(SIDES)}.",
)  # fmt: skip
@click.option("--bundle", type=PATH, metavar="DIR", help="Measure this bundle of the one IN, instead of compiling.")
@shape_option
@size_option
@feeds_option
@click.option(
    "--rounds", type=click.IntRange(min=3), default=15, metavar="N", show_default=True, help="Readings of each side."
)
@click.option("--threads", type=click.IntRange(min=1), default=1, metavar="N", show_default=True, help="Of each side.")
@click.option(
    "--scenario", type=click.Choice(get_args(Scenario)),
    help="Serve queries in processes of their own: one after another, or all at once; percentiles, memory.",
)  # fmt: skip
@click.option(
    "--queries", type=click.IntRange(min=TURNS), default=QUERIES, metavar="N", show_default=True,
    help="Of each side, with --scenario.",
)  # fmt: skip
@click.option(
    "--loadgen", type=PATH, metavar="DIR",
    help="With --scenario: let MLPerf's LoadGen ask our program, and write its logs here; needs mlcommons-loadgen.",
)  # fmt: skip
@machine_option
@tune_option
@json_option
def command(
    sources: tuple[Path, ...], against: str, bundle: Path | None, shape: tuple[str, ...], dim: tuple[str, ...],
    feeds: tuple[str, ...], rounds: int, threads: int, scenario: Scenario | None, queries: int,
    loadgen: Path | None, machine: str | None, tune: float | None, json: bool,
) -> None:  # fmt: skip
    """Compile models and measure them beside other runtimes, by turns.

    One thread is measured in its processor's time, several in time on the wall. Measured is the first of `--feeds`, or
    a seeded feed. Shows medians, the ratio with a 95 % interval (above 1, ours is faster), the largest difference
    between the results, and the precision of each side.
    """
    peers = against.split(",")
    for name in peers:
        if name not in SIDES:
            raise UsageError("--against", f"there is no peer '{name}'; there are {', '.join(SIDES)}.")
    if bundle is not None and len(sources) > 1:
        raise UsageError("--bundle", "a bundle is of one model; give one IN.")
    if loadgen is not None and (scenario is None or len(sources) > 1):
        raise UsageError("--loadgen", "LoadGen asks one model in one scenario; give one IN and --scenario.")
    shapes, dims = parse_shapes(shape), parse_sizes(dim)
    if scenario is not None:
        for source in sources:
            with progress(f"serving {source.name}") as tell:
                record = graphopt.serve(
                    source, peers, scenario, bundle=bundle, shapes=shapes, dims=dims, feeds=feeds or None,
                    queries=queries, threads=threads, machine=read_machine(machine, tell),
                    tune=seconds_of(tune, here=True), loadgen=loadgen, progress=tell,
                )  # fmt: skip
            shown(record, json, _print_served)
        return
    results: list[BenchRecord] = []
    for source in sources:
        with progress(f"measuring {source.name}") as tell:
            results += graphopt.measure(
                source, peers, bundle=bundle, shapes=shapes, dims=dims, feeds=feeds or None, rounds=rounds,
                threads=threads, machine=read_machine(machine, tell), tune=seconds_of(tune, here=True), progress=tell,
            )  # fmt: skip
    shown(BenchFile(tuple(results)), json, _print)


def _print_served(screen: Screen, record: msgspec.Struct) -> None:
    assert isinstance(record, ScenarioRecord), "what --scenario shows"
    columns = ("queries/s",) if record.scenario == "offline" else ("p50", "p90", "p99")
    title = f"{record.model}, {record.scenario}, {several(record.threads, 'thread')}"
    table = Table(title, "precision", *columns, "beside ours", "memory", left=(0, 1))
    for line in record.lines:
        times = [f"{one:.3f} ms" for one in (line.p50, line.p90, line.p99) if one is not None]
        rates = [f"{line.rate:,.1f}"] if line.rate is not None else []
        beside = "" if line.ratio is None else f"{line.ratio:.2f}, {line.low:.2f} to {line.high:.2f}"
        table.add(line.name, line.precision, *times, *rates, beside, binary_size(line.memory))
    screen.table(table)
    screen.line(f"{'queries':<13} {record.queries:,} of each, by turns; beside ours: above 1 ours is faster")
    if record.loadgen is not None:
        screen.line(f"{'LoadGen':<13} {record.loadgen}")


def _print(screen: Screen, record: msgspec.Struct) -> None:
    assert isinstance(record, BenchFile), "what this command shows"
    for result in record.results:
        one = result.comparison
        table = Table(Path(result.model).name, "precision", "median", left=(0, 1))
        table.add("graphopt", result.precision, f"{one.ours_ms:.3f} ms")
        table.add(one.peer, one.precision, f"{one.peer_ms:.3f} ms")
        screen.table(table)
        screen.line(f"{'ratio':<13} {one.ratio:.2f}, {one.low:.2f} to {one.high:.2f}; above 1 ours is faster")
        apart = f"{one.max_abs:.1e}, {one.max_rel:.1e} of the largest element"
        screen.line(f"{'difference':<13} {apart if math.isfinite(one.max_abs) else 'the outputs have other dims'}")
