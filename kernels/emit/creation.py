"""Creating and destroying a model, as LLVM: the check of the processor, memory, weights, tables of operands.

    int P_create(P_model **model, const char *weights_path)           large weights are read into huge pages
    int P_create_mapped(P_model **model, const char *weights_path)    they stay a mapped file, which processes share
    int P_create_from(P_model **model, const void *weights, size_t bytes)    the caller keeps them
    int P_create_with(P_model **model, const P_options *options)    any of these, with a number of threads and a pool
    void *P_pool(const P_model *model)    whose threads another model may use; null where one worker runs the model
    const char *P_error(const P_model *model)
    void P_destroy(P_model *model)

Linux only: mmap, mprotect and madvise with its numbers.
"""

from __future__ import annotations

from kernels.emit import layout as at
from kernels.emit.layout import HUGE_PAGE, MemoryLayout
from kernels.emit.memory import PRIVATE, READ, allow, reserve
from kernels.emit.places import write_places
from kernels.emit.refusal import (
    BAD_ARGUMENT,
    BAD_PROCESSOR,
    BAD_WEIGHTS,
    NO_MEMORY,
    OK,
    failed,
    is_null,
    refuse_when,
    return_when,
    say,
    text,
)
from kernels.emit.shared_memory import MAPPED, WEIGHTS, WEIGHTS_BYTES, WEIGHTS_PATH, write_shared_memory
from kernels.emit.sizes import write_sizes
from kernels.listing import ALIGNMENT, Listing
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

_CLOSE_ON_EXEC = 0x80000  # O_CLOEXEC; O_RDONLY is 0
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
    module.declare(f"{listing.name}_checksum", "i64", ["ptr", "i64"])
    write_sizes(module, listing, layout)
    write_shared_memory(module, listing, layout, listing.ticketed)
    _write_begin(module, listing, layout)
    _write_open(module, layout)
    _write_map(module, layout)
    _write_read(module, layout)
    _write_finish(module, listing, layout, checksum)
    _write_adopt(module, layout)
    read = "read_weights" if layout.copies_weights else "map_weights"
    _write_create(module, f"{listing.name}_create", read)
    _write_create(module, f"{listing.name}_create_mapped", "map_weights")
    _write_create_from(module, listing)
    _write_create_with(module, listing, read)
    _write_pool(module, listing)
    _write_destroy(module, listing, layout)
    _write_error(module, listing)


def _field(f: Function, record: Value, offset: int) -> Value:
    return f.at(record, offset, "i8")


def _called(f: Function, name: str, *operands: Value, result: str = "i32") -> Value:
    found = f.call(name, *operands, result=result)
    assert found is not None, "it gives a result"
    return found


