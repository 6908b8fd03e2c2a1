"""The worker pool, written as LLVM: threads that help whoever calls with one job after another. Linux only.

    pool_take(state, workers, pinned)   count a user in; have `workers` threads, or as many as the system gives
    pool_run(state, job)                do a job; returns when the caller's part of it has ended
    pool_leave(state, job)              until no thread is in a job, whose memory may then be given back
    pool_give(state)                    count a user out; the last one ends the threads

`state` is zeroed memory of `STATE_BYTES`, aligned to 64 bytes, and belongs to one process. A job is memory that begins
with the address of a function and the number of workers that may call it: function(job, worker), where the caller is
worker 0. Whoever comes late finds nothing left to do in it: that is for the function to see to, and it has to return
without anyone else's help once the job is done.

One job is done at a time. A caller that finds the pool taken does its job alone, and so does one in a child process,
where the threads are not: nobody waits for the pool, and nobody waits for a worker that has not begun.

A worker that takes a job writes the job's address into its own record and then looks whether it is still the pool's
(a hazard pointer: Michael, IEEE TPDS 15(6), 2004). Hence `pool_leave` sees everyone who may still read the job.

Workers spin for `SPIN_NS` after a job, by the clock, and then sleep on a futex; the caller wakes one, which wakes the
next. Kernels run under one control word (kernels/llvm/control_word.py): a worker sets it when it begins, the caller for
the time of a run. Signals are handled by the program's own threads: workers block them.
"""

from __future__ import annotations

from kernels.llvm import control_word
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.threads import MASK_BYTES, OUTSIDE, add, bytes_of, futex, pause, read, write, write_threads

MOST_WORKERS = 255
SPIN_NS = 1_000_000  # a worker looks for the next job so long before it sleeps
LOOKS = 64  # between two looks at the clock; each has a pause of 40 to 140 cycles
_LINE = 64  # bytes; what one side writes often has a cache line of its own

# Offsets in the state, in bytes.
BELL, _SLEEPERS, _JOB, _OWNER = 0, _LINE, 2 * _LINE, 3 * _LINE
_LOCK, _STOP, _PROCESS, WORKERS, _USERS, _PINNED, _CALLER = (4 * _LINE + place for place in (0, 4, 8, 16, 24, 32, 36))
_ALLOWED = 5 * _LINE  # the processors that the process may use
_RECORDS = _ALLOWED + MASK_BYTES  # one per worker: state, number, thread, the job that it is in, whom it avoids
_NUMBER, _THREAD, _IN, _AVOIDED = 8, 16, 24, 32
STATE_BYTES = _RECORDS + (MOST_WORKERS + 1) * _LINE
JOB_WORKERS = 8  # offset in a job, after the function

_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # private to the process
_OUTSIDE: tuple[tuple[str, str, list[str]], ...] = (
    ("getpid", "i32", []), ("sched_yield", "i32", []), ("pthread_create", "i32", ["ptr", "ptr", "ptr", "ptr"]),
    ("pthread_join", "i32", ["i64", "ptr"]), ("pthread_sigmask", "i32", ["i32", "ptr", "ptr"]),
    ("syscall", "i64", ["i64", "..."]), ("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"]),
)  # fmt: skip
LIBRARY = tuple(name for name, *_ in (*_OUTSIDE, *OUTSIDE) if not name.startswith("llvm."))


def write_pool(module: Module, worker: str = "pool_worker") -> None:
    """Add the pool's functions to a module."""
    for name, result, given in _OUTSIDE:
        module.declare(name, result, given)
    write_threads(module)
    _write_wake(module)
    _write_rest(module)
    _write_avoid(module)
    _write_worker(module, worker)
    _write_lock(module)
    _write_grow(module, worker)
    _write_take(module)
    _write_run(module)
    _write_leave(module)
    _write_give(module)


def _at(f: Function, base: Value, offset: int) -> Value:
    return f.at(base, offset, "i8")


def _record(f: Function, state: Value, number: Value) -> Value:
    return f.at(state, f.add(f.mul(number, _LINE), _RECORDS), "i8")


def _call(f: Function, name: str, *operands: Value) -> None:
    f.call(name, *operands)


def _one(f: Function) -> Value:
    return f.number("i32", 1)


def _none(f: Function) -> Value:
    return f.number("i32", 0)


