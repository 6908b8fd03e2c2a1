"""Weights that come into the arena while a program runs, as LLVM: a thread of its own reads the file. Linux only.

    fetcher(record)                      the thread: for each call all fetches (kernels/emit/fetches.py)
    fetch_begin(record)                  a call begins: the thread is woken, in a child process started anew
    fetch_end(record) -> code            whether all that the call read was read
    fetch_start(record) -> code          fetch_stop(record)

A fetch waits until the runs that work on what lies in its place have ended, and a run until so many fetches have: they
have one counter, which only grows, as those of the runs do. What is waited for is always claimed, or fetched, before:
that is for the listing to see to. Who waits here sleeps between two looks: a disk takes longer than a core should spin.

A read that fails ends no call early: the counter goes on, results are wrong, and the call returns BAD_WEIGHTS.
Where the weights are in the caller's memory, they are copied from there.
"""

from __future__ import annotations

from kernels.emit import layout as at
from kernels.emit.ahead import ROOM
from kernels.emit.fetches import doze, word, write_fetches
from kernels.emit.layout import MemoryLayout
from kernels.emit.reading import (
    BELL,
    CUT_OFF,
    DIRECT,
    FAULT,
    FETCHED,
    FILE,
    PROCESS,
    STOP,
    THREAD,
    close,
    state,
)
from kernels.emit.refusal import BAD_WEIGHTS, NO_MEMORY, OK, called, failed, refuse_when, return_when, say, within
from kernels.emit.spilling import OF_SPILLS, SPILLED
from kernels.listing import Listing, Ticketed
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.threads import add, bytes_of, futex, read, write

_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # private to the process
_NO_THREAD = -2  # in place of an error's number: nobody reads, as is said already


def write_fetching(module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed) -> None:
    """Add the functions, and their tables."""
    module.declare("strerror", "ptr", ["i32"])
    write_fetches(module, listing, layout, ticketed)
    _write_fetcher(module, listing, layout, ticketed)
    _write_start(module, listing, layout, ticketed)
    _write_begin(module, layout, ticketed)
    _write_end(module, layout)
    _write_stop(module, layout)


def first_block(f: Function, row: Value) -> Value:
    """The first block of a row."""
    return word(f, "fetch.runs", 8, row, 0)


def await_fetches(f: Function, layout: MemoryLayout, ticketed: Ticketed, row: Value) -> None:
    """Wait for the fetches of a row, in a function whose first parameter is the job."""
    job = Value((f"%{f.parameters[0].name}",), "ptr")
    needed = word(f, "fetch.runs", 8, row, 4)
    before = f.mul(f.sub(read(f, "i64", f.at(job, at.CALL, "i8"), "acquire"), 1), len(ticketed.fetches))
    wanted = f.add(before, needed)
    counter = f.at(job, layout.fetching - at.SHARED + FETCHED, "i8")
    doze(f, lambda: f.compare("sge", read(f, "i64", counter, "acquire"), wanted))


def _write_fetcher(module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed) -> None:
    f = Function(module, listing.symbol("fetcher"), (Parameter("record"),), exported=True, result="ptr")
    record = f.parameter("record")
    room = f.value("ptr", f"alloca [{ROOM} x i8], align 8")
    f.call("ahead_begin", room)
    begun = f.div(read(f, "i64", state(f, layout, FETCHED)), f.integer(len(ticketed.fetches)), signed=False)
    f.line("br label %first")
    f.label("first")
    f.line("br label %next")
    f.label("next")
    f.line(f"%turn = phi i64 [ {begun.text}, %first ], [ %turn, %sleep ], [ %following, %work ]")
    bell = read(f, "i32", state(f, layout, BELL))
    stop = f.compare("ne", read(f, "i32", state(f, layout, STOP)), f.number("i32", 0))
    f.line(f"br i1 {stop.text}, label %end, label %look")
    f.label("look")
    call = read(f, "i64", within(f, record, at.SHARED + at.CALL), "acquire")
    f.line(f"br i1 {f.compare('sgt', call, Value(('%turn',), 'i64')).text}, label %work, label %sleep")
    f.label("sleep")
    futex(f, state(f, layout, BELL), _FUTEX_WAIT, bell)
    f.line("br label %next")
    f.label("work")
    f.line("%following = add i64 %turn, 1")
    f.call("fetch_all", record, Value(("%following",), "i64"), room)
    f.line("br label %next")
    f.label("end")
    f.call("ahead_end", room)
    f.line("ret ptr null")
    f.finish()


