"""Copying the window of the input that a block of outputs sees into scratch, with zeros where the image ends.

Needed where the input is stored with fewer zeros around it than the outputs at the borders see, where zeros lie
between its elements (transposed convolutions), and where tiles read other numbers than it has. The copy keeps the order
of dims, or makes blocks of channels its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution

TURN = 4  # vectors copied in one turn of a loop


class Blocks(Protocol):
    """How pixels of blocks of the copy are made of those of the input."""

    @property
    def counts(self) -> tuple[int, ...]:
        """How many blocks there are that are alike, one kind after the other."""

    @property
    def step(self) -> int:
        """Elements of the input from one block to the next."""

    def pixels(self, f: Function, origin: Value, target: Value, count: int, apart: tuple[int, int], kind: int) -> None:
        """Make so many pixels of a block, which lie `apart` in the input and in the copy."""


class Alike:
    """Blocks that are copied as they are."""

    def __init__(self, source: Layout, copy: Layout) -> None:
        self.counts, self.step, self._run = (copy.blocks,), source.block_stride, copy.column_stride

    def pixels(self, f: Function, origin: Value, target: Value, count: int, apart: tuple[int, int], kind: int) -> None:
        """Copy a block's pixels; at once where they follow one another on both sides."""
        if apart == (self._run, self._run):
            _copy(f, origin, target, count * self._run)
        else:
            each_pixel(f, origin, target, count, apart, lambda at, to: _copy(f, at, to, self._run))


def each_pixel(
    f: Function, origin: Value, target: Value, count: int, apart: tuple[int, int], make: Callable[[Value, Value], None]
) -> None:
    """Call make(place in the input, place in the copy) for so many pixels, which lie `apart` there."""

    def pixel(column: Value, _: tuple[Value, ...]) -> None:
        make(f.at(origin, f.mul(column, apart[0])), f.at(target, f.mul(column, apart[1])))

    f.loop(0, count, 1, pixel)


def window(
    problem: Convolution, rows: int, channels: int, beside: Sequence[tuple[int, int]] | None = None
) -> Layout:  # fmt: skip
    """The layout of the copy: one image with all that `rows` rows of one plane of outputs see.

    With `beside`, no more zeros than these lie before and behind the image's rows, and its columns.
    """
    height = (rows - 1) * problem.strides[1] + problem.reach[1]
    width = (problem.output.size[2] - 1) * problem.strides[2] + problem.reach[2]
    if beside is not None:
        height = min(height, problem.input.size[1] + sum(beside[0]))
        width = problem.input.size[2] + sum(beside[1])
    block = problem.input.block if problem.input.order == "NCHWc" else 0
    return Layout(1, channels, (problem.reach[0], height, width), problem.input.order, block)


def write_stage(
    module: Module, problem: Convolution, copy: Layout, left: int, *, prefix: str, blocks: Blocks | None = None
) -> str:
    """Write the function f(x, copy, plane, row, rows) and return its name; `left` zeros lie before each row.

    `problem.input` is how the input lies; `blocks`: None: as in the copy.
    `x` is the first stored element of the group's first channel in an image; `plane` and `row` are where the window
    begins, counted from the image's first plane and row, possibly negative; `rows` of the copy's rows are needed.
    """
    name = f"{prefix}_stage"
    f = Function(
        module,
        name,
        (
            Parameter("x", "ptr", "noalias nocapture readonly"),
            Parameter("copy", "ptr", "noalias nocapture"),
            Parameter("plane", "i64"),
            Parameter("row", "i64"),
            Parameter("rows", "i64"),
        ),
    )
    x, scratch = f.parameter("x"), f.parameter("copy")
    source, made = problem.input, blocks or Alike(problem.input, copy)

    def planes(p: Value, _: tuple[Value, ...]) -> None:
        in_depth, from_plane = _inside(f, f.add(f.parameter("plane"), p), problem, 0)

        def rows(r: Value, _: tuple[Value, ...]) -> None:
            in_height, from_row = _inside(f, f.add(f.parameter("row"), r), problem, 1)
            here = f.binary("and", in_depth, in_height)
            to_place = f.add(f.mul(p, copy.plane_stride), f.mul(r, copy.row_stride))
            from_place = f.add(
                f.add(f.mul(from_plane, source.plane_stride), f.mul(from_row, source.row_stride)),
                source.position(0, 0, source.before),
            )

            def block(b: Value, _: tuple[Value, ...], kind: int) -> None:
                target = f.at(scratch, f.add(to_place, f.mul(b, copy.block_stride)))
                origin = f.at(x, f.add(from_place, f.mul(b, made.step)))
                f.when(
                    here,
                    lambda: _row(f, problem, copy, left, origin, target, made, kind),
                    lambda: _zeros(f, target, copy.row_stride),
                )

            first = 0
            for kind, count in enumerate(made.counts):
                f.loop(first, first + count, 1, partial(block, kind=kind))
                first += count

        f.loop(0, f.parameter("rows"), 1, rows)

    f.loop(0, copy.size[0], 1, planes)
    f.finish()
    return name


def _inside(f: Function, place: Value, problem: Convolution, axis: int) -> tuple[Value, Value]:
    """Whether a plane or row of the padded, spread input is one of the image's, and which."""
    step = problem.input_dilations[axis]
    found = f.binary(
        "and",
        f.compare("sge", place, f.integer(0)),
        f.compare("slt", place, f.integer(problem.spread[axis])),
    )
    if step == 1:
        return found, place
    whole = f.compare("eq", f.binary("srem", place, f.integer(step)), f.integer(0))
    return f.binary("and", found, whole), f.div(place, f.integer(step))


def _row(
    f: Function, problem: Convolution, copy: Layout, left: int, origin: Value, target: Value, made: Blocks, kind: int
) -> None:
    """One row of one block of channels: zeros, the image, zeros."""
    left = min(left, copy.size[2])
    step = problem.input_dilations[2]
    run, pitch = copy.column_stride, problem.input.column_stride
    count = max(0, min(problem.input.size[2], -(-(copy.size[2] - left) // step)))
    if step > 1:
        _zeros(f, target, copy.row_stride)
    else:
        _zeros(f, target, left * run)
        rest = copy.size[2] - left - count
        _zeros(f, f.at(target, (left + count) * run), rest * run)
    first = f.at(target, left * run)
    made.pixels(f, origin, first, count, (pitch, step * run), kind)


def _copy(f: Function, origin: Value, target: Value, count: int) -> None:
    """`count` floats from one place to another."""

    def move(start: Value | int, kind: str) -> None:
        f.store(f.load(kind, f.at(origin, start)), f.at(target, start))

    _sweep(f, count, move)


def _zeros(f: Function, target: Value, count: int) -> None:
    """`count` zeros."""

    def clear(start: Value | int, kind: str) -> None:
        f.store(f.number(kind, 0), f.at(target, start))

    _sweep(f, count, clear)


def _sweep(f: Function, count: int, touch: object) -> None:
    """Call touch(start, vector type) for consecutive pieces: whole vectors first, then halves of what is left."""
    assert callable(touch)
    lanes = f.module.target.lanes()
    whole = count // (lanes * TURN) * lanes * TURN

    def turn(start: Value, _: tuple[Value, ...]) -> None:
        for part in range(TURN):
            touch(f.add(start, part * lanes), types.vector("float", lanes))

    f.loop(0, whole, lanes * TURN, turn)
    start, size = whole, lanes
    while start < count:
        if start + size <= count:
            touch(start, types.vector("float", size))
            start += size
        else:
            size //= 2
