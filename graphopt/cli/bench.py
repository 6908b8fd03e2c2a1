"""`graphopt bench`: a program beside other runtimes."""

from __future__ import annotations

from pathlib import Path

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
from graphopt.program.deploy.benchmark import SIDES
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
@machine_option
@tune_option
@json_option
def command(
    sources: tuple[Path, ...], against: str, bundle: Path | None, shape: tuple[str, ...], dim: tuple[str, ...],
    feeds: tuple[str, ...], rounds: int, threads: int, machine: str | None, tune: float | None, json: bool,
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
    shapes, dims = parse_shapes(shape), parse_sizes(dim)
    results: list[BenchRecord] = []
    for source in sources:
        with progress(f"measuring {source.name}") as tell:
            results += graphopt.measure(
                source, peers, bundle=bundle, shapes=shapes, dims=dims, feeds=feeds or None, rounds=rounds,
                threads=threads, machine=read_machine(machine, tell), tune=seconds_of(tune, here=True), progress=tell,
            )  # fmt: skip
    shown(BenchFile(tuple(results)), json, _print)


def _print(screen: Screen, record: msgspec.Struct) -> None:
    assert isinstance(record, BenchFile), "what this command shows"
    for result in record.results:
        one = result.comparison
        table = Table(Path(result.model).name, "precision", "median", left=(0, 1))
        table.add("graphopt", result.precision, f"{one.ours_ms:.3f} ms")
        table.add(one.peer, one.precision, f"{one.peer_ms:.3f} ms")
        screen.table(table)
        screen.line(f"{'ratio':<13} {one.ratio:.2f}, {one.low:.2f} to {one.high:.2f}; above 1 ours is faster")
        screen.line(f"{'difference':<13} {one.max_abs:.1e}, {one.max_rel:.1e} of the largest element")
