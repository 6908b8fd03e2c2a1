"""The register tile of direct convolution: pixels by vectors of output channels, accumulated over all steps.

A step loads one vector of weights per vector of channels, and broadcasts one input element per pixel from a constant
distance. The layout decides only the distances, so one tile serves NCHW, NHWC and NCHWc. Sums may begin at zero or go
on from scratch, and end there or in the output, after the epilogue. A step of pairs of bfloat16 is one of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.dtype import DType
from kernels.llvm import types
from kernels.llvm.conversion import memory_type
from kernels.llvm.function import Function, Parameter, Value, joined
from kernels.llvm.module import Module
from kernels.target import Target
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.steps import Chunks, distance
from kernels.templates.convolution.store import store_pixels
from kernels.templates.epilogue import leaves_of, parameters_of
from kernels.templates.narrow import load_wide
from kernels.templates.tile import ProductArithmetic, product_added

LINE = 64  # bytes
TAPS = ("first_row", "first_column", "end_row", "end_column")
AHEAD = 12  # chunks ahead whose input a 1x1 kernel asks for: its channels' planes often fall into one set of the cache


@dataclass(frozen=True, slots=True)
class PixelTile:
    """A shape of tile: `rows` x `columns` pixels of the output by as many vectors as `valid` has numbers."""

    rows: int
    columns: int
    valid: tuple[int, ...]  # lanes of each vector that are channels
    steps: tuple[Chunks, ...]
    begins: bool = True  # sums start at zero; otherwise they go on from scratch
    ends: bool = True  # the epilogue is applied and the output written; otherwise sums go to scratch
    ahead: int = 0  # lines from the pointer "next" that each chunk asks for
    weights_dtype: DType = DType.F32  # as they lie in memory
    skips: bool = False  # whether a tile is told which taps it needs

    @property
    def pixels(self) -> int:
        """Pixels."""
        return self.rows * self.columns

    @property
    def vectors(self) -> int:
        """Vectors of channels."""
        return len(self.valid)


def write_tile(module: Module, problem: Convolution, source: Layout, tile: PixelTile, *, name: str) -> str:
    """Write f(x, weights, y, sums, next, operands of the epilogue...) and return its name; pointers are at the tile.

    One that skips has four numbers behind `next`: the first row and column of taps that it needs, which `x` is at, and
    the ends.
    """
    f = Function(
        module,
        name,
        (
            Parameter("x", "ptr", "noalias nocapture readonly"),
            Parameter("weights", "ptr", "noalias nocapture readonly"),
            Parameter("y", "ptr", "nocapture"),
            Parameter("sums", "ptr", "noalias nocapture"),
            Parameter("next", "ptr", "nocapture readonly"),
            *(Parameter(one, "i64") for one in (TAPS if tile.skips else ())),
            *(parameters_of(problem.epilogue) if tile.ends else ()),
        ),
    )
    lanes = module.target.lanes()
    sums = _initial(f, tile)
    weights = f.parameter("weights")
    for number, group in enumerate(tile.steps):
        sums = _accumulate(f, problem, source, tile, group, weights, sums, f"{name}_table{number}")
        weights = f.at(weights, group.steps * tile.vectors * lanes, memory_type(tile.weights_dtype))
    if tile.ends:
        leaves = leaves_of(f, problem.epilogue, problem.variables[5], lanes)
        pixels = [(row, column) for row in range(tile.rows) for column in range(tile.columns)]
        totals = [joined([_whole(f, part, lanes) for part in total]) for total in _by_pixel(tile, sums)]
        store_pixels(f, problem, leaves, f.parameter("y"), pixels, totals, tile.valid)
    else:
        for pixel, total in enumerate(_by_pixel(tile, sums)):
            for position, part in enumerate(total):
                f.store(part, _sum_place(f, tile, pixel, position), align=4 * lanes)
    f.finish()
    return name


def lanes_of(tile: PixelTile, target: Target) -> tuple[int, ...]:
    """The lanes that each vector of a tile is computed with: half of the target's where no more are channels.

    Where vectors of 64 bytes are computed in two halves, half a vector takes half the time; elsewhere it takes as long.
    """
    lanes = target.lanes()
    half = lanes // 2 if target.vector_bytes == 64 else 0
    return tuple(half if 0 < valid <= half else lanes for valid in tile.valid)


def _by_pixel(tile: PixelTile, sums: Sequence[Value]) -> list[Sequence[Value]]:
    """The sums of each pixel, a vector of channels each."""
    return [sums[first : first + tile.vectors] for first in range(0, len(sums), tile.vectors)]


def _whole(f: Function, part: Value, lanes: int) -> Value:
    """A vector of all lanes; zeros follow those of half a one."""
    have = types.lanes(part.type)
    return part if have == lanes else f.shuffle(part, f.number(part.type, 0), range(lanes))


def _sum_place(f: Function, tile: PixelTile, pixel: int, position: int) -> Value:
    return f.at(f.parameter("sums"), (pixel * tile.vectors + position) * f.module.target.lanes())


def _initial(f: Function, tile: PixelTile) -> list[Value]:
    """A value for each vector of channels of each pixel."""
    kinds = [types.vector("float", lanes) for lanes in lanes_of(tile, f.module.target)]
    if tile.begins:
        return [f.number(kind, 0) for _ in range(tile.pixels) for kind in kinds]
    align = 4 * f.module.target.lanes()
    return [
        f.load(kind, _sum_place(f, tile, pixel, position), align=align)
        for pixel in range(tile.pixels)
        for position, kind in enumerate(kinds)
    ]


def _accumulate(
    f: Function,
    problem: Convolution,
    source: Layout,
    tile: PixelTile,
    group: Chunks,
    weights: Value,
    sums: list[Value],
    table: str,
) -> list[Value]:
    """The loop over the chunks of one pattern."""
    lanes = f.module.target.lanes()
    x = f.parameter("x")
    starts = [distance(problem, source, start) for start in group.starts]
    inner = [distance(problem, source, step) for step in group.inner]
    pixels = [
        row * problem.strides[1] * source.row_stride + column * problem.strides[2] * source.column_stride
        for row in range(tile.rows)
        for column in range(tile.columns)
    ]
    width, each = tile.vectors * lanes, lanes_of(tile, f.module.target)
    arithmetic: ProductArithmetic = "bf16" if problem.pairs else "f32"

    def chunk(at: Value, weights_at: Value, carried: Sequence[Value]) -> list[Value]:
        found = list(carried)
        for number, step in enumerate(inner):
            vectors = []
            for vector, own in enumerate(each):
                address = f.at(weights_at, number * width + vector * lanes, memory_type(tile.weights_dtype))
                if problem.pairs:
                    vectors.append(f.load(types.vector("i32", own), address))
                else:
                    vectors.append(load_wide(f, address, tile.weights_dtype, own))
            for place, pixel in enumerate(pixels):
                element = f.load("i32" if problem.pairs else "float", f.at(at, pixel + step))
                left = {own: f.splat(element, own) for own in dict.fromkeys(each)}
                for vector, (own, right) in enumerate(zip(each, vectors, strict=True)):
                    total = place * tile.vectors + vector
                    found[total] = product_added(f, arithmetic, left[own], right, found[total])
        return found

    if len(starts) == 1:
        return chunk(f.at(x, starts[0]), weights, sums)
    ahead = AHEAD if problem.kernel == (1, 1, 1) and source.block > 1 else 0
    entries = f.module.constant(table, "i32", [str(start) for start in (*starts, *starts[-1:] * ahead)])

    def body(number: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
        entry = f.at(Value((entries,), "ptr"), number, "i32")
        start = f.convert("sext", "i64", f.load("i32", entry))
        at = f.at(x, f.sub(start, _origin(f, problem, source)) if tile.skips else start)
        lines = f.at(f.parameter("next"), f.mul(number, tile.ahead * LINE), "i8")
        for line in range(tile.ahead):
            f.prefetch(f.at(lines, line * LINE, "i8"), locality=2)
        if ahead:
            later = f.at(x, f.convert("sext", "i64", f.load("i32", f.at(entry, ahead, "i32"))))
            _ask_ahead(f, problem, source, tile, later, number, len(inner))
        return chunk(at, f.at(weights, f.mul(number, len(inner) * width), memory_type(tile.weights_dtype)), carried)

    if not tile.skips:
        return list(f.loop(0, len(starts), 1, body, sums))
    first_row, first_column, end_row, end_column = map(f.parameter, TAPS)
    _, rows, columns = problem.kernel

    def channels(number: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
        def row(place: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
            before = f.add(f.mul(number, rows * columns), f.mul(place, columns))
            return f.loop(first_column, end_column, 1, lambda c, one: body(f.add(before, c), one), carried)

        return f.loop(first_row, end_row, 1, row, carried)

    return list(f.loop(0, len(starts) // (rows * columns), 1, channels, sums))


def _ask_ahead(
    f: Function, problem: Convolution, source: Layout, tile: PixelTile, later: Value, number: Value, steps: int
) -> None:
    """Prefetch what the tile's pixels see of a later chunk of so many steps, a share of the pixels by each chunk.

    Chunks that see the same lines divide them: a line that each of them asked for would take room of loads.
    """
    sharing = max(1, min(LINE // 4, source.block) // steps)
    each = -(-tile.columns // sharing)
    column = problem.strides[2] * source.column_stride
    turn = f.binary("and", number, f.number("i64", sharing - 1)) if sharing > 1 else f.number("i64", 0)
    first = f.at(later, f.mul(turn, each * column))
    for row in range(tile.rows):
        for place in range(each):
            f.prefetch(f.at(first, row * problem.strides[1] * source.row_stride + place * column))


def _origin(f: Function, problem: Convolution, source: Layout) -> Value:
    """Elements of the source from what an output sees by the first tap to what it sees by the first one needed."""
    row, column = (f.parameter(one) for one in TAPS[:2])
    return f.add(
        f.mul(row, problem.dilations[1] * source.row_stride),
        f.mul(column, problem.dilations[2] * source.column_stride),
    )
