"""`graphopt run`: run a bundle, or a model in ONNX Runtime, on arrays from files or on random ones."""

from __future__ import annotations

import io
import time
from pathlib import Path

import click
import numpy as np

from graphopt.cli.options import PATH, UsageError, json_option, several, shown, switch
from graphopt.errors import OptionError
from graphopt.files.place import told
from graphopt.files.single import write_file
from graphopt.flows.records.run import OutputLine, RunRecord
from graphopt.flows.run import Runnable, open_program, random_feed
from graphopt.model.text import nearest
from graphopt.report.running import print_run


@click.command()
@click.argument("program", metavar="BUNDLE|MODEL", type=PATH)
@several(
    "--input", metavar="NAME=FILE.npy", text="An input; NAME= may be left out when there is one",
)  # fmt: skip
@switch("--random", "Draw the inputs that are not given, by a seed that stays the same.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, metavar="N", help="Run so often, and show the times.")
@click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N", help="How many run it; 0: all cores.")
@click.option("--output", metavar="DIR", type=PATH, help="Write each output there as NAME.npy.")
@json_option
def command(
    program: Path, input: tuple[str, ...], random: bool, repeat: int, threads: int, output: Path | None, json: bool
) -> None:  # fmt: skip
    """Run a bundle that `graphopt compile` wrote, or a model in ONNX Runtime, and show its outputs.

    A model runs with the options under which a memory budget holds: no arena, no reuse of dead buffers by size.
    """
    runnable = open_program(program, threads=threads)
    feeds = _feeds(runnable, input)
    missing = [name for name in runnable.inputs if name not in feeds]
    if missing and not random:
        raise UsageError("--input", f"'{missing[0]}' is missing: give --input {missing[0]}=FILE.npy, or --random.")
    feeds = random_feed(runnable) | feeds
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        found = runnable.call(feeds)
        seconds.append(time.perf_counter() - started)
    lines = tuple(_line(name, array) for name, array in found.items())
    times = tuple(1e3 * second for second in seconds)
    place = shown(RunRecord(str(program), runnable.engine, lines, times), json, print_run)
    if output is not None:
        for name, array in found.items():
            _write(output, f"{name.replace('/', '_')}.npy", array)
        place.line(f"{'outputs':<13} written to {output}")


def _feeds(runnable: Runnable, given: tuple[str, ...]) -> dict[str, np.ndarray]:
    names = list(runnable.inputs)
    feeds = {}
    for text in given:
        name, separator, path = text.rpartition("=")
        if not separator:
            if len(names) != 1:
                raise UsageError("--input", f"'{text}' names no input; there are {', '.join(names)}.")
            name = names[0]
        if name not in names:
            raise UsageError("--input", f"there is no input '{name}'; {nearest(name, names)}.")
        feeds[name] = _read(Path(path))
    return feeds


def _line(name: str, array: np.ndarray) -> OutputLine:
    first = np.array2string(array.reshape(-1)[:6], precision=5, separator=", ")
    return OutputLine(name, str(array.dtype), array.shape, first)


def _write(folder: Path, name: str, array: np.ndarray) -> None:
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.save(content, array)
    write_file(folder / name, content.getbuffer())


def _read(path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise OptionError(f"'{path}' does not exist; check the path.") from None
    except (OSError, ValueError) as error:
        raise OptionError(f"'{path}' is no array that can be read: {error}; write it with numpy.save.") from error
    return array
