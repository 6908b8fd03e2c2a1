"""The runs of a program by one worker, as LLVM: one after the other, read from a table.

    alone(record, scratch)    every block of every run; noted where the model is profiled, which is asked once a call

A table takes 12 bytes for a run, fewer than a piece of code for each, and none of LLVM's time.
"""

from __future__ import annotations

import itertools

from kernels.emit import layout as at
from kernels.emit.layout import MemoryLayout
from kernels.emit.stamping import is_stamped, run_block, stamp
from kernels.listing import Listing
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

KERNELS = Value(("@alone.kernels",), "ptr")  # a table of them, by their number in the listing
_ROW = 3  # words: the kernel's number, its blocks, where the table of operands starts in the record


def write_alone(module: Module, listing: Listing, layout: MemoryLayout, *, kernels_only: bool = False) -> None:
    """Add the function, its table, and the table of kernels; or this table alone."""
    module.constant(
        "alone.kernels", "ptr", [f"@{listing.symbol(kernel.name)}" for kernel in listing.kernels] or ["null"], align=8
    )
    if kernels_only:
        return
    number = {kernel.name: place for place, kernel in enumerate(listing.kernels)}
    tables = itertools.accumulate((8 * len(run.operands) for run in listing.runs), initial=layout.tables)
    words = [
        word
        for run, table in zip(listing.runs, tables, strict=False)
        for word in (number[run.kernel], listing.kernels[number[run.kernel]].blocks, table)
    ]
    rows = Value((module.constant("alone.runs", "i32", [str(word) for word in words or [0]], align=4),), "ptr")
    f = Function(module, "alone", (Parameter("record"), Parameter("scratch")))
    record, scratch = f.parameter("record"), f.parameter("scratch")
    job = f.at(record, at.SHARED, "i8")
    stamped = is_stamped(f, job)

    def run(row: Value, _: tuple[Value, ...]) -> None:
        start = f.at(rows, f.mul(row, _ROW), "i32")
        which, blocks, offset = (
            f.convert("zext", "i64", f.load("i32", f.at(start, place, "i32"))) for place in range(_ROW)
        )
        kernel, table = f.load("ptr", f.at(KERNELS, which, "ptr")), f.at(record, offset, "i8")
        if listing.sizes:
            blocks = f.load("i64", f.at(f.at(record, layout.blocks, "i8"), which, "i64"))

        def block(place: Value, _: tuple[Value, ...]) -> None:
            run_block(f, kernel, table, place, scratch)

        def noted(place: Value, _: tuple[Value, ...]) -> None:
            stamp(f, job, row, f.integer(0), place, lambda: run_block(f, kernel, table, place, scratch))

        f.when(stamped, lambda: f.loop(0, blocks, 1, noted), lambda: f.loop(0, blocks, 1, block))

    f.loop(0, len(listing.runs), 1, run)
    f.finish()
