"""Reads that are under way at the same time, by Linux's asynchronous input and output, as LLVM.

    ahead_begin(room)                                      of a thread, whose bytes these are
    ahead_ask(room, slot, file, code, source, place, bytes)    a request to read (code 0) or write (1); none for a file
                                                               below 0
    ahead_await(room, slot) -> bytes                       that it has brought; below 0 where it has not, or was none
    ahead_end(room)                                        after the last request

A disk is at its rate only while the next request is there when one ends, and a thread that waits for each read gives
it none. A request is never repeated: what it does not bring, for whatever reason, is read by the caller as before.
"""

from __future__ import annotations

from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

REQUESTS = 4  # under way at the same time
NOT_READ = -1
_UNDER_WAY = -(1 << 62)  # in place of a result, which is the bytes that were read or an error's negative number
# Offsets in the room of a thread: the context, results by slot, a request with its address, and what says its end.
_CONTEXT, _RESULTS = 0, 8
_REQUEST = _RESULTS + 8 * REQUESTS
_ADDRESS = _REQUEST + 64
_EVENT = _ADDRESS + 8
ROOM = _EVENT + 32  # bytes
_SLOT, _CODE, _FILE, _PLACE, _BYTES, _SOURCE = 0, 16, 20, 24, 32, 40  # offsets in a request (struct iocb)
_SETUP, _SUBMIT, _GET_EVENTS, _DESTROY = range(4)  # places in the architecture's numbers of system calls
_RESULT = 16  # offset in a struct io_event; the slot is its first field


def write_ahead(module: Module) -> None:
    """Add the functions; the module has declared `syscall`."""
    _write_begin(module)
    _write_ask(module)
    _write_await(module)
    _write_end(module)


def _call(f: Function, which: int, given: str) -> Value:
    """A system call of asynchronous input and output."""
    number = f.module.target.architecture.asynchronous[which]
    return f.value("i64", f"call i64 (i64, ...) @syscall(i64 {number}, {given})")


def _write_begin(module: Module) -> None:
    f = Function(module, "ahead_begin", (Parameter("room"),))
    room = f.parameter("room")
    f.store(f.integer(0), room)
    _call(f, _SETUP, f"i64 {REQUESTS}, ptr {room.text}")
    f.finish()


def _write_ask(module: Module) -> None:
    given = (
        Parameter("room"), Parameter("slot", "i64"), Parameter("file", "i32"), Parameter("code", "i16"),
        Parameter("source", "i64"), Parameter("place"), Parameter("bytes", "i64"),
    )  # fmt: skip
    f = Function(module, "ahead_ask", given)
    room, slot, file, code, source, place, size = (f.parameter(one.name) for one in given)
    result = f.at(f.at(room, _RESULTS, "i8"), slot, "i64")
    f.store(f.integer(NOT_READ), result)
    context = f.load("i64", room)
    none = f.binary("or", f.compare("eq", context, f.integer(0)), f.compare("slt", file, f.number("i32", 0)))

    def ask() -> None:
        request = f.at(room, _REQUEST, "i8")
        for offset in range(0, 64, 8):
            f.store(f.integer(0), f.at(request, offset, "i8"))
        for value, offset in (
            (slot, _SLOT), (code, _CODE), (file, _FILE), (place, _PLACE), (size, _BYTES), (source, _SOURCE),
        ):  # fmt: skip
            f.store(value, f.at(request, offset, "i8"))
        f.store(request, f.at(room, _ADDRESS, "i8"))
        f.store(f.integer(_UNDER_WAY), result)
        taken = _call(f, _SUBMIT, f"i64 {context.text}, i64 1, ptr {f.at(room, _ADDRESS, 'i8').text}")
        refused = f.compare("ne", taken, f.integer(1))
        f.when(refused, lambda: f.store(f.integer(NOT_READ), result))

    f.when(none, lambda: None, ask)
    f.finish()


def _write_await(module: Module) -> None:
    f = Function(module, "ahead_await", (Parameter("room"), Parameter("slot", "i64")), result="i64")
    room, slot = f.parameter("room"), f.parameter("slot")
    results, event = f.at(room, _RESULTS, "i8"), f.at(room, _EVENT, "i8")
    f.line("br label %look")
    f.label("look")
    found = f.load("i64", f.at(results, slot, "i64"))
    f.line(f"br i1 {f.compare('eq', found, f.integer(_UNDER_WAY)).text}, label %wait, label %ended")
    f.label("wait")
    count = _call(f, _GET_EVENTS, f"i64 {f.load('i64', room).text}, i64 1, i64 1, ptr {event.text}, ptr null")

    def note() -> None:
        f.store(f.load("i64", f.at(event, _RESULT, "i8")), f.at(results, f.load("i64", event), "i64"))

    f.when(f.compare("eq", count, f.integer(1)), note)
    f.line("br label %look")
    f.label("ended")
    f.give(found)
    f.finish()


def _write_end(module: Module) -> None:
    f = Function(module, "ahead_end", (Parameter("room"),))
    context = f.load("i64", f.parameter("room"))

    def end() -> None:
        _call(f, _DESTROY, f"i64 {context.text}")

    f.when(f.compare("ne", context, f.integer(0)), end)
    f.finish()