def _write_begin(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """begin(out, options) -> code: the record, the check of the processor, the reservation with arena and scratch."""
    f = Function(module, "begin", (Parameter("out"), Parameter("options")), result="i32")
    out, options = f.parameter("out"), f.parameter("options")
    return_when(f, is_null(f, out), f.number("i32", BAD_ARGUMENT))
    f.store(_NULL, out)
    record = f.value("ptr", f"call ptr @calloc(i64 1, i64 {layout.record})")
    return_when(f, is_null(f, record), f.number("i32", NO_MEMORY))
    f.store(record, out)
    lacking = _called(f, "lacking", result="ptr")
    refuse_when(
        f, f.compare("ne", lacking, _NULL), BAD_PROCESSOR, record,
        "this processor lacks '%s', which the code was compiled for; compile it for a processor like this one.",
        lacking,
    )  # fmt: skip
    workers = _called(f, "workers_of", options, result="i64")
    negative = f.compare("slt", workers, f.integer(0))
    refuse_when(f, negative, BAD_ARGUMENT, record, "a negative number of threads is given; 0 stands for all cores.")
    base = reserve(f, record, layout.reserved + layout.alignment)
    f.store(base, _field(f, record, at.RESERVED))
    address = f.convert("ptrtoint", "i64", base)
    up = f.binary("and", f.add(address, layout.alignment - 1), f.integer(-layout.alignment))
    start = f.convert("inttoptr", "ptr", up)
    f.store(f.at(start, layout.weights, "i8"), _field(f, record, at.WEIGHTS))

    def alone() -> None:
        for field, offset, size in (
            (at.ARENA, layout.arena, listing.arena_bytes), (at.SCRATCH, layout.scratch, listing.scratch_bytes),
        ):  # fmt: skip
            place = f.at(start, offset, "i8")
            f.store(place, _field(f, record, field))
            if size:
                allow(f, record, place, size, large=size >= HUGE_PAGE)

    if listing.ticketed is None:
        alone()
    else:
        several = f.compare("sgt", workers, f.integer(1))
        f.when(several, lambda: failed(f, _called(f, "take_shared", record, workers, options)), alone)
    f.give(f.number("i32", OK))
    f.finish()


def _write_open(module: Module, layout: MemoryLayout) -> None:
    """open_weights(record, path, out) -> code: a file descriptor, of a file with the right size."""
    f = Function(module, "open_weights", (Parameter("record"), Parameter("path"), Parameter("out")), result="i32")
    record, path = f.parameter("record"), f.parameter("path")
    refuse_when(f, is_null(f, path), BAD_ARGUMENT, record, "no path of a weights file is given.")
    file = f.value("i32", f"call i32 (ptr, i32, ...) @open(ptr {path.text}, i32 {_CLOSE_ON_EXEC})")
    refuse_when(
        f, f.compare("slt", file, f.number("i32", 0)), BAD_WEIGHTS, record,
        "weights file '%s' cannot be opened: %m.", path,
    )  # fmt: skip
    size = f.value("i64", f"call i64 @lseek(i32 {file.text}, i64 0, i32 2)")
    f.value("i64", f"call i64 @lseek(i32 {file.text}, i64 0, i32 0)")
    wrong = f.compare("ne", size, f.integer(layout.weights_bytes))
    f.when(wrong, lambda: _close(f, file))
    refuse_when(
        f, wrong, BAD_WEIGHTS, record,
        f"weights file '%s' has %lld bytes instead of {layout.weights_bytes}: it is cut off, or another program's.",
        path, size,
    )  # fmt: skip
    f.store(file, f.parameter("out"))
    f.give(f.number("i32", OK))
    f.finish()


def _close(f: Function, file: Value) -> None:
    f.value("i32", f"call i32 @close(i32 {file.text})")


def _write_map(module: Module, layout: MemoryLayout) -> None:
    """map_weights(record, path) -> code."""
    f = Function(module, "map_weights", (Parameter("record"), Parameter("path")), result="i32")
    record, path = f.parameter("record"), f.parameter("path")
    file = _opened(f, record, path)
    if layout.weights_bytes:
        found = f.value(
            "ptr", f"call ptr @mmap(ptr null, i64 {layout.weights_bytes}, i32 {READ}, i32 {PRIVATE}, "
            f"i32 {file.text}, i64 0)",
        )  # fmt: skip
        lost = f.compare("eq", f.convert("ptrtoint", "i64", found), f.integer(-1))
        f.when(lost, lambda: say(f, record, "weights file '%s' cannot be mapped: %m.", path))
        _close(f, file)
        return_when(f, lost, f.number("i32", BAD_WEIGHTS))
        f.store(found, _field(f, record, at.MAPPED))
        f.store(found, _field(f, record, at.WEIGHTS))
    else:
        _close(f, file)
    f.give(_called(f, "finish", record, path))
    f.finish()


def _opened(f: Function, record: Value, path: Value) -> Value:
    place = f.value("ptr", "alloca i32, align 4")
    failed(f, _called(f, "open_weights", record, path, place))
    return f.load("i32", place)


def _write_read(module: Module, layout: MemoryLayout) -> None:
    """read_weights(record, path) -> code: into the reservation, which then is read-only."""
    f = Function(module, "read_weights", (Parameter("record"), Parameter("path")), result="i32")
    record, path = f.parameter("record"), f.parameter("path")
    place, size = f.load("ptr", _field(f, record, at.WEIGHTS)), layout.weights_bytes
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
    _close(f, file)
    return_when(f, short, f.number("i32", BAD_WEIGHTS))
    f.value("i32", f"call i32 @mprotect(ptr {place.text}, i64 {size}, i32 {READ})")
    f.give(_called(f, "finish", record, path))
    f.finish()


def _write_finish(module: Module, listing: Listing, layout: MemoryLayout, checksum: int) -> None:
    """finish(record, path) -> code: the weights are checked, the tables of operands filled."""
    f = Function(module, "finish", (Parameter("record"), Parameter("path")), result="i32")
    record, path = f.parameter("record"), f.parameter("path")
    weights = f.load("ptr", _field(f, record, at.WEIGHTS))
    if layout.weights_bytes:
        signed = (checksum + 2**63) % 2**64 - 2**63
        found = f.value("i64", f"call i64 @{listing.name}_checksum(ptr {weights.text}, i64 {layout.weights_bytes})")
        refuse_when(
            f, f.compare("ne", found, f.integer(signed)), BAD_WEIGHTS, record,
            f"weights '%s' are damaged, or another program's: their checksum is %016llx instead of {checksum:016x}.",
            path, found,
        )  # fmt: skip
    write_places(f, listing.runs, layout, "weights", None, weights)
    if listing.sizes:
        sizes = _field(f, record, layout.sizes)
        write_places(f, listing.runs, layout, "sizes", None, sizes)
        for dim in listing.sizes:
            f.store(f.integer(dim.most), f.at(sizes, dim.number, "i64"))
        f.call("follow", record)
    arena, ticketed = f.load("ptr", _field(f, record, at.ARENA)), listing.ticketed

    def alone() -> None:
        write_places(f, listing.runs, layout, "arena", None, arena)

    if ticketed is None:
        alone()
    else:
        shared = f.load("ptr", _field(f, record, at.SHARED + at.SHARED_AT))

        def several() -> None:
            write_places(f, ticketed.runs, layout, "arena", None, arena, shared=True)

        f.when(f.compare("ne", shared, _NULL), several, alone)
    f.store(f.integer(1), _field(f, record, at.READY))
    f.give(f.number("i32", OK))
    f.finish()


def _write_create(module: Module, name: str, bring: str) -> None:
    f = Function(module, name, (Parameter("model"), Parameter("path")), exported=True, result="i32")
    failed(f, _called(f, "begin", f.parameter("model"), _NULL))
    record = f.load("ptr", f.parameter("model"))
    f.give(_called(f, bring, record, f.parameter("path")))
    f.finish()


def _write_create_from(module: Module, listing: Listing) -> None:
    given = (Parameter("model"), Parameter("weights"), Parameter("bytes", "i64"))
    f = Function(module, f"{listing.name}_create_from", given, exported=True, result="i32")
    failed(f, _called(f, "begin", f.parameter("model"), _NULL))
    record = f.load("ptr", f.parameter("model"))
    f.give(_called(f, "adopt", record, f.parameter("weights"), f.parameter("bytes")))
    f.finish()


def _write_create_with(module: Module, listing: Listing, read: str) -> None:
    f = Function(
        module, f"{listing.name}_create_with", (Parameter("model"), Parameter("options")), exported=True, result="i32"
    )
    options = f.parameter("options")
    failed(f, _called(f, "begin", f.parameter("model"), options))
    record = f.load("ptr", f.parameter("model"))
    refuse_when(f, is_null(f, options), BAD_ARGUMENT, record, "no options are given.")
    path, weights = (f.load("ptr", f.at(options, place, "i8")) for place in (WEIGHTS_PATH, WEIGHTS))

    def in_memory() -> None:
        f.give(_called(f, "adopt", record, weights, f.load("i64", f.at(options, WEIGHTS_BYTES, "i8"))))

    f.line(f"br i1 {is_null(f, path).text}, label %memory, label %file")
    f.label("memory")
    in_memory()
    f.label("file")
    mapped = f.compare("ne", f.load("i32", f.at(options, MAPPED, "i8")), f.number("i32", 0))
    (code,) = f.when(
        mapped, lambda: [_called(f, "map_weights", record, path)], lambda: [_called(f, read, record, path)]
    )
    f.give(code)
    f.finish()


def _write_adopt(module: Module, layout: MemoryLayout) -> None:
    """adopt(record, weights, bytes) -> code: weights in the caller's memory."""
    given = (Parameter("record"), Parameter("weights"), Parameter("bytes", "i64"))
    f = Function(module, "adopt", given, result="i32")
    record, weights = f.parameter("record"), f.parameter("weights")
    refuse_when(
        f, f.compare("ne", f.parameter("bytes"), f.integer(layout.weights_bytes)), BAD_WEIGHTS, record,
        f"%lld bytes of weights are given instead of {layout.weights_bytes}.", f.parameter("bytes"),
    )  # fmt: skip
    if layout.weights_bytes:
        refuse_when(f, is_null(f, weights), BAD_ARGUMENT, record, "no weights are given.")
        rest = f.binary("and", f.convert("ptrtoint", "i64", weights), f.integer(ALIGNMENT - 1))
        refuse_when(
            f, f.compare("ne", rest, f.integer(0)), BAD_ARGUMENT, record,
            f"the weights start at %p, which is no multiple of {ALIGNMENT} bytes.", weights,
        )  # fmt: skip
        f.store(weights, _field(f, record, at.WEIGHTS))
    f.give(_called(f, "finish", record, text(module, "in memory")))
    f.finish()


def _write_pool(module: Module, listing: Listing) -> None:
    f = Function(module, f"{listing.name}_pool", (Parameter("model"),), exported=True, result="ptr")
    f.give(f.load("ptr", _field(f, f.parameter("model"), at.SHARED + at.POOL)))
    f.finish()


def _write_destroy(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    f = Function(module, f"{listing.name}_destroy", (Parameter("model"),), exported=True)
    record = f.parameter("model")

    def free() -> None:
        if listing.ticketed is not None:
            f.call("give_shared", record)
        for field, size in ((at.MAPPED, layout.weights_bytes), (at.RESERVED, layout.reserved + layout.alignment)):
            start = f.load("ptr", _field(f, record, field))

            def unmap(start: Value = start, size: int = size) -> None:
                f.value("i32", f"call i32 @munmap(ptr {start.text}, i64 {size})")

            f.when(f.compare("ne", start, _NULL), unmap)
        f.line(f"call void @free(ptr {record.text})")

    f.when(f.compare("ne", record, _NULL), free)
    f.finish()


def _write_error(module: Module, listing: Listing) -> None:
    f = Function(module, f"{listing.name}_error", (Parameter("model"),), exported=True, result="ptr")
    record = f.parameter("model")
    lost = text(module, "there is no model: no place for it was given, or there is no memory.")
    (found,) = f.when(is_null(f, record), lambda: [lost], lambda: [_field(f, record, at.ERROR)])
    f.give(found)
    f.finish()
