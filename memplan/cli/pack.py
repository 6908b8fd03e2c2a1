"""`python -m memplan pack`: offsets for the buffers of a CSV file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from memplan.compiling import Stopwatch, telling
from memplan.packing.csv_file import read_csv, write_csv
from memplan.packing.solve import solve

WORK = 30_000_000_000  # steps


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--capacity", type=int, help="Bytes of the arena; without it the least arena is looked for.")
@click.option("--work", type=int, help="Steps of searching at most, a nanosecond each, about.")
@click.option(
    "--time-limit", type=float, help="Seconds of solving at most, instead: the result may then be another next time."
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write the buffers with their offsets to this CSV file."
)
def command(file: Path, capacity: int | None, work: int | None, time_limit: float | None, output: Path | None) -> None:
    """Offsets for buffers with known lifetimes, as JSON: one arena within a capacity, or the least one.

    FILE is CSV: id,lower,upper,size; may have alignment, offset, gaps.
    """
    problem = read_csv(file).with_capacity(capacity)
    usual = WORK if time_limit is None else None
    watch = Stopwatch()
    with telling(partial(click.echo, err=True)), watch.running():
        packing = solve(problem, work=usual if work is None else work, time_limit=time_limit)
    if output is not None:
        write_csv(problem, output, packing)
    result = {
        "arena_size": packing.arena_size,
        "lower_bound": packing.lower_bound,
        "fragmentation": packing.fragmentation,
        "proved_optimal": packing.proved_optimal,
        "solver": packing.solver,
        "limited": packing.limited,
        "seconds": round(watch.seconds(), 3),
        "offsets": dict(packing.offsets),
    }
    click.echo(json.dumps(result))
