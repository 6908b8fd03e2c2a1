"""`python -m memplan remat`: a sequence of runs within a budget, for a graph in networkx's node-link JSON."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import partial
from pathlib import Path

import click

from memplan.compiling import telling
from memplan.problem import InvalidProblem
from memplan.remat.graph_file import read_graph
from memplan.remat.recompute import recompute
from memplan.verify.sequence import verify_sequence

WORK = 60_000_000_000  # steps


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--budget", required=True, help="Bytes, or as a fraction (0.8) of the peak of the given order.")
@click.option("--work", type=click.IntRange(min=0), help="Steps of searching at most, a nanosecond each, about.")
@click.option(
    "--time-limit", type=click.FloatRange(min=0.0),
    help="Seconds of searching at most, instead: the result may then be another next time.",
)  # fmt: skip
def command(file: Path, budget: str, work: int | None, time_limit: float | None) -> None:
    """A sequence in which nodes may run again, so that no step needs more than the budget, as JSON.

    FILE is node-link JSON with cost_cpu and cost_ram at each node.
    """
    given = read_graph(file)
    given_peak = verify_sequence(given.graph, given.order)
    most = parse_budget(budget, given_peak)
    usual = WORK if time_limit is None else None
    with telling(partial(click.echo, err=True)):
        found = recompute(given.graph, most, work=usual if work is None else work, time_limit=time_limit)
    peak = verify_sequence(given.graph, found.order, most)
    result = {
        "budget": most,
        "given_peak": given_peak,
        "peak": peak,
        "lower_bound": found.lower_bound,
        "time": found.time,
        "extra_time_percent": found.extra_percent,
        "solver": found.solver,
        "limited": found.limited,
        "sequence": [given.ids[name] for name in found.order],
    }
    click.echo(json.dumps(result))


def parse_budget(text: str, peak: int) -> int:
    """Bytes from a whole number, or from a fraction of `peak` bytes (rounded down). Raises InvalidProblem."""
    try:
        wanted = Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidProblem(f"'{text}' is no budget: give bytes, or a fraction of the peak such as 0.8.") from error
    if wanted < 0:
        raise InvalidProblem(f"a budget of {text} is negative.")
    if text.strip().lstrip("+").isdigit():
        return int(wanted)
    if wanted > 1:
        raise InvalidProblem(f"'{text}' is no budget: bytes are whole, and a fraction of the peak is at most 1.")
    return int(wanted * peak)
