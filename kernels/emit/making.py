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
from kernels.kernel import Sums
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
    """Points of `count` elements each made of taps, all f32. Sums over the first side come first; all are of f64."""

    source: int
    target: int
    count: int  # a multiple of what a vector register holds
    sums: Sums


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
    shapes = sorted({one.sums for one in steps if isinstance(one, Combine)})
    for number, sums in enumerate(shapes):
        _write_combine(module, f"{name}.combine{number}", sums)
    f = Function(module, name, (Parameter("weights"),), exported=True)
    weights, moved = f.parameter("weights"), 0
    for place, one in enumerate(steps):
        if isinstance(one, Combine):
            source, target = f.at(weights, one.source, "i8"), f.at(weights, one.target, "i8")
            f.call(f"{name}.combine{shapes.index(one.sums)}", source, target, f.integer(one.count))
        else:
            moved += 1
            if place + 1 == len(steps) or isinstance(steps[place + 1], Combine):  # the last of those side by side
                before = sum(isinstance(other, Move) for other in steps[: place + 1])
                f.call(f"{name}.moves", weights, f.integer(before - moved), f.integer(before))
                moved = 0
    f.finish()


def write_transform(module: Module, name: str, sums: Sums) -> None:
    """Add name(source, target, count, groups): the same for groups of points and taps side by side."""
    _write_combine(module, f"{name}.group", sums)
    given = (Parameter("source"), Parameter("target"), Parameter("count", "i64"), Parameter("groups", "i64"))
    f = Function(module, name, given, exported=True)
    source, target, count, groups = (f.parameter(one.name) for one in given)

    def group(number: Value, _: tuple[Value, ...]) -> None:
        size = f.mul(f.mul(number, count), 4)
        here = f.at(source, f.mul(size, sums.taps), "i8")
        f.call(f"{name}.group", here, f.at(target, f.mul(size, sums.points), "i8"), count)

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


def _write_combine(module: Module, name: str, sums: Sums) -> None:
    """combine(source, target, count), some vectors of all points after the other, so that stores follow one another.

    Products and sums are rounded one by one, as in the packings that this stands in for; those with 0 are left out.
    """
    lanes, taps, points = module.target.lanes(DType.F32), len(sums.across[0]), len(sums.across)
    stretch = CHUNK * lanes
    f = Function(module, name, (Parameter("source"), Parameter("target"), Parameter("count", "i64")))
    source, target, count = f.parameter("source"), f.parameter("target"), f.parameter("count")

    def tap(number: int, start: Value) -> Value:
        place = f.at(source, f.add(f.mul(count, number), start), "float")
        narrow = f.value(f"<{lanes} x float>", f"load <{lanes} x float>, ptr {place.text}, align 4")
        return f.value(f"<{lanes} x double>", f"fpext <{lanes} x float> {narrow.text} to <{lanes} x double>")

    def put(found: Value, number: Value, start: Value) -> None:
        rounded = f.value(f"<{lanes} x float>", f"fptrunc <{lanes} x double> {found.text} to <{lanes} x float>")
        there = f.at(target, f.add(f.mul(count, number), start), "float")
        f.line(f"store <{lanes} x float> {rounded.text}, ptr {there.text}, align 4")

    def along_one(start: Value, _: tuple[Value, ...]) -> None:
        terms = [tap(number, start) for number in range(sums.taps)]
        for point, scales in enumerate(sums.down):
            put(_total(f, lanes, scales, terms), f.integer(point), start)

    def chunk(first: Value, _: tuple[Value, ...]) -> None:
        last = f.minimum(f.add(first, stretch), count)

        def over_rows(start: Value, _: tuple[Value, ...]) -> None:
            held = [tap(number, start) for number in range(sums.taps)]
            for point, scales in enumerate(sums.down):
                for number in range(taps):
                    place = f.at(half, f.add(f.sub(start, first), (point * taps + number) * stretch), "double")
                    found = _total(f, lanes, scales, held[number::taps])
                    f.line(f"store <{lanes} x double> {found.text}, ptr {place.text}, align 32")

        f.loop(first, last, lanes, over_rows)

        def over_columns(row: Value, _: tuple[Value, ...]) -> None:
            rows = f.at(half, f.mul(row, taps * stretch), "double")
            for point in range(points):

                def vector(start: Value, _: tuple[Value, ...], point: int = point) -> None:
                    terms = []
                    for number in range(taps):
                        place = f.at(rows, f.add(f.sub(start, first), number * stretch), "double")
                        kind = f"<{lanes} x double>"
                        terms.append(f.value(kind, f"load {kind}, ptr {place.text}, align 32"))
                    put(_total(f, lanes, sums.across[point], terms), f.add(f.mul(row, points), point), start)

                f.loop(first, last, lanes, vector)

        f.loop(f.integer(0), f.integer(len(sums.down)), 1, over_columns)

    if sums.across == ((1.0,),):
        f.loop(f.integer(0), count, lanes, along_one)
    else:
        half = f.value("ptr", f"alloca [{len(sums.down) * taps * stretch} x double], align 64")  # [point][tap][element]
        f.loop(f.integer(0), count, stretch, chunk)
    f.finish()


def _total(f: Function, lanes: int, scales: Sequence[float], terms: Sequence[Value]) -> Value:
    """The sum of vectors of f64 times numbers, but for those that are 0."""
    kind = f"<{lanes} x double>"
    found: Value | None = None
    for scale, term in zip(scales, terms, strict=True):
        if scale:
            bits = struct.unpack("<Q", struct.pack("<d", scale))[0]
            splat = ", ".join([f"double 0x{bits:016X}"] * lanes)
            product = f.value(kind, f"fmul {kind} <{splat}>, {term.text}")
            found = product if found is None else f.value(kind, f"fadd {kind} {found.text}, {product.text}")
    return f.number(kind, 0) if found is None else found
