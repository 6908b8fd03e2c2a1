"""Bytes of the weights' file into memory while a program runs, as LLVM; and the state of the thread that reads them.

    fetch(record, source, place, bytes, past)    past the system's cache where that can be
    fetch_named(record, source, place, which)    rows of a table that indices name

The state is a piece of the model's record (kernels/emit/layout.py). A read that fails leaves its error there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernels.emit import layout as at
from kernels.emit.layout import MemoryLayout
from kernels.emit.refusal import within
from kernels.listing import FetchRows
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.threads import write
from kernels.target import ArchitectureName

# Offsets in the state, in bytes. FILE, DIRECT: descriptors and one, 0 for none; SOURCE: weights in the caller's memory.
FETCHED, BELL, STOP, FAULT, FILE, DIRECT, THREAD, SOURCE, PROCESS = 0, 8, 12, 16, 24, 28, 32, 40, 48
CUT_OFF = -1  # in place of an error's number: the file ends too early
WILL_NEED, DONT_NEED = 3, 4  # POSIX_FADV_
NAMED = 7  # numbers of a row of the table of rows that indices name
INTERRUPTED = 4  # EINTR
CLOSE_ON_EXEC = 0x80000  # O_CLOEXEC; O_RDONLY is 0
PAST_CACHE: Mapping[ArchitectureName, int] = {"x86_64": 0x4000, "aarch64": 0x10000, "riscv64": 0x4000}  # O_DIRECT
_NULL = Value(("null",), "ptr")


def write_reading(module: Module, layout: MemoryLayout, named: Sequence[FetchRows]) -> None:
    """Add the functions; that of rows where some are `named`, in the order of the table of these."""
    for name, result, given in (
        ("pread", "i64", ["i32", "ptr", "i64", "i64"]), ("posix_fadvise", "i32", ["i32", "i64", "i64", "i32"]),
        ("memcpy", "ptr", ["ptr", "ptr", "i64"]), ("__errno_location", "ptr", []),
    ):  # fmt: skip
        module.declare(name, result, given)
    _write_fetch(module, layout)
    if named:
        _write_named(module, layout, named)


def state(f: Function, layout: MemoryLayout, field: int) -> Value:
    """A field of the state, in a function whose first parameter is the record."""
    return within(f, Value((f"%{f.parameters[0].name}",), "ptr"), layout.fetching + field)


def close(f: Function, file: Value) -> None:
    """Close a file."""
    f.value("i32", f"call i32 @close(i32 {file.text})")


def _write_fetch(module: Module, layout: MemoryLayout) -> None:
    given = (
        Parameter("record"), Parameter("source", "i64"), Parameter("place"), Parameter("bytes", "i64"),
        Parameter("past", "i1"),
    )  # fmt: skip
    f = Function(module, "fetch", given)
    source, place, size, past = (f.parameter(one.name) for one in given[1:])
    held = f.load("ptr", state(f, layout, SOURCE))

    def copy() -> None:
        f.value("ptr", f"call ptr @memcpy(ptr {place.text}, ptr {f.at(held, source, 'i8').text}, i64 {size.text})")
        f.line("ret void")

    _branch(f, f.compare("ne", held, _NULL), copy)
    file = f.sub(f.load("i32", state(f, layout, FILE)), 1)
    f.line("br label %first")
    f.label("first")
    f.line("br label %more")
    f.label("more")
    f.line("%done = phi i64 [ 0, %first ], [ %next, %step ], [ %done, %kept ]")
    done = Value(("%done",), "i64")
    direct = f.sub(f.load("i32", state(f, layout, DIRECT)), 1)
    by = f.select(f.binary("and", past, f.compare("sge", direct, f.number("i32", 0))), direct, file)
    f.line(f"%was_direct = icmp eq i32 {by.text}, {direct.text}")
    got = f.value(
        "i64",
        f"call i64 @pread(i32 {by.text}, ptr {f.at(place, done, 'i8').text}, i64 {f.sub(size, done).text}, "
        f"i64 {f.add(source, done).text})",
    )
    f.line(f"br i1 {f.compare('sgt', got, f.integer(0)).text}, label %step, label %failed")
    f.label("step")
    f.line(f"%next = add i64 %done, {got.text}")
    f.line(f"%whole = icmp sge i64 %next, {size.text}")
    f.line("br i1 %whole, label %end, label %more")
    f.label("failed")
    error = f.load("i32", f.value("ptr", "call ptr @__errno_location()"))
    ended = f.compare("eq", got, f.integer(0))
    # What cannot be read past the cache, as the rest after a short read, may be read through it.
    was_direct = Value(("%was_direct",), "i1")
    interrupted = f.binary(
        "and", f.compare("slt", got, f.integer(0)), f.compare("eq", error, f.number("i32", INTERRUPTED))
    )
    f.line(f"br i1 {f.binary('or', was_direct, interrupted).text}, label %again, label %fault")
    f.label("again")
    refused = f.binary("and", was_direct, f.compare("eq", interrupted, f.number("i1", False)))
    f.when(refused, lambda: close(f, direct))
    f.line("br label %kept")
    f.label("kept")
    kept = f.select(interrupted, f.add(direct, 1), f.number("i32", 0))
    f.store(kept, state(f, layout, DIRECT))
    f.line("br label %more")
    f.label("fault")
    code = f.select(ended, f.integer(CUT_OFF), f.convert("sext", "i64", error))
    write(f, code, state(f, layout, FAULT), "release")
    f.line("br label %end")
    f.label("end")
    # Asked of pages that are not there, the system would first look for them on every processor.
    f.line("%passed = phi i1 [ %was_direct, %step ], [ false, %fault ]")
    f.when(Value(("%passed",), "i1"), lambda: None, lambda: _drop(f, file, source, size))
    f.finish()


def _drop(f: Function, file: Value, source: Value, size: Value) -> None:
    """Pages that were read are not kept."""
    f.value("i32", f"call i32 @posix_fadvise(i32 {file.text}, i64 {source.text}, i64 {size.text}, i32 {DONT_NEED})")


def _branch(f: Function, condition: Value, body: Callable[[], None]) -> None:
    """What `body` writes ends the function."""
    yes, no = f.fresh("yes"), f.fresh("no")
    f.line(f"br i1 {condition.text}, label %{yes}, label %{no}")
    f.label(yes)
    body()
    f.label(no)


def _write_named(module: Module, layout: MemoryLayout, named: Sequence[FetchRows]) -> None:
    """The rows are asked for first, then read one by one; nobody waits for a disk's latency more than once."""
    given = (Parameter("record"), Parameter("source", "i64"), Parameter("place"), Parameter("which", "i64"))
    f = Function(module, "fetch_named", given)
    record, source, place, which = (f.parameter(one.name) for one in given)
    start = f.at(Value(("@fetch.named",), "ptr"), f.mul(which, 8 * NAMED), "i8")
    rows, size, count, width, argument, offset, numbers = (
        f.load("i64", f.at(start, number, "i64")) for number in range(NAMED)
    )
    if any(one.run_count is not None for one in named):
        f.find_sizes(record, layout.sizes)
    for number, one in enumerate(named):
        if one.run_count is not None:
            count = f.select(f.compare("eq", which, f.integer(number)), f.integer(one.run_count), count)
    arena = f.load("ptr", within(f, record, at.ARENA))
    (base,) = f.when(
        f.compare("slt", argument, f.integer(0)),
        lambda: [arena],
        lambda: [f.load("ptr", f.at(within(f, record, at.ARGUMENTS), argument, "ptr"))],
    )
    indices, numbered = f.at(base, offset, "i8"), f.at(arena, numbers, "i8")
    wide = f.compare("eq", width, f.integer(8))
    file, held = f.sub(f.load("i32", state(f, layout, FILE)), 1), f.load("ptr", state(f, layout, SOURCE))

    def row_of(number: Value) -> Value:
        """Where the row of an index starts in the file."""

        def short() -> list[Value]:
            return [f.convert("sext", "i64", f.load("i32", f.at(indices, number, "i32")))]

        (index,) = f.when(wide, lambda: [f.load("i64", f.at(indices, number, "i64"))], short)
        counted = f.select(f.compare("slt", index, f.integer(0)), f.add(index, rows), index)
        inside = f.maximum(f.minimum(counted, f.sub(rows, 1)), f.integer(0))
        return f.add(source, f.mul(inside, size))

    def ask(number: Value, _: tuple[Value, ...]) -> None:
        row = row_of(number)
        f.value("i32", f"call i32 @posix_fadvise(i32 {file.text}, i64 {row.text}, i64 {size.text}, i32 {WILL_NEED})")

    def bring(number: Value, _: tuple[Value, ...]) -> None:
        f.call("fetch", record, row_of(number), f.at(place, f.mul(number, size), "i8"), size, f.number("i1", False))
        f.when(
            wide,
            lambda: f.store(number, f.at(numbered, number, "i64")),
            lambda: f.store(f.convert("trunc", "i32", number), f.at(numbered, number, "i32")),
        )

    f.when(f.compare("eq", held, _NULL), lambda: _each(f, count, ask))
    f.loop(f.integer(0), count, 1, bring)
    f.finish()


def _each(f: Function, count: Value, body: Callable[[Value, tuple[Value, ...]], None]) -> None:
    f.loop(f.integer(0), count, 1, body)
