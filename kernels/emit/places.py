"""Filling the tables of operands: addresses in the arena, the weights, or what the caller passes.

A few are stored one by one, many in a loop over a constant table: LLVM's time grows with the square of the stores that
follow one another, and a program has one for each operand of each run.
"""

from __future__ import annotations

import itertools

from kernels.emit.layout import MemoryLayout
from kernels.listing import Listing
from kernels.llvm.function import Function, Value

_FEW = 16


def write_places(
    f: Function, listing: Listing, layout: MemoryLayout, space: str, argument: int | None, start: Value
) -> None:
    """Store `start` plus its offset for every operand that lies in a space (of the argument of this number).

    The function's first parameter is the record.
    """
    record = Value((f"%{f.parameters[0].name}",), "ptr")
    operands = itertools.chain.from_iterable(run.operands for run in listing.runs)
    rows = [
        (layout.tables + 8 * number, place.offset)
        for number, place in enumerate(operands)
        if place.space == space and argument in (None, place.argument)
    ]
    if len(rows) <= _FEW:
        for entry, offset in rows:
            f.store(f.at(start, offset, "i8"), f.at(record, entry, "i8"))
        return
    name = f"places.{space}{'' if argument is None else argument}"
    words = [str(word) for row in rows for word in row]
    table = Value((f.module.constant(name, "i64", words, align=8),), "ptr")

    def one(number: Value, _: tuple[Value, ...]) -> None:
        row = f.at(table, f.mul(number, 16), "i8")
        entry, offset = f.load("i64", row), f.load("i64", f.at(row, 8, "i8"))
        f.store(f.at(start, offset, "i8"), f.at(record, entry, "i8"))

    f.loop(0, len(rows), 1, one)
