"""`graphopt run`: run a bundle, or a model in ONNX Runtime, on arrays from files or on random ones."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import get_args

import click
import numpy as np

from graphopt.cli.arrays import input_option, random_option, read_inputs
from graphopt.cli.options import PATH, json_option, shown
from graphopt.files.place import told
from graphopt.files.single import write_file
from graphopt.flows.records.run import OutputLine, RunRecord
from graphopt.flows.run import Growth, open_program, random_feed
from graphopt.program.deploy.cuda.running import RunOn
from graphopt.report.running import print_run


@click.command()
@click.argument("program", metavar="BUNDLE|MODEL", type=PATH)
@input_option
@random_option
@click.option("--repeat", type=click.IntRange(min=1), default=1, metavar="N", help="Run so often, and show the times.")
@click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N", help="How many run it; 0: all cores.")
@click.option(
    "--on", type=click.Choice(get_args(RunOn)),
    help="Where a bundle for a GPU runs: on the first GPU, or a small one on the PTX machine, which needs none.",
)  # fmt: skip
@click.option("--output", metavar="DIR", type=PATH, help="Write each output there as NAME.npy.")
@json_option
def command(
    program: Path, input: tuple[str, ...], random: bool, repeat: int, threads: int, on: RunOn | None,
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Run a bundle that `graphopt compile` wrote, or a model in ONNX Runtime, and show its outputs.

    A model runs with the options under which a memory budget holds: no arena, no reuse of dead buffers by size.
    """
    growth = Growth()
    runnable = open_program(program, threads=threads, on=on)
    feeds = random_feed(runnable) | read_inputs(list(runnable.inputs), input, random=random)
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        found = runnable.call(feeds)
        seconds.append(time.perf_counter() - started)
    lines = tuple(_line(name, array) for name, array in found.items())
    times = tuple(1e3 * second for second in seconds)
    ram, grown = runnable.ram, growth.bytes
    planned = (None, grown) if ram is None else (ram.bytes, grown, ram.fetched, ram.spilled)
    record = RunRecord(str(program), runnable.engine, lines, times, *planned)
    place = shown(record, json, print_run)
    if output is not None:
        for name, array in found.items():
            _write(output, f"{name.replace('/', '_')}.npy", array)
        place.line(f"{'outputs':<13} written to {output}")


def _line(name: str, array: np.ndarray) -> OutputLine:
    first = np.array2string(array.reshape(-1)[:6], precision=5, separator=", ")
    return OutputLine(name, str(array.dtype), array.shape, first)


def _write(folder: Path, name: str, array: np.ndarray) -> None:
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.save(content, array)
    write_file(folder / name, content.getbuffer())
