"""`graphopt compile`: write a bundle that runs without Python."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast, get_args

import click

import graphopt
from graphopt.cli.machine import machine_option, read_machine
from graphopt.cli.many import many_options, run_folder
from graphopt.cli.options import (
    PATH,
    UsageError,
    defaults_option,
    feeds_option,
    json_option,
    parse_budget,
    parse_shapes,
    parse_sized_dims,
    parse_values,
    progress,
    range_option,
    shape_option,
    shown,
    switch,
    tolerance_option,
    value_option,
)
from graphopt.cli.streams import read_source
from graphopt.cli.tune import seconds_of, tune_option
from graphopt.flows.compiled_record import compile_record
from graphopt.model.text import nearest
from graphopt.program.deploy.bundle import replaced_files
from graphopt.program.deploy.manifest import read_manifest
from graphopt.program.make import Form
from graphopt.program.regions.precision import PrecisionName
from graphopt.report.compilation import print_compile
from kernels.target import TargetName


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.argument("output", metavar="OUT_DIR", type=PATH)
@click.option(
    "--target", "targets", default="host", metavar="NAME[,NAME]", show_default=True,
    help=f"The processor that the code is for: {', '.join(get_args(TargetName))}. Several are joined by commas; a "
    "model runs the first that its processor has.",
)  # fmt: skip
@click.option(
    "--name", metavar="NAME",
    help="Of the library and of its functions in C, so that several bundles fit into one program; else the file's.",
)  # fmt: skip
@click.option(
    "--as", "form", type=click.Choice(get_args(Form)), default="bundle", show_default=True,
    help="A program of its own, or an ONNX file with custom operators and their library, for ONNX Runtime.",
)  # fmt: skip
@shape_option
@range_option
@switch("--caches", "Outputs that begin with the rows of an input (keys and values of a decoder) lie in its memory.")
@value_option
@defaults_option
@switch("--small", "No transformed weights, which would take memory beside those of the file; sometimes slower.")
@click.option(
    "--precision", type=click.Choice(get_args(PrecisionName)), default="float32", show_default=True,
    help="bf16: products and convolutions multiply rounded numbers on matrix units or dot products of pairs, "
    "within --tolerance of each output's largest element (0.01).",
)  # fmt: skip
@switch("--exact", "No Winograd convolutions: closer to ONNX Runtime, sometimes slower.")
@click.option(
    "--memory-budget", metavar="SIZE",
    help="What the arena may take, for example 40MiB, or 50% of what it takes without; kernels then run again or in "
    "tiles.",
)  # fmt: skip
@click.option(
    "--ram", metavar="SIZE",
    help="What the process may take for the program with as many --threads, for example 300MiB or 30%; weights beyond "
    "it are read while it runs.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(min=0), default=0, metavar="N",
    help="How many threads the comparison runs with, 0: all cores, and the bundle is planned for, 0: four. A bundle of "
    "1 holds nothing that several need; any other is run by any number.",
)  # fmt: skip
@machine_option
@tune_option
@switch("--unchecked", "Write a program that could not be compared, as nothing here can run it.")
@feeds_option
@tolerance_option
@json_option
@partial(many_options, alone=" With one model and --tune: kernels are measured there, on machines of this one's kind.")
def command(
    ctx: click.Context, source: Path, output: Path, targets: str, name: str | None, form: Form,
    shape: tuple[str, ...], dim: tuple[str, ...], caches: bool, value: tuple[str, ...], fix_defaults: bool,
    small: bool, exact: bool, precision: PrecisionName,
    memory_budget: str | None, ram: str | None, threads: int, machine: str | None, tune: float | None, unchecked: bool,
    feeds: tuple[str, ...], tolerance: float | None, json: bool, jobs: int, dask: str | None,
) -> None:  # fmt: skip
    """Compile a model into a shared library with its weights, a C header, an example, and a Python module.

    The program is compared with ONNX Runtime (optimizations off) before anything is written. One for another processor
    runs in QEMU for that; where there is none, it is written with --unchecked only. If an operator has no kernel yet,
    compile stops and lists it; in Python, graphopt.compile runs just those in ONNX Runtime, and so does what
    --as onnxruntime writes. Of a folder every model becomes a bundle in OUT_DIR.
    """
    target = _parse_targets(targets)
    here = target == ["host"]
    by_record = here or machine is not None
    if source.is_dir():
        with progress(f"compiling {source.name}") as tell:
            if by_record:
                read_machine(machine, tell)  # measured once, and not by the processes of all models

        def words(model: Path) -> tuple[tuple[str, str], Path]:
            makes = (output.absolute() / model.relative_to(source.absolute())).with_suffix("")
            return (str(model), str(makes)), makes

        return run_folder(ctx, source, output, words)
    if dask is not None and not tune:
        reason = (
            "a cluster measures the kernels of one model; say for how long with --tune, or give a folder of models."
        )
        raise UsageError("--dask", reason)
    shapes, dims = parse_shapes(shape), parse_sized_dims(dim)
    budget = parse_budget(memory_budget, "--memory-budget")
    replaced_files(output)  # refuses before the work is done what could not be written after it
    with progress(f"compiling {source.name}") as tell:
        record = read_machine(machine, tell) if by_record else None
        compiled = graphopt.compile(
            read_source(source), target=target, name=name, shapes=shapes, dims=dims, values=parse_values(value),
            fix_defaults=fix_defaults, feeds=feeds or None, tolerance=tolerance, exact=exact, small=small,
            precision=precision,
            memory_budget=budget, ram=parse_budget(ram, "--ram"), threads=threads, machine=record,
            tune=seconds_of(tune, here=here), dask=dask, form=form,
            caches=caches, progress=tell,
        )  # fmt: skip
        if compiled.not_compared is not None and not unchecked:
            reason = f"the program was not compared: {compiled.not_compared}; add --unchecked to write it all the same."
            raise UsageError("--target", reason)
        tell("writing")
        compiled.save(output, unchecked=unchecked)
    written = None if form != "bundle" or target == ["wasm32"] else read_manifest(output, library=False)
    shown(compile_record(compiled, str(source), str(output), record, written), json, print_compile)


def _parse_targets(text: str) -> list[TargetName]:
    """Names of processors, joined by commas."""
    known = get_args(TargetName)
    for name in text.split(","):
        if name not in known:
            raise UsageError("--target", f"there is no target '{name}'; {nearest(name, known)}.")
    return [cast(TargetName, name) for name in text.split(",")]
