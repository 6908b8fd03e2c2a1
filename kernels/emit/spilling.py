"""Intermediate results in a temporary file while a program runs, as LLVM: it has no name, and so vanishes by itself.

    spill_open(record) -> code                            a file of the model's, in $TMPDIR, else /var/tmp
    spill_move(record, source, place, bytes, writes)      what asynchronous input and output has not moved

All bytes of the file are taken when it is opened, so that a full disk is told then. A move that fails leaves its error
in the state of fetches, and the call returns an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernels.emit.layout import MemoryLayout
from kernels.emit.reading import CLOSE_ON_EXEC, CUT_OFF, FAULT, PAST_CACHE, state
from kernels.emit.refusal import NO_MEMORY, OK, refuse_when, text
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.threads import write
from kernels.target import ArchitectureName

SPILLED = 52  # offset in the state of fetches: the descriptor and one, 0 for none
OF_SPILLS = 1 << 32  # in an error's number: it is not one of the weights' file
DIRECTORY, VARIABLE = "/var/tmp", "TMPDIR"
_TEMPLATE = "%s/graphopt-XXXXXX"
_PATH_BYTES = 4096
_READ_WRITE, _EXCLUSIVE, _UNNAMED = 0x2, 0x80, 0x400000  # O_RDWR, O_EXCL, __O_TMPFILE
_FOLDER: Mapping[ArchitectureName, int] = {"x86_64": 0x10000, "aarch64": 0x4000, "riscv64": 0x10000}  # O_DIRECTORY
_SET_FLAGS = 4  # F_SETFL


def write_spilling(module: Module, layout: MemoryLayout, size: int) -> None:
    """Add the functions, of a file of so many bytes."""
    for name, result, given in (
        ("getenv", "ptr", ["ptr"]), ("open", "i32", ["ptr", "i32", "..."]), ("unlink", "i32", ["ptr"]),
        ("mkostemp", "i32", ["ptr", "i32"]), ("posix_fallocate", "i32", ["i32", "i64", "i64"]),
        ("fcntl", "i32", ["i32", "i32", "..."]), ("pwrite", "i64", ["i32", "ptr", "i64", "i64"]),
        ("snprintf", "i32", ["ptr", "i64", "ptr", "..."]),
    ):  # fmt: skip
        module.declare(name, result, given)
    _write_open(module, layout, size)
    _write_move(module, layout)


def _write_open(module: Module, layout: MemoryLayout, size: int) -> None:
    f = Function(module, "spill_open", (Parameter("record"),), result="i32")
    record, architecture = f.parameter("record"), module.target.architecture.name
    path = f.value("ptr", f"alloca [{_PATH_BYTES} x i8], align 8")
    named = f.value("ptr", f"call ptr @getenv(ptr {text(module, VARIABLE).text})")
    (folder,) = f.when(
        f.compare("ne", named, Value(("null",), "ptr")), lambda: [named], lambda: [text(module, DIRECTORY)]
    )
    flags = _UNNAMED | _FOLDER[architecture] | _READ_WRITE | _EXCLUSIVE | CLOSE_ON_EXEC
    unnamed = f.value("i32", f"call i32 (ptr, i32, ...) @open(ptr {folder.text}, i32 {flags}, i32 384)")

    def made() -> list[Value]:
        template = text(module, _TEMPLATE)
        given = f"ptr {path.text}, i64 {_PATH_BYTES}, ptr {template.text}, ptr {folder.text}"
        f.value("i32", f"call i32 (ptr, i64, ptr, ...) @snprintf({given})")
        found = f.value("i32", f"call i32 @mkostemp(ptr {path.text}, i32 {CLOSE_ON_EXEC})")

        def forget() -> None:
            f.value("i32", f"call i32 @unlink(ptr {path.text})")

        f.when(f.compare("sge", found, f.number("i32", 0)), forget)
        return [found]

    (file,) = f.when(f.compare("sge", unnamed, f.number("i32", 0)), lambda: [unnamed], made)
    refuse_when(
        f, f.compare("slt", file, f.number("i32", 0)), NO_MEMORY, record,
        f"intermediate results need a temporary file, and '%s' takes none: %m. {VARIABLE} names another folder.",
        folder,
    )  # fmt: skip
    f.store(f.add(file, 1), state(f, layout, SPILLED))
    error = f.value("i32", f"call i32 @posix_fallocate(i32 {file.text}, i64 0, i64 {size})")
    refuse_when(
        f, f.compare("ne", error, f.number("i32", 0)), NO_MEMORY, record,
        f"intermediate results need a temporary file of {size} bytes in '%s': %s. {VARIABLE} names another folder.",
        folder, f.value("ptr", f"call ptr @strerror(i32 {error.text})"),
    )  # fmt: skip
    _set_flags(f, file, PAST_CACHE[architecture])  # where the file system lets us
    f.give(f.number("i32", OK))
    f.finish()


def _set_flags(f: Function, file: Value, flags: int) -> None:
    f.value("i32", f"call i32 (i32, i32, ...) @fcntl(i32 {file.text}, i32 {_SET_FLAGS}, i32 {flags})")


def _write_move(module: Module, layout: MemoryLayout) -> None:
    given = (
        Parameter("record"), Parameter("source", "i64"), Parameter("place"), Parameter("bytes", "i64"),
        Parameter("writes", "i1"),
    )  # fmt: skip
    f = Function(module, "spill_move", given)
    source, place, size, writes = (f.parameter(one.name) for one in given[1:])
    file = f.sub(f.load("i32", state(f, layout, SPILLED)), 1)
    f.line("br label %first")
    f.label("first")
    f.line("br label %more")
    f.label("more")
    f.line("%done = phi i64 [ 0, %first ], [ %next, %step ], [ %done, %again ]")
    f.line("%tried = phi i1 [ false, %first ], [ %tried, %step ], [ true, %again ]")
    done = Value(("%done",), "i64")
    words = (
        f"i32 {file.text}, ptr {f.at(place, done, 'i8').text}, i64 {f.sub(size, done).text}, "
        f"i64 {f.add(source, done).text}"
    )
    (got,) = f.when(
        writes,
        lambda: [f.value("i64", f"call i64 @pwrite({words})")],
        lambda: [f.value("i64", f"call i64 @pread({words})")],
    )
    f.line(f"br i1 {f.compare('sgt', got, f.integer(0)).text}, label %step, label %failed")
    f.label("step")
    f.line(f"%next = add i64 %done, {got.text}")
    f.line(f"%whole = icmp sge i64 %next, {size.text}")
    f.line("br i1 %whole, label %end, label %more")
    f.label("failed")
    error = f.load("i32", f.value("ptr", "call ptr @__errno_location()"))
    ended = f.compare("eq", got, f.integer(0))
    f.line("br i1 %tried, label %fault, label %again")
    f.label("again")
    _set_flags(f, file, 0)  # what cannot be moved past the cache may be moved through it
    f.line("br label %more")
    f.label("fault")
    code = f.select(ended, f.number("i32", CUT_OFF), error)
    write(f, f.add(f.convert("zext", "i64", code), OF_SPILLS), state(f, layout, FAULT), "release")
    f.line("br label %end")
    f.label("end")
    f.finish()
