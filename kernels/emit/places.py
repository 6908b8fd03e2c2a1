"""Filling the tables of operands: addresses in the arena, the weights, or what the caller passes.

A loop goes through a constant table of the library, where `graphopt certify` reads what is executed. Stores one after
the other would take LLVM a time that grows with their square, and a program has one for each operand of each run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from kernels.emit.layout import MemoryLayout
from kernels.listing import Place, Run
from kernels.llvm.function import Function, Value


def by_argument(runs: Sequence[Run]) -> Mapping[tuple[str, int], Sequence[tuple[int, Place]]]:
    """The operands of all runs with their numbers, by space and argument: a training step has thousands of these."""
    found: dict[tuple[str, int], list[tuple[int, Place]]] = {}
    for number, place in enumerate(itertools.chain.from_iterable(run.operands for run in runs)):
        found.setdefault((place.space, place.argument), []).append((number, place))
    return found


def write_places(
    f: Function,
    runs: Sequence[Run],
    layout: MemoryLayout,
    space: str,
    argument: int | None,
    start: Value,
    *,
    shared: bool = False,
    among: Sequence[tuple[int, Place]] | None = None,
) -> None:
    """Store `start` plus its offset for every operand that lies in a space (of the argument of this number).

    The function's first parameter is the record; `shared` runs are those of several workers. With `among` only these
    operands are looked at.
    """
    record = Value((f"%{f.parameters[0].name}",), "ptr")
    everything = enumerate(itertools.chain.from_iterable(run.operands for run in runs))
    rows = [
        (layout.tables + 8 * number, place.origin)
        for number, place in (everything if among is None else among)
        if place.space == space and argument in (None, place.argument)
    ]
    if not rows:
        return
    name = f"places.{'shared.' if shared else ''}{space}{'' if argument is None else argument}"
    words = [word for row in rows for word in row]
    kind, size = ("i32", 4) if min(words) >= 0 and max(words) < 1 << 32 else ("i64", 8)
    table = Value((f.module.constant(name, kind, [str(word) for word in words], align=size),), "ptr")

    def one(number: Value, _: tuple[Value, ...]) -> None:
        row = f.at(table, f.mul(number, 2 * size), "i8")
        entry, offset = (f.convert("zext", "i64", f.load(kind, f.at(row, place, "i8"))) for place in (0, size))
        f.store(f.at(start, offset, "i8"), f.at(record, entry, "i8"))

    f.loop(0, len(rows), 1, one)
