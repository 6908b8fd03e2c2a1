"""`python -m memplan pack`: offsets for the buffers of a CSV file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from memplan.compiling import Stopwatch, telling
from memplan.packing.csv_file import read_csv, write_csv
from memplan.packing.solve import solve

WORK = 30_000_000_000  # steps


def command(
    file: Annotated[Path, typer.Argument(help="CSV: id,lower,upper,size; may have alignment, offset, gaps.")],
    capacity: Annotated[
        int | None, typer.Option(help="Bytes of the arena; without it the least arena is looked for.")
    ] = None,
    work: Annotated[int | None, typer.Option(help="Steps of searching at most, a nanosecond each, about.")] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(help="Seconds of solving at most, instead: the result may then be another next time."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the buffers with their offsets to this CSV file.")] = None,
) -> None:
    """Offsets for buffers with known lifetimes, as JSON: one arena within a capacity, or the least one."""
    problem = read_csv(file).with_capacity(capacity)
    usual = WORK if time_limit is None else None
    watch = Stopwatch()
    with telling(partial(typer.echo, err=True)), watch.running():
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
    typer.echo(json.dumps(result))
