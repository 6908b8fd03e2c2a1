"""Weights that a library makes of those in its file when a model is created, as LLVM: moved, or transformed.

    make(weights)    what follows the file's bytes in memory, step by step

A program for one level may want constants in another order than the file has, and Winograd's convolutions want them
transformed, which takes up to four times the bytes. Neither is stored: the library has a table of the steps. A step
reads what the file has or what an earlier step has made.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module

DEPTH = 5  # loops of a move
CHUNK = 8  # vectors of a point that are combined before those of the next one
Stride = tuple[int, int, int]  # how often, and the bytes from one source and from one target to the next


@dataclass(frozen=True, slots=True)
class Move:
    """Pieces of `size` bytes moved; the loops are nested, the outermost first. Offsets are from the weights' start."""

    source: int
    target: int
    size: int
    loops: tuple[Stride, ...]  # at most DEPTH


@dataclass(frozen=True, slots=True)
class Combine:
    """target[p][q][i] = sum over s and t of matrix[p][s] * matrix[q][t] * source[s][t][i], i below `count`, all f32.

    Sums over s are made first; both are of f64.
    """

    source: int
    target: int
    count: int  # a multiple of what a vector register holds
    matrix: tuple[tuple[float, ...], ...]


MakingStep = Move | Combine


@dataclass(frozen=True, slots=True)
class Making:
    """The steps, and the bytes that they write behind those of the file."""

    steps: tuple[MakingStep, ...] = ()
    stored: int = 0  # bytes of the file
    start: int = 0  # where those that are made begin: a multiple of a page
    bytes: int = 0


NOTHING = Making()


def write_making(module: Module, name: str, steps: Sequence[MakingStep]) -> None:
    """Add name(weights)."""
    moves = [one for one in steps if isinstance(one, Move)]
    if moves:
        _write_moves(module, name, moves)
    shapes = sorted({one.matrix for one in steps if isinstance(one, Combine)})
    for number, matrix in enumerate(shapes):
        _write_combine(module, f"{name}.combine{number}", matrix)
    f = Function(module, name, (Parameter("weights"),), exported=True)
    weights, moved = f.parameter("weights"), 0
    for place, one in enumerate(steps):
        if isinstance(one, Combine):
            source, target = f.at(weights, one.source, "i8"), f.at(weights, one.target, "i8")
            f.call(f"{name}.combine{shapes.index(one.matrix)}", source, target, f.integer(one.count))
        else:
            moved += 1
            if place + 1 == len(steps) or isinstance(steps[place + 1], Combine):  # the last of those side by side
                before = sum(isinstance(other, Move) for other in steps[: place + 1])
                f.call(f"{name}.moves", weights, f.integer(before - moved), f.integer(before))
                moved = 0
    f.finish()


def write_transform(module: Module, name: str, matrix: Sequence[Sequence[float]]) -> None:
    """Add name(source, target, count, groups): the same for groups of points and taps side by side."""
    _write_combine(module, f"{name}.group", matrix)
    given = (Parameter("source"), Parameter("target"), Parameter("count", "i64"), Parameter("groups", "i64"))
    f = Function(module, name, given, exported=True)
    source, target, count, groups = (f.parameter(one.name) for one in given)

    def group(number: Value, _: tuple[Value, ...]) -> None:
        size = f.mul(f.mul(number, count), 4)
        here = f.at(source, f.mul(size, len(matrix[0]) ** 2), "i8")
        f.call(f"{name}.group", here, f.at(target, f.mul(size, len(matrix) ** 2), "i8"), count)

    f.loop(f.integer(0), groups, 1, group)
    f.finish()


