"""`graphopt compile`: write a bundle that runs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphopt import api
from graphopt.cli.options import (
    FeedFiles,
    FixDefaults,
    Json,
    Tolerance,
    UsageError,
    Values,
    console,
    parse_budget,
    parse_shapes,
    parse_sizes,
    parse_values,
    print_json,
    progress,
)
from graphopt.flows.compile import compile_record
from graphopt.program.deploy.bundle import replaced_files
from graphopt.report.compilation import print_compile
from kernels.target import TargetName


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The model to read.")],
    output: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="The folder to write.")],
    target: Annotated[TargetName, typer.Option(help="The processor that the code is for.")] = "host",
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=1x3x224x224", help="Fix the shape of an input; repeatable.")
    ] = None,
    dim: Annotated[list[str] | None, typer.Option(metavar="NAME=SIZE", help="Fix a dynamic dim; repeatable.")] = None,
    value: Values = None,
    fix_defaults: FixDefaults = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Leave out kernels that round otherwise than a plain sum (Winograd).")
    ] = False,
    memory_budget: Annotated[
        str | None, typer.Option(metavar="40MiB", help="What the arena may take; kernels then run again or in tiles.")
    ] = None,
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="Write a program that could not be compared, as nothing here can run it."),
    ] = False,
    feeds: FeedFiles = None,
    tolerance: Tolerance = None,
    json: Json = False,
) -> None:
    """Compile a model into a shared library with its weights, a C header, an example, and a Python module.

    The program is compared with ONNX Runtime (optimizations off) before anything is written. One for another processor
    runs in QEMU for that; where there is none, it is written with --unchecked only.

    An operator without a kernel is refused by name; from Python, graphopt.compile runs it in ONNX Runtime.
    """
    with progress("compiling"):
        shapes, dims = parse_shapes(shape or ()), parse_sizes(dim or ())
        budget = parse_budget(memory_budget, "--memory-budget")
        replaced_files(output)  # refuses before the work is done what could not be written after it
        compiled = api.compile(
            source,
            target=target,
            shapes=shapes,
            dims=dims,
            values=parse_values(value or ()),
            fix_defaults=fix_defaults,
            feeds=feeds,
            tolerance=tolerance,
            exact=exact,
            memory_budget=budget,
        )
        if compiled.not_compared is not None and not unchecked:
            reason = f"the program was not compared: {compiled.not_compared}; add --unchecked to write it all the same."
            raise UsageError("--target", reason)
        compiled.save(output, unchecked=unchecked)
    record = compile_record(compiled, str(source), str(output))
    if json:
        print_json(record)
    print_compile(console(json), record)
