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
    among: Sequence[tuple[int, Place]] | None = None,
) -> None:
    """Store `start` plus its offset for every operand that lies in a space (of the argument of this number).

    The function's first parameter is the record. With `among` only these operands are looked at.
    """
    rows = _rows(runs, layout, space, argument, among)
    if not rows:
        return
    kind, size = _word([word for row in rows for word in row])
    words = [str(word) for row in rows for word in row]
    table = Value((f.module.constant(_name(space, argument), kind, words, align=size),), "ptr")
    _store(f, len(rows), start, (table, kind, 2 * size, 0), (table, kind, 2 * size, size))


def write_shared_places(
    f: Function, runs: Sequence[Run], shared: Sequence[Run], layout: MemoryLayout, start: Value
) -> None:
    """The same for the arena of several workers, whose runs have the same operands in it; one worker's stand already.

    Their table holds offsets alone: the addresses lie where one worker's do.
    """
    rows, others = (_rows(some, layout, "arena", None) for some in (runs, shared))
    assert [entry for entry, _ in rows] == [entry for entry, _ in others], "the same operands lie in the arena"
    if not rows:
        return
    kind, size = _word([word for row in rows for word in row])
    entries = Value((f"@{_name('arena', None)}",), "ptr"), kind, 2 * size, 0
    kind, size = _word([offset for _, offset in others])
    words = [str(offset) for _, offset in others]
    table = Value((f.module.constant(_name("shared.arena", None), kind, words, align=size),), "ptr")
    _store(f, len(rows), start, entries, (table, kind, size, 0))


def _rows(
    runs: Sequence[Run], layout: MemoryLayout, space: str, argument: int | None,
    among: Sequence[tuple[int, Place]] | None = None,
) -> list[tuple[int, int]]:  # fmt: skip
    """For each operand in a space where its address stands in the record, and how far from the space's start it is."""
    everything = enumerate(itertools.chain.from_iterable(run.operands for run in runs))
    return [
        (layout.tables + 8 * number, place.origin)
        for number, place in (everything if among is None else among)
        if place.space == space and argument in (None, place.argument)
    ]


def _name(space: str, argument: int | None) -> str:
    return f"places.{space}{'' if argument is None else argument}"


def _word(words: Sequence[int]) -> tuple[str, int]:
    """The type of a table's words, and its bytes."""
    return ("i32", 4) if min(words) >= 0 and max(words) < 1 << 32 else ("i64", 8)


_Column = tuple[Value, str, int, int]  # a table, the type of its words, bytes of a row, and where in a row it lies


def _store(f: Function, count: int, start: Value, *columns: _Column) -> None:
    record = Value((f"%{f.parameters[0].name}",), "ptr")

    def one(number: Value, _: tuple[Value, ...]) -> None:
        entry, offset = (
            f.convert("zext", "i64", f.load(kind, f.at(f.at(table, f.mul(number, stride), "i8"), place, "i8")))
            for table, kind, stride, place in columns
        )
        f.store(f.at(start, offset, "i8"), f.at(record, entry, "i8"))

    f.loop(0, count, 1, one)
