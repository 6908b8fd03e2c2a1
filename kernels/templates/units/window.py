"""The window of an image that a block of a convolution sees, rounded to bfloat16 as its tiles read it.

Pixels lie in planes, one for each remainder of their row and column by the strides that some place of the kernel sees,
and in each plane row by row, of a block of 32 channels side by side: 64 bytes. Hence pixels that outputs side by side
see at a place of the kernel follow one another, from one row of outputs to the next too, with a few columns between
that belong to no output; and 16 of them are a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.templates.convolution.problem import Convolution
from kernels.templates.units.rounding import PAIR, round_pixel
from kernels.units.instructions import LANES, ROW_BYTES, ROWS


@dataclass(frozen=True, slots=True)
class Window:
    """Where things lie in the copy of what `rows` rows of outputs see, of so many channels."""

    problem: Convolution
    rows: int
    channels: int

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """Remainders of rows and columns that are seen."""
        (_, height, width), (_, down, across), strides = (
            self.problem.kernel,
            self.problem.dilations,
            self.problem.strides,
        )
        return tuple(
            dict.fromkeys((r * down % strides[1], c * across % strides[2]) for r in range(height) for c in range(width))
        )

    @property
    def pitch(self) -> int:
        """Pixels of a row of a plane."""
        return self.problem.output.size[2] - 1 - (-self.problem.reach[2] // self.problem.strides[2])

    @property
    def height(self) -> int:
        """Rows of a plane."""
        return self.rows - 1 - (-self.problem.reach[1] // self.problem.strides[1])

    @property
    def blocks(self) -> int:
        """Blocks of 32 channels."""
        return -(-self.channels // PAIR)

    @property
    def plane_bytes(self) -> int:
        """Bytes of a plane of a block of channels."""
        return self.height * self.pitch * ROW_BYTES

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of channels."""
        return len(self.phases) * self.plane_bytes

    @property
    def bytes(self) -> int:
        """Bytes of all, with what the last tiles read behind."""
        return self.blocks * self.block_bytes + 2 * ROWS * ROW_BYTES

    @property
    def places(self) -> tuple[int, ...]:
        """Bytes from an output's position to what it sees at each place of the kernel, row by row."""
        (_, height, width), (_, down, across), strides = (
            self.problem.kernel,
            self.problem.dilations,
            self.problem.strides,
        )
        found = []
        for row in range(height):
            for column in range(width):
                (r, y), (c, x) = divmod(row * down, strides[1]), divmod(column * across, strides[2])
                found.append(self.phases.index((y, x)) * self.plane_bytes + (r * self.pitch + c) * ROW_BYTES)
        return tuple(found)

    def positions(self, rows: int) -> int:
        """Positions from the first output of so many rows to the last one."""
        return (rows - 1) * self.pitch + self.problem.output.size[2]


def write_window(module: Module, window: Window, *, name: str) -> None:
    """Write f(x, copy, row): `x` is the first channel of an image's first pixel, `row` the first row of outputs."""
    problem = window.problem
    f = Function(
        module, name,
        (
            Parameter("x", "ptr", "noalias nocapture readonly"), Parameter("copy", "ptr", "noalias nocapture"),
            Parameter("row", "i64"),
        ),
    )  # fmt: skip
    source, (_, height, width) = problem.input, problem.input.size
    first = f.add(f.mul(f.parameter("row"), problem.strides[1]), -problem.pads[1])

    def row_of(number: Value, _: tuple[Value, ...]) -> None:
        for plane, (y, x) in enumerate(window.phases):
            from_row = f.add(first, f.add(f.mul(number, problem.strides[1]), y))
            above, below = f.compare("sge", from_row, f.integer(0)), f.compare("slt", from_row, f.integer(height))
            start = x - problem.pads[2]  # the column of the first pixel
            to_row = f.add(f.mul(number, window.pitch * ROW_BYTES), plane * window.plane_bytes)
            origin = f.add(f.mul(from_row, source.row_stride), start * source.column_stride)
            low = min(window.pitch, max(0, -(start // problem.strides[2])))
            high = max(low, min(window.pitch, -(-(width - start) // problem.strides[2])))
            row = _Row(f.at(f.parameter("x"), origin), f.at(f.parameter("copy"), to_row, "i8"), low, high)
            _row(f, window, row, f.binary("and", above, below))

    f.loop(0, window.height, 1, row_of)
    f.finish()


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a plane: where its first pixel would lie in the image, where it goes, and which pixels are there."""

    origin: Value
    aim: Value
    low: int
    high: int


def _row(f: Function, window: Window, row: _Row, inside: Value) -> None:
    """All blocks of channels of a row, of which nothing is there where it is not `inside` the image."""
    problem, source = window.problem, window.problem.input
    step = PAIR // source.block * source.block_stride if source.order == "NCHWc" else PAIR

    def block(which: Value, _: tuple[Value, ...], valid: int = PAIR) -> None:
        aim = f.at(row.aim, f.mul(which, window.block_bytes), "i8")
        origin = f.at(row.origin, f.mul(which, step))

        def pixel(column: Value, _: tuple[Value, ...]) -> None:
            pair = round_pixel(f, source, f.at(origin, f.mul(column, problem.strides[2] * source.column_stride)), valid)
            f.store(pair, f.at(aim, f.mul(column, ROW_BYTES), "i8"), align=ROW_BYTES)

        def pixels() -> None:
            _zeros(f, aim, 0, row.low)
            f.loop(row.low, row.high, 1, pixel)
            _zeros(f, aim, row.high, window.pitch)

        f.when(inside, pixels, lambda: _zeros(f, aim, 0, window.pitch))

    whole, rest = divmod(window.channels, PAIR)
    f.loop(0, whole, 1, block)
    if rest:
        block(f.integer(whole), (), rest)


def _zeros(f: Function, aim: Value, first: int, last: int) -> None:
    zero = f.number(types.vector("float", LANES), 0)
    f.loop(first, last, 1, lambda at, _: f.store(zero, f.at(aim, f.mul(at, ROW_BYTES), "i8"), align=ROW_BYTES))