def _process(f: Function) -> Value:
    return f.value("i32", "call i32 @getpid()")


def _write_wake(module: Module) -> None:
    """pool_wake(state, most): wake so many of those who sleep, if any does."""
    f = Function(module, "pool_wake", (Parameter("state"), Parameter("most", "i32")))
    state = f.parameter("state")
    some = f.compare("ne", read(f, "i32", _at(f, state, _SLEEPERS)), _none(f))
    f.when(some, lambda: futex(f, _at(f, state, BELL), _FUTEX_WAKE, f.parameter("most")))
    f.finish()


def _write_rest(module: Module) -> None:
    """pool_rest(state, last) -> i32: what the bell says when it no longer says `last`."""
    f = Function(module, "pool_rest", (Parameter("state"), Parameter("last", "i32")), result="i32")
    state, last = f.parameter("state"), f.parameter("last")
    bell, sleepers = _at(f, state, BELL), _at(f, state, _SLEEPERS)
    f.line("br label %begin")
    f.label("begin")
    f.line("%woken = phi i1 [ false, %entry ], [ true, %sleep ]")
    started = f.call("clock_now", result="i64")
    assert started is not None, "it gives a result"
    f.line("br label %look")
    f.label("look")
    f.line("%n = phi i64 [ 0, %begin ], [ %n1, %again ], [ %n1, %clock ]")
    now = read(f, "i32", bell)
    same = f.compare("eq", now, last)
    f.line(f"br i1 {same.text}, label %wait, label %changed")
    f.label("wait")
    pause(f)
    f.line("%n1 = add i64 %n, 1")
    f.line(f"%part = and i64 %n1, {LOOKS - 1}")
    f.line("%due = icmp eq i64 %part, 0")
    f.line("br i1 %due, label %clock, label %again")
    f.label("again")
    f.line("br label %look")
    f.label("clock")
    time = f.call("clock_now", result="i64")
    assert time is not None, "it gives a result"
    long = f.compare("sgt", f.sub(time, started), f.integer(SPIN_NS))
    idle = f.compare("eq", read(f, "ptr", _at(f, state, _JOB)), Value(("null",), "ptr"))
    f.line(f"br i1 {f.binary('and', long, idle).text}, label %sleep, label %look")
    f.label("sleep")
    # The flag is up before the kernel compares the bell: whoever rings afterwards sees the flag and wakes us.
    add(f, sleepers, _one(f))
    futex(f, bell, _FUTEX_WAIT, last)
    add(f, sleepers, f.number("i32", -1))
    f.line("br label %begin")
    f.label("changed")
    f.when(Value(("%woken",), "i1"), lambda: _call(f, "pool_wake", state, _one(f)))
    f.give(now)
    f.finish()


def _write_avoid(module: Module) -> None:
    """pool_avoid(record): keep a worker off the caller's processor, if that is another one than last time.

    A system wakes a thread on the processor of whoever wakes it, and may leave it there, waiting, for longer than a run
    takes, beside an idle one.
    """
    f = Function(module, "pool_avoid", (Parameter("record"),))
    record = f.parameter("record")
    state, avoided = f.load("ptr", record), _at(f, record, _AVOIDED)
    caller = read(f, "i32", _at(f, state, _CALLER), "monotonic")  # its number and one: 0 is nobody's
    new = f.compare("ne", f.load("i32", avoided), caller)
    free = f.compare("eq", read(f, "i32", _at(f, state, _PINNED)), _none(f))

    def keep_off() -> None:
        f.store(caller, avoided)
        f.call("keep_off", f.load("i64", _at(f, record, _THREAD)), _at(f, state, _ALLOWED), f.sub(caller, 1))

    f.when(f.binary("and", new, free), keep_off)
    f.finish()


