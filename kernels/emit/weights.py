"""How a model comes by its weights, as LLVM: from a file that is mapped or read, from the caller, or made of those.

map_weights(record, options)    code: the file takes its place in the model's reservation
read_weights(record, options)   code: its content does, in huge pages
adopt(record, options)          code: those in the caller's memory
int P_check(P_model *model)     they are read through, and their checksum compared
"""

from __future__ import annotations

import numpy as np

from kernels.emit import layout as at
from kernels.emit.checksum import checksum as checksum_of
from kernels.emit.layout import FETCH_ALIGNMENT, HUGE_PAGE, LIVE, MemoryLayout
from kernels.emit.making import Making
from kernels.emit.memory import FIXED, PRIVATE, READ, allow, count
from kernels.emit.options import LENDER, MEMORY_LIMIT, WEIGHTS, WEIGHTS_BYTES, WEIGHTS_PATH, option, purse
from kernels.emit.reading import CLOSE_ON_EXEC, DIRECT, DONT_NEED, FILE, PAST_CACHE, SOURCE, close
from kernels.emit.refusal import (
    BAD_ARGUMENT,
    BAD_WEIGHTS,
    OK,
    called,
    failed,
    is_model,
    is_null,
    refuse_when,
    return_when,
    say,
    within,
)
from kernels.listing import ALIGNMENT, Listing
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

_PIECE = 1 << 20  # bytes that are read at once when the checksum is compared


def write_weights(module: Module, listing: Listing, layout: MemoryLayout, checksum: int) -> None:
    """Add the functions; `checksum` is that of the weights as they are stored, to whole stripes."""
    module.declare(f"{listing.name}_checksum", "i64", ["ptr", "i64", "i64"])
    if layout.making.steps:
        module.declare(listing.symbol("make"), "void", ["ptr"])
    _write_open(module, layout)
    _write_map(module, layout)
    _write_read(module, layout)
    _write_adopt(module, layout)
    if layout.fetches:
        _write_fetched_checksum(module, listing, layout)
    _write_check(module, listing, layout, checksum)


def _write_open(module: Module, layout: MemoryLayout) -> None:
    """open_weights(record, path, out) -> code: a file descriptor, of a file with the right size."""
    f = Function(module, "open_weights", (Parameter("record"), Parameter("path"), Parameter("out")), result="i32")
    record, path = f.parameter("record"), f.parameter("path")
    refuse_when(f, is_null(f, path), BAD_ARGUMENT, record, "no path of a weights file is given.")
    file = f.value("i32", f"call i32 (ptr, i32, ...) @open(ptr {path.text}, i32 {CLOSE_ON_EXEC})")
    refuse_when(
        f, f.compare("slt", file, f.number("i32", 0)), BAD_WEIGHTS, record,
        "weights file '%s' cannot be opened: %m.", path,
    )  # fmt: skip
    size = f.value("i64", f"call i64 @lseek(i32 {file.text}, i64 0, i32 2)")
    f.value("i64", f"call i64 @lseek(i32 {file.text}, i64 0, i32 0)")
    wrong = f.compare("ne", size, f.integer(layout.file_bytes))
    f.when(wrong, lambda: close(f, file))
    refuse_when(
        f, wrong, BAD_WEIGHTS, record,
        f"weights file '%s' has %lld bytes instead of {layout.file_bytes}: it is cut off, or another program's.",
        path, size,
    )  # fmt: skip
    f.store(file, f.parameter("out"))
    f.give(f.number("i32", OK))
    f.finish()


def _write_map(module: Module, layout: MemoryLayout) -> None:
    """map_weights(record, options) -> code: the file takes its place in the reservation."""
    f = Function(module, "map_weights", (Parameter("record"), Parameter("options")), result="i32")
    record, path = f.parameter("record"), option(f, f.parameter("options"), "ptr", WEIGHTS_PATH)
    file = _opened(f, record, path)
    if layout.weights_bytes:
        place = f.load("ptr", within(f, record, at.WEIGHTS))
        found = f.value(
            "ptr", f"call ptr @mmap(ptr {place.text}, i64 {layout.weights_bytes}, i32 {READ}, i32 {PRIVATE | FIXED}, "
            f"i32 {file.text}, i64 0)",
        )  # fmt: skip
        lost = f.compare("eq", f.convert("ptrtoint", "i64", found), f.integer(-1))
        f.when(lost, lambda: say(f, record, "weights file '%s' cannot be mapped: %m.", path))
        close(f, file)
        return_when(f, lost, f.number("i32", BAD_WEIGHTS))
    else:
        close(f, file)
    f.give(f.number("i32", OK))
    f.finish()


