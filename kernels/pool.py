"""The worker pool, written as LLVM: threads that run the blocks of one kernel after another. Linux only.

    pool_start(state, workers, scratch, stride)   start `workers` threads besides the caller; 0, or an error number
    pool_run(state, entry, arguments, blocks)     run all blocks; returns when the last one has ended
    pool_stop(state)                              end the threads

`state` is zeroed memory of `STATE_BYTES`, aligned to 64 bytes; worker i (the caller is 0) works in the memory at
scratch + i * stride.

Blocks are claimed one by one from a ticket, a 64-bit word that holds the number of the run in its upper half and how
many blocks are left in its lower half. A claim takes one off by compare-and-swap, so it succeeds only while blocks of
that very run are left: a worker that was late, even by several runs, cannot claim with what it read before. What a run
is (entry, arguments) is written before its ticket and overwritten only after all of its blocks have ended, hence after
every successful claim.

Nobody waits for a worker that has not begun: the caller claims blocks like everyone else, and waits only for those that
others have claimed. Idle workers spin for a bounded time, then sleep on a futex; so does the caller, so that on a
machine with more threads than cores the one who holds the last block gets its turn.

Kernels run under one control word (kernels/llvm/control_word.py) on every thread: a worker sets it when it begins, the
caller for the time of a run.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence

from kernels.errors import KernelsError
from kernels.llvm import control_word
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.load import Loaded, ObjectCache
from kernels.llvm.module import Module
from kernels.run import aligned
from kernels.target import ArchitectureName, Target

MOST_WORKERS = 255
SPINS = 4000  # looks before a thread sleeps; each has a pause of 40 to 140 cycles
_LINE = 64  # bytes; what one side writes often has a cache line of its own

# Offsets in the state, in bytes.
_TICKET, _RUN, _SLEEPERS, _DONE, _WAITING = 0, _LINE, 2 * _LINE, 3 * _LINE, 4 * _LINE
_ENTRY, _ARGUMENTS = 5 * _LINE, 5 * _LINE + 8
_WORKERS, _STOP = 5 * _LINE + 16, 5 * _LINE + 24
_RECORDS = 6 * _LINE  # one per worker: state, scratch, thread
_RECORD = 32
STATE_BYTES = _RECORDS + (MOST_WORKERS + 1) * _RECORD


class PoolError(KernelsError):
    """The threads of a pool could not be started."""


def write_pool(module: Module) -> None:
    """Add the pool's functions to a module."""
    if module.has("pool_run"):
        return
    _write_wait(module)
    _write_wake(module)
    _write_drain(module)
    _write_worker(module)
    _write_start(module)
    _write_run(module)
    _write_stop(module)


def _at(f: Function, base: Value, offset: int) -> Value:
    return f.at(base, offset, "i8")


def _read(f: Function, kind: str, address: Value, order: str = "seq_cst") -> Value:
    return f.value(kind, f"load atomic {kind}, ptr {address.text} {order}, align {_size(kind)}")


def _write(f: Function, value: Value, address: Value, order: str = "seq_cst") -> None:
    f.line(f"store atomic {value.type} {value.text}, ptr {address.text} {order}, align {_size(value.type)}")


def _size(kind: str) -> int:
    return {"i32": 4, "i64": 8}[kind]


def _add(f: Function, address: Value, amount: int) -> Value:
    """Add to an i32 in memory; what it was before."""
    return f.value("i32", f"atomicrmw add ptr {address.text}, i32 {amount} seq_cst, align 4")


_PAUSE: Mapping[ArchitectureName, tuple[str, Sequence[str], str]] = {  # an intrinsic, its parameters, what it is given
    "x86_64": ("llvm.x86.sse2.pause", [], ""),
    "aarch64": ("llvm.aarch64.hint", ["i32"], "i32 1"),
}


def _pause(f: Function) -> None:
    name, parameters, given = _PAUSE[f.module.target.architecture.name]
    f.module.declare(name, "void", parameters)
    f.line(f"call void @{name}({given})")