def _write_worker(module: Module, name: str) -> None:
    """name(record): what a thread does: wait for the next job, help with it, until the pool stops."""
    f = Function(module, name, (Parameter("record"),), exported=True, result="ptr")
    record = f.parameter("record")
    state, number, hazard = f.load("ptr", record), f.load("i64", _at(f, record, _NUMBER)), _at(f, record, _IN)
    job_at, null = _at(f, state, _JOB), Value(("null",), "ptr")
    control_word.enter(f)  # for good: the thread is the pool's own
    f.line("br label %next")
    f.label("next")
    f.line("%last = phi i32 [ 0, %entry ], [ %bell, %look ], [ %bell, %out ]")
    f.line(f"%bell = call fastcc i32 @pool_rest(ptr {state.text}, i32 %last)")
    stop = f.compare("ne", read(f, "i32", _at(f, state, _STOP)), _none(f))
    f.line(f"br i1 {stop.text}, label %end, label %look")
    f.label("look")
    job = read(f, "ptr", job_at)
    f.line(f"br i1 {f.compare('eq', job, null).text}, label %next, label %enter")
    f.label("enter")
    write(f, job, hazard)
    held = f.compare("eq", read(f, "ptr", job_at), job)
    f.line(f"br i1 {held.text}, label %help, label %lost")
    f.label("lost")
    write(f, null, hazard)
    f.line("br label %look")
    f.label("help")
    wanted = f.compare("slt", number, f.load("i64", _at(f, job, JOB_WORKERS)))

    def help() -> None:
        f.call("pool_avoid", record)
        _do(f, job, number)

    f.when(wanted, help)
    f.line("br label %out")
    f.label("out")
    write(f, null, hazard)
    f.line("br label %next")
    f.label("end")
    f.line("ret ptr null")
    f.finish()


def _do(f: Function, job: Value, number: Value) -> None:
    f.line(f"call void {f.load('ptr', job).text}(ptr {job.text}, i64 {number.text})")


def _write_lock(module: Module) -> None:
    """pool_lock(state): for users that come and go; a state that another process has left is made new."""
    f = Function(module, "pool_lock", (Parameter("state"),))
    state = f.parameter("state")
    process, place = _process(f), _at(f, state, _PROCESS)
    foreign = f.compare("ne", read(f, "i32", place), process)

    def anew() -> None:
        f.line(f"call void @llvm.memset.p0.i64(ptr {state.text}, i8 0, i64 {STATE_BYTES}, i1 false)")
        write(f, process, place)

    f.when(foreign, anew)
    f.line("br label %try")
    f.label("try")
    before = f.value("i32", f"atomicrmw xchg ptr {_at(f, state, _LOCK).text}, i32 1 seq_cst, align 4")
    f.line(f"br i1 {f.compare('eq', before, _none(f)).text}, label %ours, label %yield")
    f.label("yield")
    f.value("i32", "call i32 @sched_yield()")
    f.line("br label %try")
    f.label("ours")
    f.finish()


def _write_grow(module: Module, worker: str) -> None:
    """pool_grow(state, workers, pinned): start the threads that are lacking; fewer where the system refuses one."""
    given = (Parameter("state"), Parameter("workers", "i64"), Parameter("pinned", "i32"))
    f = Function(module, "pool_grow", given)
    state, started = f.parameter("state"), _at(f, f.parameter("state"), WORKERS)
    every, before = bytes_of(f, 255), bytes_of(f, 0)
    f.value("i32", f"call i32 @pthread_sigmask(i32 2, ptr {every.text}, ptr {before.text})")
    least = f.minimum(f.parameter("workers"), f.integer(MOST_WORKERS))

    def start(number: Value, carried: tuple[Value, ...]) -> list[Value]:
        (error,) = carried
        record = _record(f, state, number)
        f.store(state, record)
        f.store(number, _at(f, record, _NUMBER))

        def create() -> list[Value]:
            thread = _at(f, record, _THREAD)
            found = f.value(
                "i32", f"call i32 @pthread_create(ptr {thread.text}, ptr null, ptr @{worker}, ptr {record.text})"
            )

            def count() -> None:
                write(f, number, started)
                f.when(
                    f.compare("ne", f.parameter("pinned"), _none(f)),
                    lambda: _call(f, "pin_thread", f.load("i64", thread), number),
                    lambda: _call(f, "pool_avoid", record),
                )

            f.when(f.compare("eq", found, _none(f)), count)
            return [found]

        return list(f.when(f.compare("eq", error, _none(f)), create, lambda: [error]))

    f.loop(f.add(read(f, "i64", started), 1), f.add(least, 1), 1, start, [_none(f)])
    f.value("i32", f"call i32 @pthread_sigmask(i32 2, ptr {before.text}, ptr null)")
    f.finish()


