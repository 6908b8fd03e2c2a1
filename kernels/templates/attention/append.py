"""Appending to a cache of keys or values: new rows go behind those that count already, in place."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.dtype import DType
from kernels.kernel import Kernel, Operand, entry
from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.target import Target
from kernels.templates.attention.problem import InvalidAttention, Place
from kernels.templates.grid import unravel


@dataclass(frozen=True, slots=True)
class Append:
    """cache[b, head, lengths[b] + row] = new[b, head, row]: `rows` new ones into a cache for `capacity` rows, f32.

    Operands: "new" [batch, heads, rows, size] and the output "cache", each where its place says; "lengths", i64 per
    batch index, how many rows count before. Rows that would lie behind the capacity are not written. The attention that
    follows takes lengths + rows as its own "lengths".
    """

    batch: int
    heads: int
    rows: int
    capacity: int
    size: int
    new: Place | None = None  # None: dense
    cache: Place | None = None

    def __post_init__(self) -> None:
        if self.rows > self.capacity:
            raise InvalidAttention(f"{self.rows} rows do not fit a cache for {self.capacity}.")

    def place(self, given: Place | None, rows: int) -> Place:
        """The given place, or the dense one."""
        return given or Place(self.heads * rows * self.size, rows * self.size, self.size)


def build(problem: Append, target: Target, name: str = "append") -> Kernel:
    """The kernel; a block is one head of one batch index."""
    module, lanes = Module(target), target.lanes()
    new, cache = problem.place(problem.new, problem.rows), problem.place(problem.cache, problem.capacity)
    whole = problem.size // lanes * lanes

    def elements(place: Place, rows: int) -> int:
        if not (problem.batch and problem.heads and rows and problem.size):
            return 0
        far = (problem.batch - 1) * place.batch + (problem.heads - 1) * place.head + (rows - 1) * place.row
        return place.offset + far + problem.size

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        if not elements(new, problem.rows):
            return
        batch, head = unravel(f, block, (problem.batch, problem.heads))

        def start(name: str, place: Place) -> Value:
            offset = f.add(f.add(f.mul(batch, place.batch), f.mul(head, place.head)), place.offset)
            return f.at(pointers[name], offset)

        source, aim = start("new", new), start("cache", cache)
        before = f.maximum(f.load("i64", f.at(pointers["lengths"], batch, "i64")), f.integer(0))
        room = f.sub(f.integer(problem.capacity), before)

        def row(number: Value, _: tuple[Value, ...]) -> None:
            here = f.at(source, f.mul(number, new.row))
            there = f.at(aim, f.mul(f.add(before, number), cache.row))
            vector = types.vector("float", lanes)
            f.loop(0, whole, lanes, lambda at, _: f.store(f.load(vector, f.at(here, at)), f.at(there, at)))
            rest = f.first_lanes(problem.size - whole, lanes)
            if problem.size > whole:
                f.masked_store(f.masked_load(vector, f.at(here, whole), rest), f.at(there, whole), rest)

        f.loop(0, f.minimum(f.integer(problem.rows), room), 1, row)

    operands = (
        Operand("new", "input", DType.F32, elements(new, problem.rows)),
        Operand("lengths", "input", DType.I64, problem.batch),
        Operand("cache", "output", DType.F32, elements(cache, problem.capacity)),
    )
    entry(module, name, [operand.name for operand in operands], body)
    copied = problem.batch * problem.heads * problem.rows * problem.size
    return Kernel(name, module, operands, problem.batch * problem.heads, traffic=2 * copied * DType.F32.bytes)