def _opened(f: Function, record: Value, path: Value) -> Value:
    place = f.value("ptr", "alloca i32, align 4")
    failed(f, called(f, "open_weights", record, path, place))
    return f.load("i32", place)


def _write_read(module: Module, layout: MemoryLayout) -> None:
    """read_weights(record, options) -> code: into the reservation, in huge pages, which then are read-only."""
    f = Function(module, "read_weights", (Parameter("record"), Parameter("options")), result="i32")
    record, options = f.parameter("record"), f.parameter("options")
    path = option(f, options, "ptr", WEIGHTS_PATH)
    place, size = f.load("ptr", within(f, record, at.WEIGHTS)), layout.weights_bytes
    count(f, record, f.at(purse(f, record, options), at.TAKEN, "i8"), size, option(f, options, "i64", MEMORY_LIMIT))
    allow(f, record, place, size, large=size >= HUGE_PAGE)
    file = _opened(f, record, path)
    f.line("br label %first")
    f.label("first")
    f.line("br label %more")
    f.label("more")
    f.line("%done = phi i64 [ 0, %first ], [ %next, %step ]")
    left = f.sub(f.integer(size), Value(("%done",), "i64"))
    got = f.value(
        "i64",
        f"call i64 @read(i32 {file.text}, ptr {f.at(place, Value(('%done',), 'i64'), 'i8').text}, i64 {left.text})",
    )
    some = f.compare("sgt", got, f.integer(0))
    f.line(f"br i1 {some.text}, label %step, label %end")
    f.label("step")
    f.line(f"%next = add i64 %done, {got.text}")
    f.line(f"%whole = icmp eq i64 %next, {size}")
    f.line("br i1 %whole, label %end, label %more")
    f.label("end")
    f.line("%count = phi i64 [ %done, %more ], [ %next, %step ]")
    short = f.compare("ne", Value(("%count",), "i64"), f.integer(size))
    f.when(short, lambda: say(f, record, "weights file '%s' cannot be read: %m.", path))
    if layout.fetches:
        flags = CLOSE_ON_EXEC | PAST_CACHE[module.target.architecture.name]
        direct = f.value("i32", f"call i32 (ptr, i32, ...) @open(ptr {path.text}, i32 {flags})")
        for one, field in ((file, FILE), (direct, DIRECT)):  # -1 where the file system does not let us
            f.store(f.add(one, 1), within(f, record, layout.fetching + field))
        f.value("i32", f"call i32 @posix_fadvise(i32 {file.text}, i64 0, i64 {size}, i32 {DONT_NEED})")
    else:
        close(f, file)
    return_when(f, short, f.number("i32", BAD_WEIGHTS))
    f.value("i32", f"call i32 @mprotect(ptr {place.text}, i64 {size}, i32 {READ})")
    f.give(f.number("i32", OK))
    f.finish()


def make_weights(f: Function, record: Value, options: Value, listing: Listing, making: Making) -> None:
    """Weights that the file does not have, behind those that it has."""
    weights = f.load("ptr", within(f, record, at.WEIGHTS))
    place = f.at(weights, making.start, "i8")
    taken = f.at(purse(f, record, options), at.TAKEN, "i8")
    count(f, record, taken, making.bytes, option(f, options, "i64", MEMORY_LIMIT))
    allow(f, record, place, making.bytes, large=making.bytes >= HUGE_PAGE)
    f.line(f"call void @{listing.symbol('make')}(ptr {weights.text})")
    f.value("i32", f"call i32 @mprotect(ptr {place.text}, i64 {making.bytes}, i32 {READ})")


