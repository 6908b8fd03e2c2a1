"""Loops of single instructions: the clock, vector loads, loads of one element into all lanes, calls of kernels.

Fused multiply-adds have their loop in `kernels/peak.py`.
"""

from __future__ import annotations

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Value, joined
from kernels.llvm.module import Module
from kernels.run import Array, aligned
from kernels.target import Target
from kernels.units.instructions import Clear, Instruction, Multiply, Repeat
from kernels.units.write import write

TURNS = 20_000  # a loop of 0.1 ms or more, beside which the call from Python does not count
TILE_TURNS = 2_000  # of products of tiles, which take sixteen cycles
LINKS = 32  # instructions of the chain in a turn of the clock's loop
STEPS = 8  # of products in a turn
PLACES = 32  # vectors that loads go through: in the nearest cache of every core
CALLS = 100_000
_CHAIN = Operand("x", "output", DType.I64, 4)


def clock(target: Target) -> tuple[Kernel, dict[str, Array], int]:
    """A chain of integer instructions of one cycle each, beside vectors that multiply and add; and its cycles.

    Vectors let some processors run slower. They have a quarter of the chain's time at most, so that the chain decides.
    Sums of a register with another one take a cycle everywhere, while those of a constant may take none.
    """
    kind = types.vector("float", target.lanes())

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        first, second, start = (f.load("i64", f.at(pointers["x"], place, "i64")) for place in range(3))
        x = f.number(kind, 0.5)

        def turn(_: Value, carried: tuple[Value, ...]) -> list[Value]:
            number, total = carried
            for _link in range(LINKS // 2):
                number = f.binary("xor", f.add(number, first), second)
            return [number, f.fma(total, x, x)]

        number, total = f.loop(0, TURNS, 1, turn, [start, joined([x] * 8)])
        rest = f.convert("fptosi", "i64", f.reduce("fadd", total))
        f.store(f.add(number, rest), f.at(pointers["x"], 3, "i64"))

    kernel = write_kernel(Module(target), "clock", (_CHAIN,), 1, body)
    return kernel, {"x": aligned(4, "int64")}, TURNS * LINKS


def loads(target: Target) -> tuple[Kernel, dict[str, Array], int]:
    """Vector loads out of the nearest cache, and how many."""
    lanes = target.lanes()
    kind = types.vector("float", lanes)

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        def turn(_: Value, carried: tuple[Value, ...]) -> None:
            for place in range(PLACES):
                read(f, kind, f.at(pointers["x"], place * lanes))

        f.loop(0, TURNS, 1, turn)

    kernel = write_kernel(Module(target), "loads", (Operand("x", "input", DType.F32, PLACES * lanes),), 1, body)
    return kernel, {"x": aligned(PLACES * lanes)}, TURNS * PLACES


def broadcasts(target: Target) -> tuple[Kernel, dict[str, Array], int]:
    """Elements loaded into all lanes, each for a sum of integers, and how many.

    Multiply-adds would hide them on processors that load more elements than they multiply vectors.
    """
    lanes, sums = target.lanes(), 3 * target.vector_registers // 4
    kind = types.vector("i32", lanes)

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        y = f.load(kind, pointers["x"])

        def turn(_: Value, carried: tuple[Value, ...]) -> list[Value]:
            (total,) = carried
            # Read anew in every turn, so that nothing is known of the elements behind it.
            start = f.value("ptr", f"load volatile ptr, ptr {f.parameter('arguments').text}, align 8")
            for step in range(STEPS):
                elements = [f.load("i32", f.at(start, step * sums + place, "i32")) for place in range(sums)]
                total = f.binary("add", joined([f.splat(one, lanes) for one in elements]), total)
            return [total]

        (total,) = f.loop(0, TURNS, 1, turn, [joined([y] * sums)])
        f.store(f.reduce("add", total), pointers["x"])

    size = STEPS * sums
    kernel = write_kernel(Module(target), "broadcasts", (Operand("x", "output", DType.I32, size),), 1, body)
    return kernel, {"x": aligned(size, "int32")}, TURNS * STEPS * sums


def tile_products(target: Target) -> tuple[Kernel, dict[str, Array], int]:
    """Products of tiles of bfloat16 out of tiles that are there, into four that take turns, and how many."""
    turn = tuple(Multiply("bf16", total, 4, 5) for _ in range(STEPS) for total in range(4))
    program: tuple[Instruction, ...] = (*(Clear(tile) for tile in range(6)), Repeat("turn", TURNS // 10, turn))

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        write(f, program, {})
        f.store(block, pointers["x"])

    return (
        write_kernel(Module(target), "tile_products", (_CHAIN,), 1, body),
        {"x": aligned(4, "int64")},
        TURNS // 10 * len(turn),
    )


def dot_products(target: Target) -> tuple[Kernel, dict[str, Array], int]:
    """Dot products of pairs of bfloat16 in registers, into sums that take turns, and how many."""
    lanes, sums = target.lanes(), 3 * target.vector_registers // 4
    kind, pairs = types.vector("float", lanes), types.vector("bfloat", 2 * lanes)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        y = f.convert("bitcast", pairs, f.load(kind, pointers["x"]))

        def turn(_: Value, carried: tuple[Value, ...]) -> list[Value]:
            return [f.call_outside(name, kind, total, y, y) for total in carried]

        totals = f.loop(0, TURNS, 1, turn, [f.load(kind, pointers["x"])] * sums)
        f.store(f.reduce("fadd", joined(totals)), pointers["x"])

    kernel = write_kernel(Module(target), "dot_products", (Operand("x", "output", DType.F32, lanes),), 1, body)
    return kernel, {"x": aligned(lanes)}, TURNS * sums


def calls(target: Target) -> tuple[Kernel, dict[str, Array], int]:
    """A kernel that does nothing, called for so many blocks."""

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        f.store(block, pointers["x"])

    return write_kernel(Module(target), "calls", (_CHAIN,), CALLS, body), {"x": aligned(4, "int64")}, CALLS


def read(f: Function, kind: str, address: Value) -> None:
    """A load that stands although nobody needs what it gives."""
    f.value(kind, f"load volatile {kind}, ptr {address.text}, align 64")