def _futex(f: Function, address: Value, operation: int, value: Value) -> None:
    number = f.module.target.architecture.futex
    f.module.declare("syscall", "i64", ["i64", "..."])
    f.value(
        "i64",
        f"call i64 (i64, ...) @syscall(i64 {number}, ptr {address.text}, i64 {operation}, i32 {value.text}, "
        "ptr null, ptr null, i64 0)",
    )


_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # private to the process


def _write_wait(module: Module) -> None:
    """pool_wait(word, old, flag): until *word differs from old; spin, then sleep with *flag counted up."""
    given = (Parameter("word"), Parameter("old", "i32"), Parameter("flag"))
    f = Function(module, "pool_wait", given)
    word, old, flag = (f.parameter(name) for name in ("word", "old", "flag"))
    f.line("br label %spin")
    f.label("spin")
    f.line("%n = phi i32 [ 0, %entry ], [ %n1, %again ], [ 0, %sleep ]")
    same = f.compare("eq", _read(f, "i32", word), old)
    f.line(f"br i1 {same.text}, label %again, label %changed")
    f.label("again")
    _pause(f)
    f.line("%n1 = add i32 %n, 1")
    f.line(f"%enough = icmp ugt i32 %n1, {SPINS}")
    f.line("br i1 %enough, label %sleep, label %spin")
    f.label("sleep")
    # The flag is up before the kernel compares the word: whoever changes it afterwards sees the flag and wakes us.
    _add(f, flag, 1)
    _futex(f, word, _FUTEX_WAIT, old)
    _add(f, flag, -1)
    f.line("br label %spin")
    f.label("changed")
    f.finish()


def _write_wake(module: Module) -> None:
    """pool_wake(word, flag): wake all who sleep on the word, if any does."""
    f = Function(module, "pool_wake", (Parameter("word"), Parameter("flag")))
    some = f.compare("ne", _read(f, "i32", f.parameter("flag")), f.number("i32", 0))

    def wake() -> None:
        _futex(f, f.parameter("word"), _FUTEX_WAKE, f.number("i32", 0x7FFFFFFF))

    f.when(some, wake)
    f.finish()


def _write_drain(module: Module) -> None:
    """pool_drain(state, run, scratch): claim and run blocks of a run until none is left."""
    f = Function(module, "pool_drain", (Parameter("state"), Parameter("run", "i32"), Parameter("scratch")))
    state = f.parameter("state")
    entry = f.load("ptr", _at(f, state, _ENTRY))
    arguments = f.load("ptr", _at(f, state, _ARGUMENTS))
    ticket, done = _at(f, state, _TICKET), _at(f, state, _DONE)
    run = f.convert("zext", "i64", f.parameter("run"))
    f.line("br label %look")
    f.label("look")
    seen = _read(f, "i64", ticket)
    left = f.binary("and", seen, f.integer(0xFFFFFFFF))
    ours = f.compare("eq", f.binary("lshr", seen, f.integer(32)), run)
    claimable = f.binary("and", ours, f.compare("ne", left, f.integer(0)))
    f.line(f"br i1 {claimable.text}, label %claim, label %out")
    f.label("claim")
    less = f.sub(seen, 1)
    pair = f.value(
        "{ i64, i1 }", f"cmpxchg ptr {ticket.text}, i64 {seen.text}, i64 {less.text} seq_cst seq_cst, align 8"
    )
    got = f.value("i1", f"extractvalue {{ i64, i1 }} {pair.text}, 1")
    f.line(f"br i1 {got.text}, label %work, label %look")
    f.label("work")
    total = f.convert("zext", "i64", f.load("i32", _at(f, state, _ARGUMENTS + 28)))
    number = f.sub(total, left)  # blocks are handed out in order
    f.line(f"call void {entry.text}(ptr {arguments.text}, i64 {number.text}, ptr {f.parameter('scratch').text})")
    before = _add(f, done, 1)
    last = f.compare("eq", f.convert("zext", "i64", before), f.sub(total, 1))

    def wake() -> None:
        f.call("pool_wake", done, _at(f, state, _WAITING))

    f.when(last, wake)
    f.line("br label %look")
    f.label("out")
    f.finish()


