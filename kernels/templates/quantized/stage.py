"""Copying what a block of outputs sees into scratch, as the words of an arithmetic want it.

The copy holds the channels of one group side by side at each pixel, shifted or widened, and the zero point wherever the
image ends. It is what makes any pad, any order of dims and any type of byte one case for the tiles.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.llvm.transposing import transpose
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.templates.quantized.arithmetic import ByteArithmetic, element_bytes, shift_of_a
from kernels.templates.quantized.problem import QuantizedConvolution

SLACK = 64  # bytes after the copy: a word may begin at its last element
_SQUARES = (16, 8, 4)  # pixels by channels that are turned together
_SMALL = 8  # elements at a time where fewer than a vector are left of a count known only when the program runs


def window(problem: Convolution, rows: int) -> Layout:
    """The layout of a copy for `rows` rows of one plane of outputs, of one group."""
    height = (rows - 1) * problem.strides[1] + problem.reach[1]
    width = (problem.output.size[2] - 1) * problem.strides[2] + problem.reach[2]
    return Layout(1, problem.depth, (problem.reach[0], height, width), "NHWC")


def copy_bytes(elements: int, arithmetic: ByteArithmetic) -> int:
    """Scratch for a copy, in whole lines."""
    return -(-(elements * element_bytes(arithmetic) + SLACK) // 64) * 64


def write_window(
    module: Module, problem: QuantizedConvolution, arithmetic: ByteArithmetic, copy: Layout, name: str
) -> str:
    """Write f(x, copy, plane, row, zero) and return its name.

    `x` is the first pixel of the image, its halo not counted, at the group's first channel; `plane` and `row` are where
    the window begins, possibly negative; `zero` is the shifted zero point, i32.
    """
    if module.has(name):
        return name
    f = Function(
        module, name, (*_operands(), Parameter("plane", "i64"), Parameter("row", "i64"), Parameter("zero", "i32"))
    )
    geometry, mover = problem.geometry, _Mover(f, problem, arithmetic)
    source = geometry.input
    left = min(geometry.pads[2], copy.size[2])
    count = max(0, min(source.size[2], copy.size[2] - left))
    rest = copy.size[2] - left - count

    def plane(p: Value, _: tuple[Value, ...]) -> None:
        from_plane = f.add(f.parameter("plane"), p)
        deep = _inside(f, from_plane, source.size[0])

        def row(r: Value, _: tuple[Value, ...]) -> None:
            from_row = f.add(f.parameter("row"), r)
            here = f.binary("and", deep, _inside(f, from_row, source.size[1]))
            aim = mover.target(f.parameter("copy"), f.add(f.mul(p, copy.plane_stride), f.mul(r, copy.row_stride)))
            origin = f.at(
                f.parameter("x"),
                f.add(f.mul(from_plane, source.plane_stride), f.mul(from_row, source.row_stride)),
                "i8",
            )

            def image() -> None:
                mover.fill(aim, left * geometry.depth)
                mover.pixels(origin, mover.target(aim, left * geometry.depth), count)
                mover.fill(mover.target(aim, (left + count) * geometry.depth), rest * geometry.depth)

            f.when(here, image, lambda: mover.fill(aim, copy.row_stride))

        f.loop(0, copy.size[1], 1, row)

    f.loop(0, copy.size[0], 1, plane)
    f.finish()
    return name


def write_pixels(module: Module, problem: QuantizedConvolution, arithmetic: ByteArithmetic, name: str) -> str:
    """Write f(x, copy, count), which copies `count` pixels that follow one another, and return its name."""
    if module.has(name):
        return name
    f = Function(module, name, (*_operands(), Parameter("count", "i64")))
    _Mover(f, problem, arithmetic).pixels(f.parameter("x"), f.parameter("copy"), f.parameter("count"))
    f.finish()
    return name


def _operands() -> tuple[Parameter, Parameter]:
    return Parameter("x", "ptr", "noalias nocapture readonly"), Parameter("copy", "ptr", "noalias nocapture")


def _inside(f: Function, place: Value, size: int) -> Value:
    return f.compare("ult", place, f.integer(size))  # negative places are large unsigned numbers


class _Mover:
    """Writes the instructions that copy pixels of one group."""

    def __init__(self, f: Function, problem: QuantizedConvolution, arithmetic: ByteArithmetic) -> None:
        self._f = f
        self._geometry = problem.geometry
        self._wide = element_bytes(arithmetic) > 1
        self._signed = problem.x_dtype is DType.I8
        self._flips = shift_of_a(arithmetic, problem.x_dtype) != 0
        self._kind = f"i{8 * element_bytes(arithmetic)}"
        self._lanes = f.module.target.vector_bytes // element_bytes(arithmetic)

    def target(self, base: Value, elements: Amount) -> Value:
        """An address in the copy."""
        return self._f.at(base, elements, self._kind)

    def fill(self, aim: Value, count: int) -> None:
        """The zero point."""
        f = self._f
        if not count:
            return
        zero = f.convert("trunc", self._kind, f.parameter("zero"))

        def put(start: Amount, lanes: int) -> None:
            f.store(f.splat(zero, lanes), self.target(aim, start), align=1)

        self._sweep(count, put)

    def pixels(self, origin: Value, aim: Value, count: Amount) -> None:
        """Pixels that follow one another."""
        f, geometry = self._f, self._geometry
        depth, pitch = geometry.depth, geometry.input.column_stride
        if geometry.input.order == "NCHW" and depth > 1:
            self._turned(origin, aim, count)
        elif pitch == depth:
            self._copy(origin, aim, count * depth if isinstance(count, int) else f.mul(count, depth))
        else:

            def pixel(column: Value, _: tuple[Value, ...]) -> None:
                self._copy(f.at(origin, f.mul(column, pitch), "i8"), self.target(aim, f.mul(column, depth)), depth)

            f.loop(0, count, 1, pixel)

    def _turned(self, origin: Value, aim: Value, count: Amount) -> None:
        """Planes of channels: squares of pixels by channels are turned in registers, as long as there are enough."""
        f, depth = self._f, self._geometry.depth
        known = count if isinstance(count, int) else _SQUARES[0]
        side = next((size for size in _SQUARES if size <= min(depth, known)), 0)
        if not side or depth < _SQUARES[-1]:
            self._one_by_one(origin, aim, count)
        elif isinstance(count, int):
            self._squares(origin, aim, f.integer(count), side)
        else:
            enough = f.compare("sge", count, f.integer(side))
            f.when(
                enough,
                lambda: self._squares(origin, aim, count, side),
                lambda: self._one_by_one(origin, aim, count),
            )

    def _squares(self, origin: Value, aim: Value, count: Value, side: int) -> None:
        """The last square along either axis overlaps the one before it: what both write is the same."""
        f, depth = self._f, self._geometry.depth
        pitch = self._geometry.input.block_stride

        def square(channel: Value, pixel: Value) -> None:
            start = f.at(origin, f.add(f.mul(channel, pitch), pixel), "i8")
            rows = [
                self._held(f.load(types.vector("i8", side), f.at(start, number * pitch, "i8"), align=1))
                for number in range(side)
            ]
            to = self.target(aim, f.add(f.mul(pixel, depth), channel))
            for number, row in enumerate(transpose(f, rows)):
                f.store(row, self.target(to, number * depth), align=1)

        def channels(channel: Value, _: tuple[Value, ...]) -> None:
            first = f.minimum(channel, f.integer(depth - side))

            def pixels(pixel: Value, _: tuple[Value, ...]) -> None:
                square(first, f.minimum(pixel, f.sub(count, side)))

            f.loop(0, count, side, pixels)

        f.loop(0, depth, side, channels)

    def _one_by_one(self, origin: Value, aim: Value, count: Amount) -> None:
        """A few channels or a few pixels."""
        f, depth = self._f, self._geometry.depth

        def pixel(column: Value, _: tuple[Value, ...]) -> None:
            def channel(c: Value, _: tuple[Value, ...]) -> None:
                place = f.add(f.mul(c, self._geometry.input.block_stride), column)
                one = self._held(f.load("i8", f.at(origin, place, "i8")))
                f.store(one, self.target(aim, f.add(f.mul(column, depth), c)), align=1)

            if depth <= _SQUARES[-1]:
                for number in range(depth):
                    channel(f.integer(number), ())
            else:
                f.loop(0, depth, 1, channel)

        f.loop(0, count, 1, pixel)

    def _copy(self, origin: Value, aim: Value, count: Amount) -> None:
        """Elements that follow one another."""
        f = self._f

        def move(start: Amount, lanes: int) -> None:
            found = f.load(types.vector("i8", lanes), f.at(origin, start, "i8"), align=1)
            f.store(self._held(found), self.target(aim, start), align=1)

        self._sweep(count, move)

    def _held(self, found: Value) -> Value:
        f = self._f
        if self._wide:
            return f.convert("sext" if self._signed else "zext", types.with_element(found.type, "i16"), found)
        return f.binary("xor", found, f.number(found.type, -128)) if self._flips else found

    def _sweep(self, count: Amount, touch: Callable[[Amount, int], None]) -> None:
        """touch(start, lanes) for consecutive pieces: vectors first, then smaller ones for what is left."""
        f = self._f
        if isinstance(count, Value):
            start: Value = f.integer(0)
            for lanes in (self._lanes, _SMALL, 1):
                end = f.binary("and", count, f.integer(-lanes))
                f.loop(start, end, lanes, lambda at, _, lanes=lanes: touch(at, lanes))  # type: ignore[misc]
                start = end
            return
        whole = count // self._lanes * self._lanes
        f.loop(0, whole, self._lanes, lambda at, _: touch(at, self._lanes))
        place, lanes = whole, self._lanes // 2
        while place < count:
            if place + lanes <= count:
                touch(place, lanes)
                place += lanes
            else:
                lanes //= 2
