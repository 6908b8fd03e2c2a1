"""A listing as a static program without any library, for an emulator of another processor.

It reads the weights and all inputs from its standard input, runs every step, and writes all outputs to its standard
output; it knows no names and checks nothing. Linux on 64-bit ARM and RISC-V, where calls have the same numbers, and on
32-bit ARM for a library of microcontrollers: it speaks to the kernel by system calls, whose machine code is given as it
is, because our LLVM has no assembler for other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kernels.emit.common import kernel_modules
from kernels.emit.program import compiled
from kernels.errors import KernelsError
from kernels.listing import Listing, Place
from kernels.llvm import control_word
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.target import Target

READ, WRITE, EXIT = 63, 64, 93
MOST_BYTES = 1 << 30  # of memory: code reaches no further
_LINE = 64  # bytes: where each piece of the memory starts
_ROW = "{ ptr, ptr, i64 }"
_CALLS: Mapping[str, tuple[int, ...]] = {  # the number of the call and three arguments, each one register further
    # mov x8, x0; mov x0, x1; mov x1, x2; mov x2, x3; svc #0; ret.
    "aarch64": (0xAA0003E8, 0xAA0103E0, 0xAA0203E1, 0xAA0303E2, 0xD4000001, 0xD65F03C0),
    # mv a7, a0; mv a0, a1; mv a1, a2; mv a2, a3; ecall; ret.
    "riscv64": (0x00050893, 0x00058513, 0x00060593, 0x00068613, 0x00000073, 0x00008067),
    # In halves, the lower one first: push {r7, lr}; mov r7, r0; mov r0, r1; mov r1, r2; mov r2, r3; svc #0;
    # pop {r7, pc}; nop.
    "thumbv7em": (0x4607B580, 0x46114608, 0xDF00461A, 0xBF00BD80),
}
_SHORT: Mapping[int, int] = {READ: 3, WRITE: 4, EXIT: 1}  # the numbers of 32-bit ARM


class NotStandalone(KernelsError):
    """A listing that cannot be a program of this kind."""


@dataclass(frozen=True, slots=True)
class Standalone:
    """The modules, and what the program reads and writes: pieces by their offsets, in bytes."""

    modules: tuple[Module, ...]
    weights: int
    inputs: tuple[int, ...]
    read_bytes: int
    outputs: tuple[int, ...]
    written_bytes: int

    def objects(self) -> list[bytes]:
        """Machine code; raises CompileError."""
        return compiled(self.modules)


def standalone(listing: Listing, target: Target) -> Standalone:
    """The program; raises NotStandalone for another processor than those, and for one that takes too much memory."""
    if target.architecture.name not in _CALLS or target.architecture.is_bare:
        raise NotStandalone(f"a program without libraries is written for ARM64 and RISC-V, not for '{target.triple}'.")
    laid = lay_out(listing)
    module = Module(target)
    write_memory(module, laid)
    _write_start(module, listing, laid)
    return Standalone(
        (module, *kernel_modules(listing.name, listing.kernels, target), moving(target)), 0, laid.inputs, laid.arena,
        tuple(start - laid.made for start in laid.outputs), laid.total - laid.made,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Laid:
    """Where the pieces of a program's one memory start, in bytes; its weights at 0."""

    inputs: tuple[int, ...]
    arena: int  # behind all that is read
    scratch: int
    outputs: tuple[int, ...]  # and behind them the dims of those that have counted axes
    made: int  # where outputs begin
    total: int