def _write_worker(module: Module) -> None:
    """pool_worker(record): what a thread does: wait for the next run, help with it, until the pool stops."""
    f = Function(module, "pool_worker", (Parameter("record"),), exported=True, result="ptr")
    record = f.parameter("record")
    state, scratch = f.load("ptr", record), f.load("ptr", _at(f, record, 8))
    run_word, sleepers = _at(f, state, _RUN), _at(f, state, _SLEEPERS)
    control_word.enter(f)  # for good: the thread is the pool's own
    f.line("br label %next")
    f.label("next")
    f.line("%last = phi i32 [ 0, %entry ], [ %run, %help ]")
    f.call("pool_wait", run_word, Value(("%last",), "i32"), sleepers)
    f.line(f"%run = load atomic i32, ptr {run_word.text} seq_cst, align 4")
    stop = f.compare("ne", _read(f, "i32", _at(f, state, _STOP)), f.number("i32", 0))
    f.line(f"br i1 {stop.text}, label %end, label %help")
    f.label("help")
    f.call("pool_drain", state, Value(("%run",), "i32"), scratch)
    f.line("br label %next")
    f.label("end")
    f.line("ret ptr null")
    f.finish()


def _write_start(module: Module) -> None:
    """pool_start(state, workers, scratch, stride): an error number of pthread_create, or 0."""
    given = (Parameter("state"), Parameter("workers", "i64"), Parameter("scratch"), Parameter("stride", "i64"))
    f = Function(module, "pool_start", given, exported=True, result="i32")
    state, scratch, stride = f.parameter("state"), f.parameter("scratch"), f.parameter("stride")
    module.declare("pthread_create", "i32", ["ptr", "ptr", "ptr", "ptr"])
    f.store(state, _at(f, state, _RECORDS))
    f.store(scratch, _at(f, state, _RECORDS + 8))
    started = _at(f, state, _WORKERS)
    f.store(f.integer(0), started)

    def one(number: Value, carried: tuple[Value, ...]) -> list[Value]:
        (error,) = carried
        record = f.at(state, f.add(f.mul(number, _RECORD), _RECORDS), "i8")
        f.store(state, record)
        f.store(f.at(scratch, f.mul(number, stride), "i8"), _at(f, record, 8))

        def create() -> list[Value]:
            thread = _at(f, record, 16)
            found = f.value(
                "i32", f"call i32 @pthread_create(ptr {thread.text}, ptr null, ptr @pool_worker, ptr {record.text})"
            )
            fine = f.compare("eq", found, f.number("i32", 0))
            f.when(fine, lambda: f.store(number, started))
            return [found]

        return list(f.when(f.compare("eq", error, f.number("i32", 0)), create, lambda: [error]))

    (error,) = f.loop(1, f.add(f.parameter("workers"), 1), 1, one, [f.number("i32", 0)])
    f.give(error)
    f.finish()


