"""`graphopt bench`: a program beside other runtimes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich import box
from rich.table import Table

from graphopt import api
from graphopt.check.feeds import make_feed
from graphopt.check.given import read_feeds
from graphopt.check.inputs import inputs_of
from graphopt.cli.options import FeedFiles, Json, UsageError, console, parse_shapes, parse_sizes, print_json, progress
from graphopt.model.dimensions import change_dims
from graphopt.model.self_contained import self_contained
from graphopt.program.deploy.benchmark import SIDES, Comparison, Side, compare_sides


class BenchRecord(msgspec.Struct, frozen=True):
    """One model beside one peer; times in milliseconds, medians."""

    model: str
    threads: int
    precision: str  # of ours
    comparison: Comparison


class BenchFile(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    results: tuple[BenchRecord, ...]
    schema: str = "graphopt.bench/1"


def command(
    sources: Annotated[list[Path], typer.Argument(metavar="IN...", help="Models to compile and measure.")],
    against: Annotated[str, typer.Option(metavar="NAMES", help="Peers, joined by commas.")] = "onnxruntime",
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1x3x224x224", help="Fix the shape of an input; repeatable.")
    ] = None,
    dim: Annotated[list[str] | None, typer.Option(metavar="NAME=SIZE", help="Fix a dynamic dim; repeatable.")] = None,
    feeds: FeedFiles = None,
    rounds: Annotated[int, typer.Option(min=3, metavar="N", help="Readings of each side.")] = 15,
    json: Json = False,
) -> None:
    """Compile models and measure them beside other runtimes, by turns, on one thread.

    Measured is the first of `--feeds`, or a seeded feed. Shows medians, the ratio with a 95 % interval (above 1, ours
    is faster), the largest difference between the results, and the precision of each side.
    """
    peers = against.split(",")
    for name in peers:
        if name not in SIDES:
            raise UsageError("--against", f"there is no peer '{name}'; there are {', '.join(SIDES)}.")
    shapes, dims = parse_shapes(shape or ()), parse_sizes(dim or ())
    results = []
    for source in sources:
        with progress(f"measuring {source.name}"):
            model = api.load(source)
            if shapes or dims:
                change_dims(model, shapes, dims)
            program = api.compile(source, shapes=shapes, dims=dims, feeds=feeds)
            own = read_feeds(model, feeds)
            drawn = own[0].feed if own else make_feed(inputs_of(model), {}, "normal")
            feed = {name: np.asarray(value) for name, value in drawn.items()}
            proto = self_contained(model).proto.SerializeToString()
            ours = Side("graphopt", "f32", partial(program.run, None, feed))
            sides = [SIDES[name](proto, feed, 1) for name in peers]
            found = compare_sides(ours, sides, rounds=rounds)
            results += [BenchRecord(str(source), 1, ours.precision, one) for one in found]
    if json:
        print_json(BenchFile(tuple(results)))
    screen = console(json)
    for record in results:
        one = record.comparison
        screen.print(Path(record.model).name, style="bold", markup=False)
        table = Table(box=box.SIMPLE, show_header=False)
        table.add_row("graphopt", record.precision, f"{one.ours_ms:.3f} ms")
        table.add_row(one.peer, one.precision, f"{one.peer_ms:.3f} ms")
        table.add_row("ratio", f"{one.ratio:.2f}", f"{one.low:.2f} to {one.high:.2f}; above 1 ours is faster")
        table.add_row("difference", f"{one.max_abs:.1e}", f"{one.max_rel:.1e} of the largest element")
        screen.print(table)
