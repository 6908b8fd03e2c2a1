"""`graphopt quantize`: a model that computes in bytes where that was measured to pay."""

from __future__ import annotations

from pathlib import Path

import click

import graphopt
from graphopt.cli.options import (
    PATH,
    check_outputs,
    json_option,
    parse_shapes,
    parse_sizes,
    parse_values,
    progress,
    several,
    shape_option,
    shown,
    size_option,
    value_option,
    write_reports,
)
from graphopt.cli.streams import read_source
from graphopt.flows.quantize import BUDGET
from graphopt.flows.records.encode import encode
from graphopt.quantization.formats import FORMATS, FormatName
from graphopt.quantization.latency import ENGINES, Engine
from graphopt.quantization.search import AIMS, Aim
from graphopt.report.quantization import print_quantization


@click.command()
@click.argument("source", metavar="MODEL", type=PATH)
@click.argument("output", metavar="OUT", type=PATH)
@several(
    "--data", metavar="FILE.npz|FOLDER",
    text="Calibration data: a .npz file with an array of samples for each input, or a folder of feeds",
)  # fmt: skip
@click.option(
    "--budget-error", type=float, default=BUDGET, metavar="E", show_default=True,
    help="The largest root mean square of the difference from float32, in shares of an output's.",
)  # fmt: skip
@click.option(
    "--format", "formats", type=click.Choice(FORMATS), multiple=True,
    help="A format that nodes may take; repeatable.  [default: all]",
)  # fmt: skip
@click.option(
    "--minimize", type=click.Choice(AIMS), default="latency", show_default=True,
    help="What is made least within the budget.",
)  # fmt: skip
@click.option(
    "--engine", type=click.Choice(ENGINES), default="onnxruntime", show_default=True,
    help="Where latency is measured: ONNX Runtime, or our own program.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), default=1, metavar="N", show_default=True, help="Of the engine.")
@shape_option
@size_option
@value_option
@click.option("--report", type=PATH, metavar="FILE.json", help="Write the record, every node in every format.")
@json_option
def command(
    source: Path, output: Path, data: tuple[str, ...], budget_error: float, formats: tuple[FormatName, ...],
    minimize: Aim, engine: Engine, threads: int, shape: tuple[str, ...], dim: tuple[str, ...], value: tuple[str, ...],
    report: Path | None, json: bool,
) -> None:  # fmt: skip
    """Write MODEL with products and convolutions in bytes, each chosen by its measured error and latency.

    Without --data no ranges of activations are known: products alone are quantized, their operands at the run or their
    weights.
    """
    check_outputs(source, (("OUT", output), ("--report", report)))
    with progress(f"quantizing {source.name}") as hear:
        result = graphopt.quantize(
            read_source(source), list(data) or None, budget_error=budget_error, formats=formats or FORMATS,
            minimize=minimize, engine=engine, threads=threads, shapes=parse_shapes(shape), dims=parse_sizes(dim),
            values=parse_values(value), progress=hear,
        )  # fmt: skip
    result.save(output)
    place = shown(result.record(str(output)), json, print_quantization)
    write_reports(place, result.record(str(output)), [(report, "report", encode)])