def _write_run(module: Module) -> None:
    """pool_run(state, entry, arguments, blocks)."""
    given = (Parameter("state"), Parameter("kernel"), Parameter("arguments"), Parameter("blocks", "i64"))
    f = Function(module, "pool_run", given, exported=True)
    state, blocks = f.parameter("state"), f.parameter("blocks")
    scratch = f.load("ptr", _at(f, state, _RECORDS + 8))
    word = control_word.enter(f)

    def alone() -> None:
        entry, arguments = f.parameter("kernel"), f.parameter("arguments")

        def block(number: Value, _: tuple[Value, ...]) -> None:
            f.line(f"call void {entry.text}(ptr {arguments.text}, i64 {number.text}, ptr {scratch.text})")

        f.loop(0, blocks, 1, block)

    def together() -> None:
        run_word, done = _at(f, state, _RUN), _at(f, state, _DONE)
        total = f.convert("trunc", "i32", blocks)
        f.store(f.parameter("kernel"), _at(f, state, _ENTRY))
        f.store(f.parameter("arguments"), _at(f, state, _ARGUMENTS))
        f.store(total, _at(f, state, _ARGUMENTS + 28))
        _write(f, f.number("i32", 0), done)
        run = f.add(_read(f, "i32", run_word), f.number("i32", 1))
        high = f.binary("shl", f.convert("zext", "i64", run), f.integer(32))
        _write(f, f.binary("or", high, blocks), _at(f, state, _TICKET))
        _write(f, run, run_word)
        f.call("pool_wake", run_word, _at(f, state, _SLEEPERS))
        f.call("pool_drain", state, run, scratch)
        f.line("br label %finishing")
        f.label("finishing")
        now = _read(f, "i32", done)
        ended = f.compare("eq", now, total)
        f.line(f"br i1 {ended.text}, label %ended, label %waiting")
        f.label("waiting")
        f.call("pool_wait", done, now, _at(f, state, _WAITING))
        f.line("br label %finishing")
        f.label("ended")

    workers = f.load("i64", _at(f, state, _WORKERS))
    several = f.compare("sgt", blocks, f.integer(1))
    f.when(f.binary("and", several, f.compare("ne", workers, f.integer(0))), together, alone)
    control_word.leave(f, word)
    f.finish()


def _write_stop(module: Module) -> None:
    """pool_stop(state)."""
    f = Function(module, "pool_stop", (Parameter("state"),), exported=True)
    state = f.parameter("state")
    module.declare("pthread_join", "i32", ["i64", "ptr"])
    _write(f, f.number("i32", 1), _at(f, state, _STOP))
    run_word = _at(f, state, _RUN)
    _add(f, run_word, 1)
    f.call("pool_wake", run_word, _at(f, state, _SLEEPERS))

    def join(number: Value, _: tuple[Value, ...]) -> None:
        thread = f.load("i64", f.at(state, f.add(f.mul(number, _RECORD), _RECORDS + 16), "i8"))
        f.value("i32", f"call i32 @pthread_join(i64 {thread.text}, ptr null)")

    workers = f.load("i64", _at(f, state, _WORKERS))
    f.loop(1, f.add(workers, 1), 1, join)
    f.store(f.integer(0), _at(f, state, _WORKERS))
    f.finish()


class Pool:
    """A pool in this process, for tests and measurements; a context manager that ends its threads."""

    def __init__(self, target: Target, threads: int, scratch_bytes: int = 0, cache: ObjectCache | None = None) -> None:
        if not 1 <= threads <= MOST_WORKERS + 1:
            raise PoolError(f"a pool has 1 to {MOST_WORKERS + 1} threads, not {threads}.")
        module = Module(target)
        write_pool(module)
        self._loaded = Loaded((cache or ObjectCache(None)).get(module.text(), target), target)
        stride = -(-max(scratch_bytes, 1) // 4096) * 4096
        self._state = aligned(STATE_BYTES, "u1")
        self._scratch = aligned(stride * threads, "u1")
        self._lock = threading.Lock()
        start = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(
            self._loaded.address("pool_start")
        )
        self.run_address = self._loaded.address("pool_run")
        self.state_address = self._state.ctypes.data
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
            self.run_address
        )
        self._stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._loaded.address("pool_stop"))
        error = start(self.state_address, threads - 1, self._scratch.ctypes.data, stride)
        if error:
            self.close()
            raise PoolError(f"a thread of the pool could not be started: error {error}; ask for fewer threads.")

    def run(self, entry: int, arguments: int, blocks: int) -> None:
        """Run all blocks of the kernel whose entry and table of arguments lie at these addresses."""
        with self._lock:
            self._run(self.state_address, entry, arguments, blocks)

    def close(self) -> None:
        """End the threads."""
        self._stop(self.state_address)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
