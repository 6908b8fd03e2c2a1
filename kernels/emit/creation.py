"""Creating and destroying a model, as LLVM: the check of the processor, memory, weights, tables of operands.

    int P_create(P_model **model, const char *weights_path)    the weights stay a mapped file, which processes share
    int P_create_with(P_model **model, const P_options *options)    as the options say (kernels/emit/options.py)
    int P_check(P_model *model)    the weights are read and their checksum compared
    void *P_pool(const P_model *model)    whose threads another model may use; null where one worker runs the model
    const char *P_error(const P_model *model)
    void P_destroy(P_model *model)

Linux only: mmap, mprotect and madvise with its numbers.
"""

from __future__ import annotations

from kernels.emit import layout as at
from kernels.emit.layout import HUGE_PAGE, LIVE, MemoryLayout
from kernels.emit.making import Making
from kernels.emit.memory import allow, count, reserve
from kernels.emit.options import (
    LENDER,
    MEMORY_LIMIT,
    SIZES,
    WEIGHTS_PATH,
    fresh_options,
    option,
    purse,
    write_options,
)
from kernels.emit.options import READ as READ_OPTION
from kernels.emit.places import write_places, write_shared_places
from kernels.emit.refusal import (
    BAD_ARGUMENT,
    BAD_PROCESSOR,
    NO_MEMORY,
    NO_MODEL,
    OK,
    called,
    failed,
    is_model,
    is_null,
    refuse_when,
    return_when,
    text,
    within,
)
from kernels.emit.shared_memory import write_shared_memory
from kernels.emit.sizes import write_sizes
from kernels.emit.units import require_units
from kernels.emit.weights import make_weights, write_weights
from kernels.listing import Listing
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

_NULL = Value(("null",), "ptr")
LIBRARY = (
    ("mmap", "ptr", ["ptr", "i64", "i32", "i32", "i32", "i64"]), ("munmap", "i32", ["ptr", "i64"]),
    ("mprotect", "i32", ["ptr", "i64", "i32"]), ("madvise", "i32", ["ptr", "i64", "i32"]),
    ("open", "i32", ["ptr", "i32", "..."]), ("close", "i32", ["i32"]), ("lseek", "i64", ["i32", "i64", "i32"]),
    ("read", "i64", ["i32", "ptr", "i64"]), ("calloc", "ptr", ["i64", "i64"]), ("free", "void", ["ptr"]),
)  # fmt: skip


def write_creation(module: Module, listing: Listing, layout: MemoryLayout, checksum: int) -> None:
    """Add the functions; `checksum` is that of the weights as they are stored, to whole stripes."""
    for name, result, given in LIBRARY:
        module.declare(name, result, given)
    write_options(module)
    write_sizes(module, listing, layout)
    write_shared_memory(module, listing, layout, listing.ticketed)
    write_weights(module, listing, layout, checksum)
    _write_begin(module, listing, layout)
    _write_take(module, listing, layout)
    _write_finish(module, listing, layout)
    _write_bring(module, listing, layout.making)
    _write_open_model(module, listing)
    _write_create(module, listing)
    _write_create_with(module, listing)
    _write_pool(module, listing)
    _write_destroy(module, listing, layout)
    _write_error(module, listing)


