"""Stamps of blocks, as LLVM: which worker ran a block, and when it began and ended.

    P_profile(model, stamps, room)    note the blocks of the calls that follow; null ends it

`stamps` is an array of `room` + 1 stamps. The first number of the first one counts the blocks that have run, those
without room included; each other one holds a row (the run's position in the order of claims, or among the runs where
one worker runs the model), the worker, the block, and the nanoseconds at its beginning and its end.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels.emit import layout as at
from kernels.emit.refusal import is_model
from kernels.listing import Listing
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.threads import add

STAMP = 40  # bytes: row, worker, block, begin, end


def write_profile(module: Module, listing: Listing) -> None:
    """Add P_profile."""
    given = (Parameter("model"), Parameter("stamps"), Parameter("room", "i64"))
    f = Function(module, f"{listing.name}_profile", given, exported=True)
    record = f.parameter("model")

    def note() -> None:
        job = f.at(record, at.SHARED, "i8")
        f.store(f.parameter("stamps"), f.at(job, at.STAMPS, "i8"))
        f.store(f.parameter("room"), f.at(job, at.STAMPS_ROOM, "i8"))

    f.when(is_model(f, record), note)
    f.finish()


def is_stamped(f: Function, job: Value) -> Value:
    """Whether blocks are noted."""
    return f.compare("ne", f.load("ptr", f.at(job, at.STAMPS, "i8")), Value(("null",), "ptr"))


def stamp(f: Function, job: Value, row: Value, worker: Value, block: Value, run: Callable[[], None]) -> None:
    """Run a block, and note when it began and ended."""
    stamps, room = f.load("ptr", f.at(job, at.STAMPS, "i8")), f.load("i64", f.at(job, at.STAMPS_ROOM, "i8"))
    began = f.call("clock_now", result="i64")
    run()
    ended = f.call("clock_now", result="i64")
    assert began is not None and ended is not None, "the clock gives a result"
    number = add(f, stamps, f.integer(1))

    def note() -> None:
        start = f.at(stamps, f.mul(f.add(number, 1), STAMP), "i8")
        for place, value in enumerate((row, worker, block, began, ended)):
            f.store(value, f.at(start, 8 * place, "i8"))

    f.when(f.compare("slt", number, room), note)


def run_block(f: Function, kernel: Value, table: Value, block: Value, scratch: Value) -> None:
    """Call a kernel for one block."""
    f.line(f"call void {kernel.text}(ptr {table.text}, i64 {block.text}, ptr {scratch.text})")
