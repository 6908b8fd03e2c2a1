"""Threads and atomic memory as LLVM: loads, stores and sums that others see at once, the clock, the processors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.target import ArchitectureName

SPINS = 2000  # looks before the core is offered to another thread; each has a pause of 40 to 140 cycles
MASK_BYTES = 128  # of a set of processors, and of one of signals
_CLOCK: tuple[str, str, list[str]] = ("clock_gettime", "i32", ["i32", "ptr"])
OUTSIDE: tuple[tuple[str, str, list[str]], ...] = (
    _CLOCK, ("sched_getaffinity", "i32", ["i32", "i64", "ptr"]), ("sched_getcpu", "i32", []),
    ("pthread_setaffinity_np", "i32", ["i64", "i64", "ptr"]), ("llvm.ctpop.i64", "i64", ["i64"]),
)  # fmt: skip
_PAUSE: Mapping[ArchitectureName, tuple[str, Sequence[str], str]] = {  # an intrinsic, its parameters, what it is given
    "x86_64": ("llvm.x86.sse2.pause", [], ""),
    "aarch64": ("llvm.aarch64.hint", ["i32"], "i32 1"),
    "riscv64": ("llvm.riscv.pause", [], ""),
    "wasm32": ("llvm.donothing", [], ""),
    "thumbv7em": ("llvm.arm.hint", ["i32"], "i32 1"),
}


def pause(f: Function) -> None:
    """Tell the core that this is a loop that waits."""
    name, parameters, given = _PAUSE[f.module.target.architecture.name]
    f.module.declare(name, "void", parameters)
    f.line(f"call void @{name}({given})")


def spin(f: Function, ended: Callable[[], Value]) -> None:
    """Look until `ended` gives true, with a pause between two looks; `sched_yield` has to be declared."""
    names = ("before", "look", "wait", "yield", "ended")
    before, look, wait, yielding, out = (f.fresh(stem) for stem in names)
    f.line(f"br label %{before}")
    f.label(before)
    f.line(f"br label %{look}")
    f.label(look)
    f.line(f"%{look}.n = phi i64 [ 0, %{before} ], [ %{wait}.n, %{wait} ], [ 0, %{yielding} ]")
    f.line(f"br i1 {ended().text}, label %{out}, label %{wait}")
    f.label(wait)
    pause(f)
    f.line(f"%{wait}.n = add i64 %{look}.n, 1")
    f.line(f"%{wait}.long = icmp ugt i64 %{wait}.n, {SPINS}")
    f.line(f"br i1 %{wait}.long, label %{yielding}, label %{look}")
    f.label(yielding)
    f.value("i32", "call i32 @sched_yield()")
    f.line(f"br label %{look}")
    f.label(out)


def read(f: Function, kind: str, address: Value, order: str = "seq_cst") -> Value:
    """An atomic load."""
    return f.value(kind, f"load atomic {kind}, ptr {address.text} {order}, align {_size(kind)}")


def write(f: Function, value: Value, address: Value, order: str = "seq_cst") -> None:
    """An atomic store."""
    f.line(f"store atomic {value.type} {value.text}, ptr {address.text} {order}, align {_size(value.type)}")


def add(f: Function, address: Value, amount: Value, order: str = "seq_cst") -> Value:
    """Add to memory at once; what it was before."""
    operation = f"atomicrmw add ptr {address.text}, {amount.type} {amount.text} {order}, align {_size(amount.type)}"
    return f.value(amount.type, operation)


def futex(f: Function, address: Value, operation: int, value: Value) -> None:
    """The system call by which threads sleep and wake each other; the module has declared `syscall`."""
    number = f.module.target.architecture.futex
    f.value(
        "i64",
        f"call i64 (i64, ...) @syscall(i64 {number}, ptr {address.text}, i64 {operation}, i32 {value.text}, "
        "ptr null, ptr null, i64 0)",
    )


def _size(kind: str) -> int:
    return {"i32": 4, "i64": 8, "ptr": 8}[kind]


def bytes_of(f: Function, byte: int) -> Value:
    """A set of processors or signals on the stack, each byte of it alike."""
    mask = f.value("ptr", f"alloca [{MASK_BYTES} x i8], align 8")
    f.module.declare("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"])
    f.line(f"call void @llvm.memset.p0.i64(ptr {mask.text}, i8 {byte}, i64 {MASK_BYTES}, i1 false)")
    return mask


def write_threads(module: Module) -> None:
    """Add `clock_now`, `processors`, `pin_thread` and `keep_off` to a module."""
    for name, result, given in OUTSIDE:
        module.declare(name, result, given)
    write_clock(module)
    _write_processors(module)
    _write_pin(module)
    _write_keep_off(module)


def write_clock(module: Module) -> None:
    """clock_now() -> i64: nanoseconds of a clock that nobody sets."""
    module.declare(*_CLOCK)
    f = Function(module, "clock_now", (), result="i64")
    time = f.value("ptr", "alloca [2 x i64], align 8")
    f.value("i32", f"call i32 @clock_gettime(i32 1, ptr {time.text})")
    f.give(f.add(f.mul(f.load("i64", time), 1_000_000_000), f.load("i64", f.at(time, 8, "i8"))))
    f.finish()


def _write_processors(module: Module) -> None:
    """processors() -> i64: how many processors this thread may run on; 1 where the system does not tell."""
    f = Function(module, "processors", (), result="i64")
    mask = bytes_of(f, 0)
    f.value("i32", f"call i32 @sched_getaffinity(i32 0, i64 {MASK_BYTES}, ptr {mask.text})")

    def count(word: Value, carried: tuple[Value, ...]) -> list[Value]:
        bits = f.load("i64", f.at(mask, word, "i64"))
        return [f.add(carried[0], f.value("i64", f"call i64 @llvm.ctpop.i64(i64 {bits.text})"))]

    (found,) = f.loop(0, MASK_BYTES // 8, 1, count, [f.integer(0)])
    f.give(f.maximum(found, f.integer(1)))
    f.finish()


def _write_pin(module: Module) -> None:
    """pin_thread(thread, number): keep a thread on the processor of this number among those that the caller may use."""
    f = Function(module, "pin_thread", (Parameter("thread", "i64"), Parameter("number", "i64")))
    allowed, chosen = bytes_of(f, 0), bytes_of(f, 0)
    f.value("i32", f"call i32 @sched_getaffinity(i32 0, i64 {MASK_BYTES}, ptr {allowed.text})")

    def look(place: Value, carried: tuple[Value, ...]) -> list[Value]:
        byte, bit = (
            f.binary("lshr", place, f.integer(3)),
            f.convert("trunc", "i8", f.binary("and", place, f.integer(7))),
        )
        flag = f.binary("shl", f.number("i8", 1), bit)
        found = f.compare("ne", f.binary("and", f.load("i8", f.at(allowed, byte, "i8")), flag), f.number("i8", 0))

        def meet() -> list[Value]:
            ours = f.compare("eq", carried[0], f.parameter("number"))
            f.when(ours, lambda: f.store(flag, f.at(chosen, byte, "i8")))
            return [f.add(carried[0], 1)]

        return list(f.when(found, meet, lambda: [carried[0]]))

    (count,) = f.loop(0, 8 * MASK_BYTES, 1, look, [f.integer(0)])
    enough = f.compare("slt", f.parameter("number"), count)

    def pin() -> None:
        thread = f.parameter("thread").text
        f.value("i32", f"call i32 @pthread_setaffinity_np(i64 {thread}, i64 {MASK_BYTES}, ptr {chosen.text})")

    f.when(enough, pin)
    f.finish()


def _write_keep_off(module: Module) -> None:
    """keep_off(thread, allowed, number): let a thread run on all allowed processors but one, if another is left."""
    given = (Parameter("thread", "i64"), Parameter("allowed"), Parameter("number", "i32"))
    f = Function(module, "keep_off", given)
    allowed, mask = f.parameter("allowed"), bytes_of(f, 0)
    place = f.binary("and", f.convert("zext", "i64", f.parameter("number")), f.integer(8 * MASK_BYTES - 1))
    word, bit = f.binary("lshr", place, f.integer(6)), f.binary("and", place, f.integer(63))

    def copy(number: Value, carried: tuple[Value, ...]) -> list[Value]:
        here = f.select(f.compare("eq", number, word), f.binary("shl", f.integer(1), bit), f.integer(0))
        rest = f.binary("and", f.load("i64", f.at(allowed, number, "i64")), f.binary("xor", here, f.integer(-1)))
        f.store(rest, f.at(mask, number, "i64"))
        return [f.binary("or", carried[0], rest)]

    (some,) = f.loop(0, MASK_BYTES // 8, 1, copy, [f.integer(0)])

    def move() -> None:
        thread = f.parameter("thread").text
        f.value("i32", f"call i32 @pthread_setaffinity_np(i64 {thread}, i64 {MASK_BYTES}, ptr {mask.text})")

    f.when(f.compare("ne", some, f.integer(0)), move)
    f.finish()