def _write_take(module: Module) -> None:
    """pool_take(state, workers, pinned)."""
    given = (Parameter("state"), Parameter("workers", "i64"), Parameter("pinned", "i32"))
    f = Function(module, "pool_take", given)
    state = f.parameter("state")
    f.call("pool_lock", state)
    add(f, _at(f, state, _USERS), f.integer(1))
    _note_caller(f, state)
    pinned = f.parameter("pinned")
    f.when(f.compare("ne", pinned, _none(f)), lambda: write(f, pinned, _at(f, state, _PINNED)))
    allowed = _at(f, state, _ALLOWED)
    f.value("i32", f"call i32 @sched_getaffinity(i32 0, i64 {MASK_BYTES}, ptr {allowed.text})")
    f.call("pool_grow", state, f.parameter("workers"), pinned)
    write(f, _none(f), _at(f, state, _LOCK))
    f.finish()


def _note_caller(f: Function, state: Value) -> None:
    """Write down the processor that this thread runs on."""
    write(f, f.add(f.value("i32", "call i32 @sched_getcpu()"), 1), _at(f, state, _CALLER))


def _write_run(module: Module) -> None:
    """pool_run(state, job)."""
    f = Function(module, "pool_run", (Parameter("state"), Parameter("job")))
    state, job, owner = f.parameter("state"), f.parameter("job"), _at(f, f.parameter("state"), _OWNER)

    def claim() -> list[Value]:
        before = f.value("i32", f"atomicrmw xchg ptr {owner.text}, i32 1 seq_cst, align 4")
        return [f.compare("eq", before, _none(f))]

    (ours,) = f.when(_here(f, state), claim, lambda: [f.number("i1", False)])

    def publish() -> None:
        _note_caller(f, state)
        write(f, job, _at(f, state, _JOB))
        add(f, _at(f, state, BELL), _one(f))
        f.call("pool_wake", state, _one(f))

    f.when(ours, publish)
    _do(f, job, f.integer(0))

    def withdraw() -> None:
        write(f, Value(("null",), "ptr"), _at(f, state, _JOB))
        write(f, _none(f), owner)

    f.when(ours, withdraw)
    f.finish()


def _here(f: Function, state: Value) -> Value:
    return f.compare("eq", read(f, "i32", _at(f, state, _PROCESS)), _process(f))


def _write_leave(module: Module) -> None:
    """pool_leave(state, job)."""
    f = Function(module, "pool_leave", (Parameter("state"), Parameter("job")))
    state, job = f.parameter("state"), f.parameter("job")

    def look(number: Value, _: tuple[Value, ...]) -> None:
        place = _at(f, _record(f, state, number), _IN)
        head, out = f.fresh("inside"), f.fresh("outside")
        f.line(f"br label %{head}")
        f.label(head)
        f.value("i32", "call i32 @sched_yield()")
        f.line(f"br i1 {f.compare('eq', read(f, 'ptr', place), job).text}, label %{head}, label %{out}")
        f.label(out)

    def everyone() -> None:
        f.loop(1, f.add(read(f, "i64", _at(f, state, WORKERS)), 1), 1, look)

    f.when(_here(f, state), everyone)
    f.finish()


def _write_give(module: Module) -> None:
    """pool_give(state)."""
    f = Function(module, "pool_give", (Parameter("state"),))
    state, started = f.parameter("state"), _at(f, f.parameter("state"), WORKERS)

    def join(number: Value, _: tuple[Value, ...]) -> None:
        thread = f.load("i64", _at(f, _record(f, state, number), _THREAD))
        f.value("i32", f"call i32 @pthread_join(i64 {thread.text}, ptr null)")

    def end() -> None:
        write(f, _one(f), _at(f, state, _STOP))
        add(f, _at(f, state, BELL), _one(f))
        f.call("pool_wake", state, f.number("i32", 0x7FFFFFFF))
        f.loop(1, f.add(read(f, "i64", started), 1), 1, join)
        write(f, f.integer(0), started)
        write(f, _none(f), _at(f, state, _STOP))

    def out() -> None:
        f.call("pool_lock", state)
        users = add(f, _at(f, state, _USERS), f.integer(-1))
        f.when(f.compare("eq", users, f.integer(1)), end)
        write(f, _none(f), _at(f, state, _LOCK))

    f.when(_here(f, state), out)
    f.finish()
