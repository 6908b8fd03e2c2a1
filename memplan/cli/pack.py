"""`python -m memplan pack`: offsets for the buffers of a CSV file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from memplan.packing.csv_file import read_csv, write_csv
from memplan.packing.solve import solve, warm_up


def command(
    file: Annotated[Path, typer.Argument(help="CSV: id,lower,upper,size; may have alignment, offset, gaps.")],
    capacity: Annotated[
        int | None, typer.Option(help="Bytes of the arena; without it the least arena is looked for.")
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds of solving at most.")] = 30.0,
    output: Annotated[Path | None, typer.Option(help="Write the buffers with their offsets to this CSV file.")] = None,
) -> None:
    """Offsets for buffers with known lifetimes, as JSON: one arena within a capacity, or the least one."""
    problem = read_csv(file).with_capacity(capacity)
    warm_up()
    begun = time.perf_counter()
    packing = solve(problem, time_limit=time_limit)
    seconds = time.perf_counter() - begun
    if output is not None:
        write_csv(problem, output, packing)
    result = {
        "arena_size": packing.arena_size,
        "lower_bound": packing.lower_bound,
        "fragmentation": packing.fragmentation,
        "proved_optimal": packing.proved_optimal,
        "solver": packing.solver,
        "seconds": round(seconds, 3),
        "offsets": dict(packing.offsets),
    }
    typer.echo(json.dumps(result))