def _write_moves(module: Module, name: str, moves: Sequence[Move]) -> None:
    """moves(weights, first, last): rows of a table."""
    words: list[int] = []
    for one in moves:
        assert len(one.loops) <= DEPTH, "so many loops are written"
        loops = ((1, 0, 0),) * (DEPTH - len(one.loops)) + one.loops
        words += [one.source, one.target, one.size, *(number for loop in loops for number in loop)]
    width = 3 + 3 * DEPTH
    table = Value((module.constant(f"{name}.table", "i64", [str(word) for word in words], align=8),), "ptr")
    module.declare("llvm.memcpy.p0.p0.i64", "void", ["ptr", "ptr", "i64", "i1"])
    f = Function(module, f"{name}.moves", (Parameter("weights"), Parameter("first", "i64"), Parameter("last", "i64")))
    weights = f.parameter("weights")

    def row(number: Value, _: tuple[Value, ...]) -> None:
        start = f.at(table, f.mul(number, width), "i64")
        source, target, size, *loops = (f.load("i64", f.at(start, place, "i64")) for place in range(width))

        def nest(depth: int, here: Value, there: Value) -> None:
            if depth == DEPTH:
                f.line(
                    f"call void @llvm.memcpy.p0.p0.i64(ptr {there.text}, ptr {here.text}, i64 {size.text}, i1 false)"
                )
                return
            count, step, stride = loops[3 * depth : 3 * depth + 3]

            def turn(index: Value, _: tuple[Value, ...]) -> None:
                nest(depth + 1, f.at(here, f.mul(index, step), "i8"), f.at(there, f.mul(index, stride), "i8"))

            f.loop(f.integer(0), count, 1, turn)

        nest(0, f.at(weights, source, "i8"), f.at(weights, target, "i8"))

    f.loop(f.parameter("first"), f.parameter("last"), 1, row)
    f.finish()


def _write_combine(module: Module, name: str, matrix: Sequence[Sequence[float]]) -> None:
    """combine(source, target, count), some vectors of all points after the other, so that stores follow one another.

    Products and sums are rounded one by one, as in the packings that this stands in for; those with 0 are left out.
    """
    lanes, taps, points = module.target.lanes(DType.F32), len(matrix[0]), len(matrix)
    short, wide, stretch = f"<{lanes} x float>", f"<{lanes} x double>", CHUNK * lanes
    f = Function(module, name, (Parameter("source"), Parameter("target"), Parameter("count", "i64")))
    source, target, count = f.parameter("source"), f.parameter("target"), f.parameter("count")
    half = f.value("ptr", f"alloca [{points * taps * stretch} x double], align 64")  # [point][tap][element]

    def total(scales: Sequence[float], terms: Sequence[Value]) -> Value:
        found: Value | None = None
        for scale, term in zip(scales, terms, strict=True):
            if scale:
                bits = struct.unpack("<Q", struct.pack("<d", scale))[0]
                splat = ", ".join([f"double 0x{bits:016X}"] * lanes)
                product = f.value(wide, f"fmul {wide} <{splat}>, {term.text}")
                found = product if found is None else f.value(wide, f"fadd {wide} {found.text}, {product.text}")
        assert found is not None, "no row is empty"
        return found

    def chunk(first: Value, _: tuple[Value, ...]) -> None:
        last = f.minimum(f.add(first, stretch), count)

        def over_rows(start: Value, _: tuple[Value, ...]) -> None:
            held = []
            for tap in range(taps * taps):
                place = f.at(source, f.add(f.mul(count, tap), start), "float")
                narrow = f.value(short, f"load {short}, ptr {place.text}, align 4")
                held.append(f.value(wide, f"fpext {short} {narrow.text} to {wide}"))
            for point, scales in enumerate(matrix):
                for tap in range(taps):
                    place = f.at(half, f.add(f.sub(start, first), (point * taps + tap) * stretch), "double")
                    f.line(f"store {wide} {total(scales, held[tap::taps]).text}, ptr {place.text}, align 32")

        f.loop(first, last, lanes, over_rows)

        def over_columns(row: Value, _: tuple[Value, ...]) -> None:
            rows = f.at(half, f.mul(row, taps * stretch), "double")
            for point in range(points):

                def vector(start: Value, _: tuple[Value, ...], point: int = point) -> None:
                    terms = []
                    for tap in range(taps):
                        place = f.at(rows, f.add(f.sub(start, first), tap * stretch), "double")
                        terms.append(f.value(wide, f"load {wide}, ptr {place.text}, align 32"))
                    found = total(matrix[point], terms)
                    rounded = f.value(short, f"fptrunc {wide} {found.text} to {short}")
                    number = f.add(f.mul(row, points), point)
                    there = f.at(target, f.add(f.mul(count, number), start), "float")
                    f.line(f"store {short} {rounded.text}, ptr {there.text}, align 4")

                f.loop(first, last, lanes, vector)

        f.loop(f.integer(0), f.integer(points), 1, over_columns)

    f.loop(f.integer(0), count, stretch, chunk)
    f.finish()