def lay_out(listing: Listing, *, constants: bool = True) -> Laid:
    """The memory of a program, with its weights or beside them; raises NotStandalone where it takes too much."""
    weights = listing.weights_bytes if constants else 0
    sizes = [weights, *(one.bytes for one in listing.inputs), listing.arena_bytes, listing.scratch_bytes]
    first = len(sizes)
    starts, total = [], 0
    for size in (*sizes, *(one.bytes for one in (*listing.outputs, *listing.dims))):
        starts.append(total)
        total += -(-size // _LINE) * _LINE
    if total > MOST_BYTES:
        raise NotStandalone(f"the program takes {total:,} bytes of memory; at most {MOST_BYTES:,} are possible.")
    arena, scratch = starts[first - 2 : first]
    made = starts[first] if listing.outputs else total
    return Laid(tuple(starts[1 : first - 2]), arena, scratch, tuple(starts[first:]), made, total)


def write_memory(module: Module, laid: Laid) -> None:
    """Add the memory."""
    module.variable("memory", f"internal global [{max(laid.total, 1)} x i8] zeroinitializer, align 4096")


def moving(target: Target) -> Module:
    """The C library's functions that LLVM's optimizer calls in the place of loops over bytes."""
    module = Module(target)
    size = Parameter("size", "i64")
    for name, given in (
        ("memcpy", Parameter("source")),
        ("memmove", Parameter("source")),
        ("memset", Parameter("word", "i32")),
    ):
        f = Function(module, name, (Parameter("aim"), given, size), exported=True, result="ptr")
        aim, count = f.parameter("aim"), f.parameter("size")
        if name == "memset":
            filler = f.convert("trunc", "i8", f.parameter("word"))
            f.loop(0, count, 1, partial(_put, f, aim, filler))
        elif name == "memcpy":
            f.loop(0, count, 1, partial(_carry, f, f.parameter("source"), aim, None))
        else:
            below = f.compare("ult", *(f.convert("ptrtoint", "i64", one) for one in (aim, f.parameter("source"))))
            sides = [partial(_carry, f, f.parameter("source"), aim, last) for last in (None, f.sub(count, 1))]
            f.when(below, *(partial(_loop, f, count, side) for side in sides))
        f.give(aim)
        f.finish()
    return module


def _loop(f: Function, count: Value, body: Callable[[Value, tuple[Value, ...]], None]) -> None:
    f.loop(0, count, 1, body)


def _put(f: Function, aim: Value, filler: Value, place: Value, _: tuple[Value, ...]) -> None:
    f.store(filler, f.at(aim, place, "i8"))


def _carry(f: Function, source: Value, aim: Value, last: Value | None, place: Value, _: tuple[Value, ...]) -> None:
    """One byte; counted from the last one where there is one."""
    here = place if last is None else f.sub(last, place)
    f.store(f.load("i8", f.at(source, here, "i8")), f.at(aim, here, "i8"))


def address(offset: int, memory: str = "memory") -> str:
    """Of a byte in the memory, or in another global."""
    return f"ptr getelementptr (i8, ptr @{memory}, i64 {offset})"


def write_runs(f: Function, listing: Listing, laid: Laid, memory: str = "memory", constants: str = "memory") -> None:
    """Run the rows (entry, operands, blocks) of a table, one after the other; weights begin where `constants` do."""
    module = f.module
    spaces = {"weights": (0,), "input": laid.inputs, "arena": (laid.arena,), "output": laid.outputs}

    def place(one: Place) -> str:
        start = spaces[one.space][one.argument if one.space in ("input", "output") else 0]
        return address(start + one.offset, constants if one.space == "weights" else memory)

    blocks = {kernel.name: kernel.blocks for kernel in listing.kernels}
    rows = []
    for number, run in enumerate(listing.runs):
        module.declare(listing.symbol(run.kernel), "void", ["ptr", "i64", "ptr"])
        operands = ", ".join(map(place, run.operands))
        module.variable(f"operands{number}", f"internal constant [{len(run.operands)} x ptr] [{operands}], align 8")
        entry = f"ptr @{listing.symbol(run.kernel)}, ptr @operands{number}, i64 {blocks[run.kernel]}"
        rows.append(f"{_ROW} {{ {entry} }}")
    module.variable("runs", f"internal constant [{len(rows)} x {_ROW}] [{', '.join(rows)}], align 8")
    table = Value(("@runs",), "ptr")

    def one(number: Value, _: tuple[Value, ...]) -> None:
        row = f.at(table, number, _ROW)
        entry, operands, count = (
            f.load(kind, f.value("ptr", f"getelementptr inbounds {_ROW}, ptr {row.text}, i64 0, i32 {field}"))
            for field, kind in enumerate(("ptr", "ptr", "i64"))
        )

        def block(number: Value, _: tuple[Value, ...]) -> None:
            scratch = address(laid.scratch, memory)
            f.line(f"call void {entry.text}(ptr {operands.text}, i64 {number.text}, {scratch})")

        f.loop(0, count, 1, block)

    f.loop(0, len(rows), 1, one)


def _write_start(module: Module, listing: Listing, laid: Laid) -> None:
    """_start(): read, run, write, exit."""
    f = Function(module, "_start", (), exported=True)
    control_word.enter(f)
    memory = Value(("@memory",), "ptr")
    transfer(f, READ, memory, laid.arena)
    write_runs(f, listing, laid)
    transfer(f, WRITE, f.at(memory, laid.made, "i8"), laid.total - laid.made)
    system_call(f, EXIT, "i64 0", "ptr null", "i64 0")
    f.finish()


def transfer(f: Function, number: int, start: Value, size: int) -> None:
    """Read or write so many bytes, in as many calls as it takes; a failure ends the program with the code 1."""
    if not size:
        return
    name = f.fresh("transfer")
    before = f.fresh("before")
    f.line(f"br label %{before}")
    f.label(before)
    f.line(f"br label %{name}")
    f.label(name)
    f.line(f"%{name}.done = phi i64 [ 0, %{before} ], [ %{name}.next, %{name}.on ]")
    done = Value((f"%{name}.done",), "i64")
    left = f.sub(f.integer(size), done)
    moved = system_call(f, number, f"i64 {int(number == WRITE)}", f"ptr {f.at(start, done, 'i8').text}", _of(left))
    some = f.compare("sgt", moved, f.integer(0))
    f.line(f"br i1 {some.text}, label %{name}.on, label %{name}.failed")
    f.label(f"{name}.failed")
    system_call(f, EXIT, "i64 1", "ptr null", "i64 0")
    f.line("unreachable")
    f.label(f"{name}.on")
    f.line(f"%{name}.next = add i64 %{name}.done, {moved.text}")
    f.line(f"%{name}.whole = icmp eq i64 %{name}.next, {size}")
    f.line(f"br i1 %{name}.whole, label %{name}.end, label %{name}")
    f.label(f"{name}.end")


def _of(value: Value) -> str:
    return f"{value.type} {value.text}"


def system_call(f: Function, number: int, *arguments: str) -> Value:
    """A system call with three arguments, an i64, a pointer and an i64; its result."""
    call = _CALLS[f.module.target.architecture.name]
    words = ", ".join(f"i32 {word}" for word in call)
    f.module.variable("system_call", f'internal constant [{len(call)} x i32] [{words}], section ".text.call", align 4')
    if f.module.target.architecture.pointer == 4:
        return _short_call(f, number, arguments)
    given: Sequence[str] = (f"i64 {number}", *arguments)
    return f.value("i64", f"call i64 @system_call({', '.join(given)})")


def _short_call(f: Function, number: int, arguments: Sequence[str]) -> Value:
    """The same in words of 32 bits."""
    given = [f"i32 {_SHORT[number]}"]
    for one in arguments:
        kind, _, text = one.partition(" ")
        given.append(one if kind == "ptr" else f"i32 {f.value('i32', f'trunc i64 {text} to i32').text}")
    return f.convert("sext", "i64", f.value("i32", f"call i32 @system_call({', '.join(given)})"))
