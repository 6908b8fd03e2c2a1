"""Commands given a folder: their options as words for each model, and one table of what became of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from click.core import ParameterSource

from graphopt.cli.options import UsageError, print_json, progress
from graphopt.extras import missing
from graphopt.files.single import write_file
from graphopt.flows.many import models_in, run_many, task, write_results
from graphopt.flows.records.many import ManyRecord
from graphopt.lazy import Lazy
from graphopt.report.many import print_many
from graphopt.report.screen import screen

pages = Lazy("graphopt.report.many_page")
F = TypeVar("F", bound=Callable[..., object])
WRITTEN = ("html", "trace", "annotate", "report")  # files of one model
PATHS = ("feeds",)
OWN = ("jobs", "dask", "json", "output", "out", *WRITTEN)  # options of the run, not of a model


def many_options(command: F, alone: str = "") -> F:
    """The options of a command that also takes a folder; `alone` is what a cluster does for one model."""
    jobs = click.option(
        "--jobs", type=click.IntRange(min=1), default=1, metavar="N",
        help="With a folder: so many models at a time, each in a process of its own.",
    )  # fmt: skip
    dask = click.option(
        "--dask", metavar="ADDRESS",
        help=f"With a folder: on the workers of this Dask cluster, which see the same files (graphopt[dask]).{alone}",
    )  # fmt: skip
    return jobs(dask(click.pass_context(command)))  # type: ignore[return-value]  # click knows no such type


def run_folder(
    ctx: click.Context, folder: Path, place: Path | None, words: Callable[[Path], tuple[Sequence[str], Path | None]]
) -> None:
    """Run this command on each model of a folder; `words` gives its arguments, and what it makes.

    Exit status 1 where a model was refused, its process died, or two models differ.
    """
    for name in WRITTEN:
        if ctx.params.get(name):
            raise UsageError(f"--{name}", "is for one model; results of a folder stand in its results.json and .html.")
    command = ctx.info_name or ""
    given = _options(ctx)
    tasks = []
    folder, place = folder.absolute(), None if place is None else place.absolute()  # workers may stand elsewhere
    for model in models_in(folder):
        own, makes = words(model)
        if makes is not None:
            makes.parent.mkdir(parents=True, exist_ok=True)
        tasks.append(task(model, folder, (command, *own, *given), makes))
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    with progress(f"{command} {folder}") as tell:
        record = run_many(
            command, folder, tasks, place, jobs=ctx.params["jobs"], dask=ctx.params["dask"], progress=tell
        )
    _show(record, place, ctx.params["json"])
    if any(result.status != "done" or (result.record or {}).get("equal") is False for result in record.results):
        raise click.exceptions.Exit(1)


def _show(record: ManyRecord, place: Path | None, json: bool) -> None:
    text = screen(for_errors=json)
    if json:
        print_json(record)
    print_many(text, record)
    if place is not None:
        write_results(record, place)
        text.line(f"{'results':<13} written to {place / 'results.json'}")
        try:
            write_file(place / "results.html", pages.many_page(record))
            text.line(f"{'page':<13} written to {place / 'results.html'}")
        except ModuleNotFoundError as error:  # the results are there all the same
            text.line(f"{'page':<13} none: {missing(error) or error}")


def _options(ctx: click.Context) -> list[str]:
    """The options of the command line that are for each model, as words."""
    words: list[str] = []
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not isinstance(parameter, click.Option) or name in OWN or not given:
            continue
        value = ctx.params[name]
        if parameter.is_flag:
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            for one in value if parameter.multiple else (value,):
                path = Path(one).absolute() if name in PATHS else one  # workers may stand elsewhere
                words += [parameter.opts[0], str(path)]
    return words