def _write_begin(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """begin(out) -> code: the record, the check of the processor, the system's permission to use its matrix units."""
    f = Function(module, "begin", (Parameter("out"),), result="i32")
    out = f.parameter("out")
    return_when(f, is_null(f, out), f.number("i32", BAD_ARGUMENT))
    f.store(_NULL, out)
    record = f.value("ptr", f"call ptr @calloc(i64 1, i64 {layout.record})")
    return_when(f, is_null(f, record), f.number("i32", NO_MEMORY))
    f.store(record, out)
    f.store(f.integer(LIVE), within(f, record, at.READY))
    lacking = called(f, "lacking", result="ptr")
    refuse_when(
        f, f.compare("ne", lacking, _NULL), BAD_PROCESSOR, record,
        "this processor lacks '%s', which the code was compiled for; compile it for a processor like this one.",
        lacking,
    )  # fmt: skip
    require_units(f, listing, record)
    f.give(f.number("i32", OK))
    f.finish()


def _write_take(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """take(record, options) -> code: the reservation with arena and scratch, or those of several workers."""
    f = Function(module, "take", (Parameter("record"), Parameter("options")), result="i32")
    record, options = f.parameter("record"), f.parameter("options")
    refuse_when(
        f, f.compare("ne", option(f, options, "ptr", SIZES), _NULL), BAD_ARGUMENT, record,
        "sizes are given; the program has one size of every dim.",
    )  # fmt: skip
    workers = called(f, "workers_of", options, result="i64")
    negative = f.compare("slt", workers, f.integer(0))
    refuse_when(f, negative, BAD_ARGUMENT, record, "a negative number of threads is given; 0 stands for all cores.")
    lender = option(f, options, "ptr", LENDER)
    limit, taken = option(f, options, "i64", MEMORY_LIMIT), f.at(purse(f, record, options), at.TAKEN, "i8")
    count(f, record, taken, layout.record, limit)
    f.when(is_null(f, lender), lambda: _reserve(f, record, layout))

    def alone() -> None:
        f.when(is_null(f, lender), own, borrowed)

    def borrowed() -> None:
        for field in (at.ARENA, at.SCRATCH):
            f.store(f.load("ptr", within(f, lender, field)), within(f, record, field))

    def own() -> None:
        count(f, record, taken, layout.arena_bytes + layout.scratch_bytes, limit)
        base = f.load("ptr", within(f, record, at.WEIGHTS))
        for field, offset, size in (
            (at.ARENA, layout.arena, layout.arena_bytes), (at.SCRATCH, layout.scratch, layout.scratch_bytes),
        ):  # fmt: skip
            place = f.at(base, offset - layout.weights, "i8")
            f.store(place, within(f, record, field))
            if size:
                allow(f, record, place, size, large=size >= HUGE_PAGE)

    def together() -> None:
        failed(f, called(f, "take_shared", record, workers, options))

    if listing.ticketed is None:
        alone()
    elif layout.moves:
        together()
    else:
        f.when(f.compare("sgt", workers, f.integer(1)), together, alone)
    f.give(f.number("i32", OK))
    f.finish()


def _reserve(f: Function, record: Value, layout: MemoryLayout) -> None:
    base = reserve(f, record, layout.reserved + layout.alignment)
    f.store(base, within(f, record, at.RESERVED))
    address = f.convert("ptrtoint", "i64", base)
    up = f.binary("and", f.add(address, layout.alignment - 1), f.integer(-layout.alignment))
    start = f.convert("inttoptr", "ptr", up)
    f.store(f.at(start, layout.weights, "i8"), within(f, record, at.WEIGHTS))


def _write_finish(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """finish(record): what runs find in the tables, whatever the call; the model is ready."""
    f = Function(module, "finish", (Parameter("record"),))
    record = f.parameter("record")
    weights = f.load("ptr", within(f, record, at.WEIGHTS))
    write_places(f, listing.runs, layout, "weights", None, weights)
    if listing.sizes:
        sizes = within(f, record, layout.sizes)
        write_places(f, listing.runs, layout, "sizes", None, sizes)
        for dim in listing.sizes:
            f.store(f.integer(dim.most), f.at(sizes, dim.number, "i64"))
        f.call("follow", record)
    arena, ticketed = f.load("ptr", within(f, record, at.ARENA)), listing.ticketed

    def alone() -> None:
        write_places(f, listing.runs, layout, "arena", None, arena)

    if ticketed is None:
        alone()
    else:
        shared = f.load("ptr", within(f, record, at.SHARED + at.SHARED_AT))

        def several() -> None:
            write_shared_places(f, listing.runs, ticketed.runs, layout, arena)

        f.when(f.compare("eq", shared, _NULL), alone, several)
    f.store(f.integer(LIVE + 1), within(f, record, at.READY))
    f.finish()


def _write_bring(module: Module, listing: Listing, making: Making) -> None:
    """bring(record, options) -> code: memory and weights as known options say, and all that follows."""
    f = Function(module, "bring", (Parameter("record"), Parameter("options")), result="i32")
    record, options = f.parameter("record"), f.parameter("options")
    failed(f, called(f, "take", record, options))

    fetches = listing.ticketed is not None and bool(listing.ticketed.fetches)

    def from_file() -> tuple[Value, ...] | list[Value]:
        if fetches:  # what is mapped might be given back to the system, and be read again
            return [called(f, "read_weights", record, options)]
        return f.when(
            f.compare("ne", option(f, options, "i32", READ_OPTION), f.number("i32", 0)),
            lambda: [called(f, "read_weights", record, options)],
            lambda: [called(f, "map_weights", record, options)],
        )

    in_memory = is_null(f, option(f, options, "ptr", WEIGHTS_PATH))
    (code,) = f.when(in_memory, lambda: [called(f, "adopt", record, options)], from_file)
    failed(f, code)
    if making.steps:
        f.when(is_null(f, option(f, options, "ptr", LENDER)), lambda: make_weights(f, record, options, listing, making))
    if fetches:
        failed(f, called(f, "fetch_start", record))
    f.call("finish", record)
    f.give(f.number("i32", OK))
    f.finish()


def _write_open_model(module: Module, listing: Listing) -> None:
    """open(model, options) -> code: all of creation, of options that are known."""
    given = (Parameter("model"), Parameter("options"))
    f = Function(module, listing.symbol("open"), given, exported=True, result="i32")
    failed(f, called(f, "begin", f.parameter("model")))
    f.give(called(f, "bring", f.load("ptr", f.parameter("model")), f.parameter("options")))
    f.finish()


def _write_create(module: Module, listing: Listing) -> None:
    given = (Parameter("model"), Parameter("path"))
    f = Function(module, f"{listing.name}_create", given, exported=True, result="i32")
    options = fresh_options(f)
    failed(f, called(f, "begin", f.parameter("model")))
    record, path = f.load("ptr", f.parameter("model")), f.parameter("path")
    refuse_when(f, is_null(f, path), BAD_ARGUMENT, record, "no path of a weights file is given.")
    f.store(path, f.at(options, WEIGHTS_PATH, "i8"))
    f.give(called(f, "bring", record, options))
    f.finish()


def _write_create_with(module: Module, listing: Listing) -> None:
    given = (Parameter("model"), Parameter("options"))
    f = Function(module, f"{listing.name}_create_with", given, exported=True, result="i32")
    known = fresh_options(f)
    failed(f, called(f, "begin", f.parameter("model")))
    record = f.load("ptr", f.parameter("model"))
    failed(f, called(f, "options_of", record, f.parameter("options"), known))
    f.give(called(f, "bring", record, known))
    f.finish()


def _write_pool(module: Module, listing: Listing) -> None:
    f = Function(module, f"{listing.name}_pool", (Parameter("model"),), exported=True, result="ptr")
    record = f.parameter("model")
    return_when(f, is_model(f, record, LIVE + 1, negated=True), _NULL)
    f.give(f.load("ptr", within(f, record, at.SHARED + at.POOL)))
    f.finish()


def _write_destroy(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    f = Function(module, f"{listing.name}_destroy", (Parameter("model"),), exported=True)
    record = f.parameter("model")

    def free() -> None:
        f.store(f.integer(0), within(f, record, at.READY))
        if listing.ticketed is not None:
            f.call("give_shared", record)
        start = f.load("ptr", within(f, record, at.RESERVED))
        size = layout.reserved + layout.alignment

        def unmap() -> None:
            f.value("i32", f"call i32 @munmap(ptr {start.text}, i64 {size})")

        f.when(f.compare("ne", start, _NULL), unmap)
        f.line(f"call void @free(ptr {record.text})")

    f.when(is_model(f, record), free)
    f.finish()


def _write_error(module: Module, listing: Listing) -> None:
    f = Function(module, f"{listing.name}_error", (Parameter("model"),), exported=True, result="ptr")
    record = f.parameter("model")
    lost = text(module, NO_MODEL)
    (found,) = f.when(is_model(f, record), lambda: [within(f, record, at.ERROR)], lambda: [lost])
    f.give(found)
    f.finish()
