"""What compiling a model gave: the record for JSON, and the lines for the terminal."""

from __future__ import annotations

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table


class CompileRecord(msgspec.Struct, frozen=True):
    """A bundle that was written."""

    input: str
    output: str
    target: str  # the processor that the code is for
    regions: int
    kernels: int  # different ones
    weights_bytes: int
    arena_bytes: int
    arena_bound_bytes: int  # the live peak: no arena is smaller
    scratch_bytes: int
    seconds: float  # without the comparison
    max_abs: float  # from ONNX Runtime without optimizations, on seeded feeds and those that were given
    max_rel: float
    not_compared: str | None = None  # why the program was not compared; both differences are 0 then
    feeds: int = 0  # that were compared
    rounding: float = 0.0  # the largest difference beyond the kernels' allowance, in multiples of the model's rounding
    remade: str | None = None  # what was wrong with a first program, in whose place an exact one was made
    schema: str = "graphopt.compile/1"


def print_compile(screen: Console, record: CompileRecord) -> None:
    """A few lines."""
    compared = (
        f"equal to ONNX Runtime on {record.feeds} feeds, largest difference {record.max_abs:.1e} "
        f"({record.max_rel:.1e} relative)"
    )
    if record.rounding:
        compared += f", within {record.rounding:.2g} x the model's own rounding"
    if record.remade is not None:
        compared += f"; made again with exact kernels, as the first program was not ({record.remade})"
    if record.not_compared is not None:
        compared = f"not: {record.not_compared}"
    table = Table(box=box.SIMPLE, show_header=False)
    for label, text in (
        ("regions", f"{record.regions}, {record.kernels} different kernels, for {record.target}"),
        ("weights", f"{record.weights_bytes / 1e6:,.1f} MB"),
        ("arena", f"{record.arena_bytes:,} bytes (the least possible: {record.arena_bound_bytes:,})"),
        ("compared", compared),
        ("written", f"{record.output} in {record.seconds:.1f} s"),
    ):
        table.add_row(label, text)
    screen.print(table)
