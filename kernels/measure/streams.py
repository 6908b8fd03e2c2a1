"""Reading and writing a buffer from one end to the other, as often as it takes to see how fast; and emptying caches.

Also going through a buffer from line to line, each of which tells where the next one is: nothing can be read ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.measure.instructions import read
from kernels.run import Array
from kernels.target import ArchitectureName, Target

VECTORS = 16  # in a turn of the loop
MEMORY_BYTES = 32 << 20  # what is read from memory; flushed before, so that the size of the caches does not matter
LINKS = 4096  # lines that a chain goes through
LEAST_BYTES = 32 << 20  # that a reading of a cache passes in all


def levels(target: Target) -> dict[str, int]:
    """Bytes of a buffer that lies in each cache and in no smaller one; no entry for a cache that cannot be told apart.

    The last cache is shared, in a cloud with strangers, so that little of it is taken.
    """
    found = {"l1": target.l1 // 2}
    if target.l2 >= 4 * target.l1:
        found["l2"] = target.l2 // 2
    far = min(4 * target.l2, target.l3 // 2)
    if far >= 2 * target.l2:
        found["l3"] = far
    unit = VECTORS * target.vector_bytes
    return {name: size // unit * unit for name, size in found.items()}


def others_bytes(target: Target) -> int:
    """Bytes of a buffer that lies in the second cache of the core that wrote it: few enough that none is pushed out."""
    unit = VECTORS * target.vector_bytes
    return target.l2 // 4 // unit * unit


def reading(target: Target, name: str, size: int, passes: int) -> Kernel:
    """Loads of all of a buffer `x` of `size` bytes, so many times."""
    lanes = target.lanes()
    kind = types.vector("float", lanes)

    def turn(f: Function, start: Value) -> None:
        for place in range(VECTORS):
            read(f, kind, f.at(start, place * lanes))

    return _stream(target, name, size, passes, turn)


def writing(target: Target, name: str, size: int, passes: int) -> Kernel:
    """Stores to all of a buffer, as kernels have them: lines are fetched before they are overwritten."""
    lanes = target.lanes()
    zero = types.vector("float", lanes)

    def turn(f: Function, start: Value) -> None:
        for place in range(VECTORS):
            f.store(f.number(zero, 0.0), f.at(start, place * lanes), align=target.line)

    return _stream(target, name, size, passes, turn)


def flushing(target: Target, name: str, size: int) -> Kernel:
    """Every line of a buffer out of all caches, into memory."""
    each = VECTORS * target.vector_bytes // target.line

    def turn(f: Function, start: Value) -> None:
        for place in range(each):
            _FLUSH[target.architecture.name](f, f.at(start, place * target.line, "i8"))

    return _stream(target, name, size, 1, turn)


def chasing(target: Target, name: str) -> Kernel:
    """Loads along a chain of LINKS lines in a buffer that `link` has written."""

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        def turn(_: Value, carried: tuple[Value, ...]) -> list[Value]:
            return [f.value("i64", f"load volatile i64, ptr {f.at(pointers['x'], carried[0], 'i64').text}, align 8")]

        f.loop(0, LINKS, 1, turn, [f.integer(0)])

    return write_kernel(Module(target), name, (Operand("x", "output", DType.I64, MEMORY_BYTES // 8),), 1, body)


def link(buffer: Array, line: int) -> None:
    """Write a chain into an array of int64 that begins at its first element and ends there after LINKS lines.

    They lie anywhere, so that no prefetcher knows the next one.
    """
    each = line // buffer.itemsize
    places = each * (1 + np.random.default_rng(0).permutation(buffer.size // each - 1)[: LINKS - 1])
    chain = np.concatenate(([0], places))
    buffer[chain] = np.roll(chain, -1)


def passes_of(size: int) -> int:
    """How often a buffer of `size` bytes is passed in one reading."""
    return max(1, LEAST_BYTES // size)


def _stream(target: Target, name: str, size: int, passes: int, turn: Callable[[Function, Value], None]) -> Kernel:
    step = VECTORS * target.lanes()

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        def once(_: Value, __: tuple[Value, ...]) -> None:
            f.loop(f.integer(0), f.integer(size // 4), step, lambda place, _: turn(f, f.at(pointers["x"], place)))

        f.loop(f.integer(0), f.integer(passes), 1, once)

    return write_kernel(Module(target), name, (Operand("x", "output", DType.F32, size // 4),), 1, body)


def _flush_x86(f: Function, address: Value) -> None:
    name = "llvm.x86.clflushopt" if f.module.target.has("clflushopt") else "llvm.x86.sse2.clflush"
    f.module.declare(name, "void", ["ptr"])
    f.line(f"call void @{name}(ptr {address.text})")


def _flush_arm(f: Function, address: Value) -> None:
    f.line(f'call void asm sideeffect "dc civac, $0", "r,~{{memory}}"(ptr {address.text})')


def _flush_riscv(f: Function, address: Value) -> None:
    """cbo.flush, by its bits: an assembler for it needs the extension's name."""
    f.line(f'call void asm sideeffect ".insn i 0x0f, 2, x0, $0, 2", "r,~{{memory}}"(ptr {address.text})')


def _flush_nothing(f: Function, address: Value) -> None:
    """WebAssembly and a Cortex-M4 know no caches."""


_FLUSH: Mapping[ArchitectureName, Callable[[Function, Value], None]] = {
    "x86_64": _flush_x86, "aarch64": _flush_arm, "riscv64": _flush_riscv,
    "wasm32": _flush_nothing, "thumbv7em": _flush_nothing,
}  # fmt: skip