def _write_start(module: Module, listing: Listing, layout: MemoryLayout, ticketed: Ticketed) -> None:
    """fetch_start(record) -> code: the thread, which handles no signals of the program, and its file for spills."""
    f = Function(module, "fetch_start", (Parameter("record"),), result="i32")
    record = f.parameter("record")
    if ticketed.spilled_bytes:
        _shut(f, layout, SPILLED)  # a child process has its parent's
        failed(f, called(f, "spill_open", record))
    every, before = bytes_of(f, 255), bytes_of(f, 0)
    f.value("i32", f"call i32 @pthread_sigmask(i32 2, ptr {every.text}, ptr {before.text})")
    error = f.value(
        "i32",
        f"call i32 @pthread_create(ptr {state(f, layout, THREAD).text}, ptr null, ptr @{listing.symbol('fetcher')}, "
        f"ptr {record.text})",
    )
    f.value("i32", f"call i32 @pthread_sigmask(i32 2, ptr {before.text}, ptr null)")
    none = f.compare("ne", error, f.number("i32", 0))
    sentence = "the system gives no thread that reads weights: %s."
    told = f.value("ptr", f"call ptr @strerror(i32 {error.text})")
    refuse_when(f, none, NO_MEMORY, record, sentence, told)
    f.store(f.value("i32", "call i32 @getpid()"), state(f, layout, PROCESS))
    f.give(f.number("i32", OK))
    f.finish()


def _write_begin(module: Module, layout: MemoryLayout, ticketed: Ticketed) -> None:
    f = Function(module, "fetch_begin", (Parameter("record"),))
    record, each = f.parameter("record"), len(ticketed.fetches)
    call = read(f, "i64", within(f, record, at.SHARED + at.CALL))
    ours = f.value("i32", "call i32 @getpid()")
    strange = f.compare("ne", f.load("i32", state(f, layout, PROCESS)), ours)

    def start() -> None:
        write(f, f.mul(f.sub(call, 1), each), state(f, layout, FETCHED))
        code = f.call("fetch_start", record, result="i32")
        assert code is not None, "it gives a code"

        def without() -> None:
            write(f, f.integer(_NO_THREAD), state(f, layout, FAULT))
            write(f, f.mul(call, each), state(f, layout, FETCHED), "release")

        f.when(f.compare("ne", code, f.number("i32", OK)), without)

    f.when(strange, start)
    add(f, state(f, layout, BELL), f.number("i32", 1))
    futex(f, state(f, layout, BELL), _FUTEX_WAKE, f.number("i32", 1))
    f.finish()


def _write_end(module: Module, layout: MemoryLayout) -> None:
    f = Function(module, "fetch_end", (Parameter("record"),), result="i32")
    record = f.parameter("record")
    place = state(f, layout, FAULT)
    fault = f.value("i64", f"atomicrmw xchg ptr {place.text}, i64 0 acq_rel, align 8")
    return_when(f, f.compare("eq", fault, f.integer(0)), f.number("i32", OK))
    return_when(f, f.compare("eq", fault, f.integer(_NO_THREAD)), f.number("i32", NO_MEMORY))
    number = f.convert("trunc", "i32", fault)
    told = f.value("ptr", f"call ptr @strerror(i32 {number.text})")
    spilled = f.compare("sge", fault, f.integer(OF_SPILLS))
    refuse_when(f, spilled, NO_MEMORY, record, "the temporary file of intermediate results fails: %s.", told)
    ended = f.compare("eq", fault, f.integer(CUT_OFF))
    f.when(
        ended,
        lambda: say(f, record, "the weights file cannot be read: it is shorter than when the model was created."),
        lambda: say(f, record, "the weights file cannot be read: %s.", told),
    )  # fmt: skip
    f.give(f.number("i32", BAD_WEIGHTS))
    f.finish()


def _write_stop(module: Module, layout: MemoryLayout) -> None:
    """fetch_stop(record): the thread ends, where there is one in this process; files are closed."""
    f = Function(module, "fetch_stop", (Parameter("record"),))
    ours = f.value("i32", "call i32 @getpid()")

    def stop() -> None:
        write(f, f.number("i32", 1), state(f, layout, STOP))
        add(f, state(f, layout, BELL), f.number("i32", 1))
        futex(f, state(f, layout, BELL), _FUTEX_WAKE, f.number("i32", 1))
        f.value("i32", f"call i32 @pthread_join(i64 {f.load('i64', state(f, layout, THREAD)).text}, ptr null)")

    f.when(f.compare("eq", f.load("i32", state(f, layout, PROCESS)), ours), stop)
    for field in (FILE, DIRECT, SPILLED):
        _shut(f, layout, field)
    f.finish()


def _shut(f: Function, layout: MemoryLayout, field: int) -> None:
    """Close a file of the state, where there is one."""
    place = state(f, layout, field)
    file = f.load("i32", place)

    def shut() -> None:
        close(f, f.sub(file, 1))
        f.store(f.number("i32", 0), place)

    f.when(f.compare("ne", file, f.number("i32", 0)), shut)
