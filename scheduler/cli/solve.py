"""`python -m scheduler solve`: the best schedule of a Standard Task Graph file on so many workers, as JSON."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from scheduler.compiling import Stopwatch, telling
from scheduler.lists.solve import solve
from scheduler.lists.tasks import check_workers
from scheduler.stg import read_stg


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--workers", type=int, required=True, help="How many identical workers there are.")
@click.option("--work", type=click.IntRange(min=0), help="Tasks and edges that local search handles at most.")
@click.option(
    "--time-limit", type=click.FloatRange(min=0.0),
    help="Seconds of solving at most: what this cuts short may be another next time.",
)  # fmt: skip
def command(file: Path, workers: int, work: int | None, time_limit: float | None) -> None:
    """The shortest schedule found, the best lower bound, and when and where each task runs, as JSON.

    FILE is a Standard Task Graph file.
    """
    graph = read_stg(file)
    check_workers(workers)
    watch = Stopwatch()
    with telling(partial(click.echo, err=True)), watch.running():
        solved = solve(graph.tasks, workers, work=work, time_limit=time_limit)
    result = {
        "makespan": _plain(solved.makespan),
        "lower_bound": _plain(solved.lower_bound),
        "bound": solved.bound_name,
        "proved_optimal": solved.proved_optimal,
        "solver": solved.solver,
        "limited": solved.limited,
        "seconds": round(watch.seconds(), 3),
        "assignment": [
            {"task": number, "worker": worker, "start": _plain(start)}
            for number, worker, start in zip(graph.numbers, solved.worker.tolist(), solved.start.tolist(), strict=True)
        ],
    }
    click.echo(json.dumps(result))


def _plain(value: float) -> int | float:
    """A whole number without a decimal point."""
    return int(value) if value.is_integer() else value
