"""Creating and destroying a model, as LLVM: the check of the processor, memory, weights, tables of operands.

    int P_create(P_model **model, const char *weights_path)           large weights are read into huge pages
    int P_create_mapped(P_model **model, const char *weights_path)    they stay a mapped file, which processes share
    int P_create_from(P_model **model, const void *weights, size_t bytes)    the caller keeps them
    const char *P_error(const P_model *model)
    void P_destroy(P_model *model)

Linux only: mmap, mprotect and madvise with its numbers.
"""

from __future__ import annotations

from kernels.emit import layout as at
from kernels.emit.layout import HUGE_PAGE, MemoryLayout
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
from kernels.listing import ALIGNMENT, Listing
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

_NONE, _READ, _WRITE = 0, 1, 2  # PROT_
_PRIVATE, _ANONYMOUS, _NO_RESERVE = 0x02, 0x20, 0x4000  # MAP_
_HUGE, _POPULATE_WRITE = 14, 23  # MADV_
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
    _write_begin(module, listing, layout)
    _write_open(module, layout)
    _write_map(module, layout)
    _write_read(module, layout)
    _write_finish(module, listing, layout, checksum)
    _write_create(module, f"{listing.name}_create", "read_weights" if layout.copies_weights else "map_weights", layout)
    _write_create(module, f"{listing.name}_create_mapped", "map_weights", layout)
    _write_create_from(module, listing, layout)
    _write_destroy(module, listing, layout)
    _write_error(module, listing)


def _field(f: Function, record: Value, offset: int) -> Value:
    return f.at(record, offset, "i8")


def _called(f: Function, name: str, *operands: Value, result: str = "i32") -> Value:
    found = f.call(name, *operands, result=result)
    assert found is not None, "it gives a result"
    return found


def _write_begin(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """begin(out) -> code: the record, the check of the processor, the reservation with arena and scratch."""
    f = Function(module, "begin", (Parameter("out"),), result="i32")
    out = f.parameter("out")
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
    size = layout.reserved + layout.alignment
    flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE
    base = f.value("ptr", f"call ptr @mmap(ptr null, i64 {size}, i32 {_NONE}, i32 {flags}, i32 -1, i64 0)")
    address = f.convert("ptrtoint", "i64", base)
    _refuse_memory(f, f.compare("eq", address, f.integer(-1)), record, size)
    f.store(base, _field(f, record, at.RESERVED))
    up = f.binary("and", f.add(address, layout.alignment - 1), f.integer(-layout.alignment))
    start = f.convert("inttoptr", "ptr", up)
    for field, offset, size in (
        (at.ARENA, layout.arena, listing.arena_bytes), (at.SCRATCH, layout.scratch, listing.scratch_bytes),
        (at.WEIGHTS, layout.weights, 0),
    ):  # fmt: skip
        place = f.at(start, offset, "i8")
        f.store(place, _field(f, record, field))
        if size:
            _allow(f, record, place, size)
    f.give(f.number("i32", OK))
    f.finish()


def _allow(f: Function, record: Value, place: Value, size: int) -> None:
    """Make a piece of the reservation usable, and bring its pages now: a run shall meet no fault."""
    done = f.value("i32", f"call i32 @mprotect(ptr {place.text}, i64 {size}, i32 {_READ | _WRITE})")
    _refuse_memory(f, f.compare("ne", done, f.number("i32", 0)), record, size)
    if size >= HUGE_PAGE:
        f.value("i32", f"call i32 @madvise(ptr {place.text}, i64 {size}, i32 {_HUGE})")
    f.value("i32", f"call i32 @madvise(ptr {place.text}, i64 {size}, i32 {_POPULATE_WRITE})")  # Linux 5.14


def _refuse_memory(f: Function, condition: Value, record: Value, size: int) -> None:
    refuse_when(f, condition, NO_MEMORY, record, f"there are not {size:,} bytes of memory for the program: %m.")


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
            "ptr", f"call ptr @mmap(ptr null, i64 {layout.weights_bytes}, i32 {_READ}, i32 {_PRIVATE}, "
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
    _allow(f, record, place, size)
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
    f.value("i32", f"call i32 @mprotect(ptr {place.text}, i64 {size}, i32 {_READ})")
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
    for space, start in (("weights", weights), ("arena", f.load("ptr", _field(f, record, at.ARENA)))):
        write_places(f, listing, layout, space, None, start)
    f.store(f.integer(1), _field(f, record, at.READY))
    f.give(f.number("i32", OK))
    f.finish()


def _write_create(module: Module, name: str, bring: str, layout: MemoryLayout) -> None:
    f = Function(module, name, (Parameter("model"), Parameter("path")), exported=True, result="i32")
    failed(f, _called(f, "begin", f.parameter("model")))
    record = f.load("ptr", f.parameter("model"))
    f.give(_called(f, bring, record, f.parameter("path")))
    f.finish()


def _write_create_from(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    given = (Parameter("model"), Parameter("weights"), Parameter("bytes", "i64"))
    f = Function(module, f"{listing.name}_create_from", given, exported=True, result="i32")
    failed(f, _called(f, "begin", f.parameter("model")))
    record, weights = f.load("ptr", f.parameter("model")), f.parameter("weights")
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


def _write_destroy(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    f = Function(module, f"{listing.name}_destroy", (Parameter("model"),), exported=True)
    record = f.parameter("model")

    def free() -> None:
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