def _write_adopt(module: Module, layout: MemoryLayout) -> None:
    """adopt(record, options) -> code: weights in the caller's memory."""
    f = Function(module, "adopt", (Parameter("record"), Parameter("options")), result="i32")
    record, options = f.parameter("record"), f.parameter("options")
    weights, size = (option(f, options, kind, place) for kind, place in (("ptr", WEIGHTS), ("i64", WEIGHTS_BYTES)))
    refuse_when(
        f, f.compare("ne", size, f.integer(layout.file_bytes)), BAD_WEIGHTS, record,
        f"%lld bytes of weights are given instead of {layout.file_bytes}.", size,
    )  # fmt: skip
    if layout.fetches:
        f.store(weights, within(f, record, layout.fetching + SOURCE))
    if layout.file_bytes:
        refuse_when(f, is_null(f, weights), BAD_ARGUMENT, record, "no weights are given.")
        rest = f.binary("and", f.convert("ptrtoint", "i64", weights), f.integer(ALIGNMENT - 1))
        refuse_when(
            f, f.compare("ne", rest, f.integer(0)), BAD_ARGUMENT, record,
            f"the weights start at %p, which is no multiple of {ALIGNMENT} bytes.", weights,
        )  # fmt: skip

        def share() -> None:
            f.store(weights, within(f, record, at.WEIGHTS))

        def copy() -> None:
            count(f, record, within(f, record, at.TAKEN), layout.weights_bytes, option(f, options, "i64", MEMORY_LIMIT))
            place = f.load("ptr", within(f, record, at.WEIGHTS))
            allow(f, record, place, layout.weights_bytes, large=layout.weights_bytes >= HUGE_PAGE)
            module.declare("memcpy", "ptr", ["ptr", "ptr", "i64"])
            f.value("ptr", f"call ptr @memcpy(ptr {place.text}, ptr {weights.text}, i64 {layout.weights_bytes})")

        if layout.making.steps:  # what is made stands behind what is given, so that this is copied
            f.when(is_null(f, option(f, options, "ptr", LENDER)), copy, share)
        else:
            share()
    f.give(f.number("i32", OK))
    f.finish()


def _checksum(f: Function, listing: Listing, start: Value, size: Value, before: Value) -> Value:
    """Of bytes of the file that follow so many others."""
    return called(f, f"{listing.name}_checksum", start, size, before, result="i64")


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _write_fetched_checksum(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """fetched_checksum(record) -> i64: of what no run keeps, piece by piece through the arena, which is free now."""
    f = Function(module, "fetched_checksum", (Parameter("record"),), result="i64")
    record = f.parameter("record")
    arena = f.load("ptr", within(f, record, at.ARENA))
    piece = min(_PIECE, layout.shared_arena_bytes // FETCH_ALIGNMENT * FETCH_ALIGNMENT)
    filling = checksum_of(np.zeros(layout.fetched_at - layout.weights_bytes, np.uint8), layout.weights_bytes)

    def one(start: Value, carried: tuple[Value, ...]) -> list[Value]:
        size = f.minimum(f.sub(f.integer(layout.file_bytes), start), f.integer(piece))
        f.call("fetch", record, start, arena, size, f.number("i1", True))
        return [f.add(carried[0], _checksum(f, listing, arena, size, start))]

    (found,) = f.loop(layout.fetched_at, layout.file_bytes, piece, one, [f.integer(_signed(filling))])
    f.give(found)
    f.finish()


def _write_check(module: Module, listing: Listing, layout: MemoryLayout, checksum: int) -> None:
    f = Function(module, f"{listing.name}_check", (Parameter("model"),), exported=True, result="i32")
    record = f.parameter("model")
    return_when(f, is_model(f, record, LIVE + 1, negated=True), f.number("i32", BAD_ARGUMENT))
    if layout.file_bytes:
        weights = f.load("ptr", within(f, record, at.WEIGHTS))
        found = _checksum(f, listing, weights, f.integer(layout.weights_bytes), f.integer(0))
        if layout.fetches:
            found = f.add(found, called(f, "fetched_checksum", record, result="i64"))
            failed(f, called(f, "fetch_end", record))
        refuse_when(
            f, f.compare("ne", found, f.integer(_signed(checksum))), BAD_WEIGHTS, record,
            f"the weights are damaged, or another program's: their checksum is %016llx instead of {checksum:016x}.",
            found,
        )  # fmt: skip
    f.give(f.number("i32", OK))
    f.finish()
