"""The lines of `graphopt compile`."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from graphopt.flows.records.compilation import CompileRecord


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
