"""What several workers go through, as tables: a row for each run that is claimed, and the rows that it waits for.

A row has four words: the kernel's number with two flags, its blocks, the number of its first operand among those of all
runs, and where its waits start in their table. Behind the runs stands what is waited for after the last claim. Words
have 16 bits where all of them fit, also in programs of a thousand runs, else 32.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from kernels.emit.alone import KERNELS
from kernels.listing import Listing, Ticketed, Wait
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module

WORDS = 4  # of a row
_FLAGS = 2  # the highest bits of the word with the kernel's number


def flags_of(bits: int) -> tuple[int, int]:
    """In a kernel's word of so many bits: one worker runs all blocks; it is the worker of the row before."""
    return 1 << bits - 2, 1 << bits - 1


@dataclass(frozen=True, slots=True)
class RowTables:
    """How functions read the tables; `bits` of a word."""

    bits: int

    @property
    def kind(self) -> str:
        """The type of a word."""
        return f"i{self.bits}"

    def word(self, f: Function, row: Value, place: int) -> Value:
        """A word of a row."""
        start = f.at(Value(("@shared.rows",), "ptr"), f.mul(row, WORDS), self.kind)
        return f.convert("zext", "i64", f.load(self.kind, f.at(start, place, self.kind)))

    def wait(self, f: Function, place: Value) -> Value:
        """The row that a place of the table of waits names."""
        at = f.at(Value(("@shared.waits",), "ptr"), place, self.kind)
        return f.convert("zext", "i64", f.load(self.kind, at))

    def kernel(self, f: Function, which: Value) -> Value:
        """The kernel that the first word of a row names."""
        number = f.binary("and", which, f.integer(flags_of(self.bits)[0] - 1))
        return f.load("ptr", f.at(KERNELS, number, "ptr"))

    def is_whole(self, f: Function, which: Value) -> Value:
        """Whether one worker runs all blocks of the row with this first word."""
        return _has(f, which, flags_of(self.bits)[0])

    def follows(self, f: Function, which: Value) -> Value:
        """Whether that row is nobody's but the row before's worker's."""
        return _has(f, which, flags_of(self.bits)[1])


def _has(f: Function, which: Value, flag: int) -> Value:
    return f.compare("ne", f.binary("and", which, f.integer(flag)), f.integer(0))


def write_rows(module: Module, listing: Listing, ticketed: Ticketed) -> RowTables:
    """Add both tables."""
    number = {kernel.name: place for place, kernel in enumerate(listing.kernels)}
    blocks = {kernel.name: kernel.blocks for kernel in listing.kernels}
    operands = list(itertools.accumulate((len(run.operands) for run in listing.runs), initial=0))
    claimed = {run: row for row, (run, _) in enumerate(ticketed.waits)}
    whole, following = ticketed.whole, ticketed.following
    rows, flagged, waits = [], [], list[int]()
    for position, before in ticketed.waits:
        run = ticketed.runs[position]
        first, end = run.blocks or (0, blocks[run.kernel])
        rows.append((number[run.kernel], end - first, operands[position], len(waits)))
        flagged.append((position in whole, position in following))
        waits += [claimed[one] for one in before]
    last = []  # what is waited for after the last claim
    for step in reversed(ticketed.steps):
        if not isinstance(step, Wait):
            break
        last.append(claimed[step.run])
    rows += [(0, 0, 0, len(waits)), (0, 0, 0, len(waits) + len(last))]
    waits += last
    found = rows_of(listing, ticketed)
    words = []
    for row, flags in itertools.zip_longest(rows, flagged, fillvalue=(False, False)):
        mark = sum(flag for flag, is_set in zip(flags_of(found.bits), flags, strict=True) if is_set)
        words += [row[0] | mark, *row[1:]]
    module.constant("shared.rows", found.kind, [str(word) for word in words], align=16)
    module.constant("shared.waits", found.kind, [str(row) for row in waits or [0]], align=4)
    return found


def rows_of(listing: Listing, ticketed: Ticketed) -> RowTables:
    """How the tables are read: no word exceeds what is counted here."""
    counts = (
        sum(len(run.operands) for run in listing.runs), max((one.blocks for one in listing.kernels), default=0),
        len(ticketed.steps), len(listing.kernels) << _FLAGS,
    )  # fmt: skip
    return RowTables(16 if max(counts) < 1 << 16 else 32)
