"""The register tile of integer sums: pixels by vectors of output channels, accumulated over all words of the depth.

A step loads one vector of weights per vector of channels, and broadcasts one word of the input per pixel from a
constant distance. Sums begin at what the input's zero point adds; where the weights' zero points are not zero, the
words of the input are summed up too, by one more product per pixel, with ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value, joined
from kernels.llvm.module import Module
from kernels.templates.epilogue import leaves_of, parameters_of
from kernels.templates.quantized.arithmetic import PER_WORD, add_products, factors_of_a, factors_of_b, shift_of_a
from kernels.templates.quantized.packing import TilePacking, run_elements, runs
from kernels.templates.quantized.store import along, store_pixels

UNROLL = 4  # words of the depth per turn of the loop


@dataclass(frozen=True, slots=True)
class Source:
    """Distances in the input as a tile reads it, in bytes."""

    plane: int
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class ByteTile:
    """`rows` x `columns` pixels of the output by as many vectors as `valid` has numbers."""

    rows: int
    columns: int
    valid: tuple[int, ...]  # lanes of each vector that are channels

    @property
    def pixels(self) -> tuple[tuple[int, int], ...]:
        """Row and column of each pixel."""
        return tuple((row, column) for row in range(self.rows) for column in range(self.columns))

    @property
    def vectors(self) -> int:
        """Vectors of channels."""
        return len(self.valid)


def write_tile(module: Module, packing: TilePacking, source: Source, tile: ByteTile, *, name: str) -> str:
    """Write f(x, weights, y, zero, operands of the epilogue...) and return its name; pointers are at the tile."""
    if module.has(name):
        return name
    geometry = packing.problem.geometry
    f = Function(
        module,
        name,
        (
            Parameter("x", "ptr", "noalias nocapture readonly"),
            Parameter("weights", "ptr", "noalias nocapture readonly"),
            Parameter("y", "ptr", "nocapture"),
            Parameter("zero", "i32"),
            *parameters_of(geometry.epilogue),
        ),
    )
    writer = _ByteTileWriter(f, packing, source, tile)
    sums = writer.sums()
    leaves = leaves_of(f, geometry.epilogue, along(geometry), module.target.lanes())
    store_pixels(f, geometry, leaves, f.parameter("y"), tile.pixels, sums, tile.valid)
    f.finish()
    return name


class _ByteTileWriter:
    def __init__(self, f: Function, packing: TilePacking, source: Source, tile: ByteTile) -> None:
        self._f, self._packing, self._tile = f, packing, tile
        self._lanes = f.module.target.lanes()
        self._kind = types.vector("i32", self._lanes)
        geometry = packing.problem.geometry
        self._steps = tuple(
            dilation * stride
            for dilation, stride in zip(geometry.dilations, (source.plane, source.row, source.column), strict=True)
        )
        self._pixels = [
            row * geometry.strides[1] * source.row + column * geometry.strides[2] * source.column
            for row, column in tile.pixels
        ]
        self._width = tile.vectors * self._lanes  # words of all vectors

    def sums(self) -> list[Value]:
        """One value per pixel, a part per vector of channels: all of the depth, zero points taken away."""
        f, pixels = self._f, len(self._pixels)
        carried = [self._initial()] * pixels
        if self._packing.has_zeros:
            carried += [f.number(self._kind, 0)] * pixels
        found = self._over_runs(carried)
        if not self._packing.has_zeros:
            return found
        zeros = self._head(1)
        return [f.sub(one, f.mul(zeros, of_a)) for one, of_a in zip(found[:pixels], found[pixels:], strict=True)]

    def _head(self, number: int) -> Value:
        f = self._f
        first = f.at(f.parameter("weights"), number * self._width, "i32")
        parts = [f.load(self._kind, f.at(first, v * self._lanes, "i32")) for v in range(self._tile.vectors)]
        return joined(parts)

    def _initial(self) -> Value:
        f = self._f
        if self._packing.problem.x_zero == -shift_of_a(self._packing.arithmetic, self._packing.problem.x_dtype):
            return joined([f.number(self._kind, 0)] * self._tile.vectors)
        return f.mul(self._head(0), f.splat(f.parameter("zero"), self._lanes))

    def _over_runs(self, carried: list[Value]) -> list[Value]:
        """Loops over planes, rows and columns of the kernel, as far as runs do not hold them."""
        f, packing = self._f, self._packing
        planes, rows, columns = runs(packing.problem)
        weights = f.at(f.parameter("weights"), packing.heads * self._width, "i32")
        words = packing.run_words * self._width

        def plane(p: Value, of_plane: tuple[Value, ...]) -> Sequence[Value]:
            def row(r: Value, of_row: tuple[Value, ...]) -> Sequence[Value]:
                def column(c: Value, sums: tuple[Value, ...]) -> Sequence[Value]:
                    number = f.add(f.mul(f.add(f.mul(p, rows), r), columns), c)
                    place = f.add(f.add(f.mul(p, self._steps[0]), f.mul(r, self._steps[1])), f.mul(c, self._steps[2]))
                    x = f.at(f.parameter("x"), place, "i8")
                    return self._run(x, f.at(weights, f.mul(number, words), "i32"), list(sums))

                return f.loop(0, columns, 1, column, of_row)

            return f.loop(0, rows, 1, row, of_plane)

        return list(f.loop(0, planes, 1, plane, carried))

    def _run(self, x: Value, weights: Value, sums: list[Value]) -> list[Value]:
        """The words of one run: whole turns of UNROLL, then what is left."""
        f, packing = self._f, self._packing
        whole, rest = divmod(run_elements(packing.problem), PER_WORD[packing.arithmetic])
        turns = whole // UNROLL * UNROLL

        def turn(word: Value, carried: tuple[Value, ...]) -> Sequence[Value]:
            x_at, weights_at = f.at(x, word, "i32"), f.at(weights, f.mul(word, self._width), "i32")
            found = list(carried)
            for step in range(UNROLL):
                found = self._step(x_at, weights_at, step, found)
            return found

        sums = list(f.loop(0, turns, UNROLL, turn, sums))
        for word in range(turns, whole):
            sums = self._step(x, weights, word, sums)
        return self._step(x, weights, whole, sums, rest) if rest else sums

    def _step(self, x: Value, weights: Value, word: int, sums: list[Value], present: int | None = None) -> list[Value]:
        f, arithmetic = self._f, self._packing.arithmetic
        vectors = [
            f.load(self._kind, f.at(weights, word * self._width + vector * self._lanes, "i32"))
            for vector in range(self._tile.vectors)
        ]
        right = factors_of_b(f, arithmetic, joined(vectors))
        count = PER_WORD[arithmetic] if present is None else present
        bits = 32 // PER_WORD[arithmetic]
        ones = factors_of_b(f, arithmetic, f.number(self._kind, sum(1 << bits * place for place in range(count))))
        pixels = len(self._pixels)
        found = list(sums)
        for number, distance in enumerate(self._pixels):
            address = f.at(f.at(x, distance, "i8"), word, "i32")
            left = factors_of_a(f, arithmetic, f.load("i32", address, align=1), self._lanes)
            found[number] = add_products(f, arithmetic, left, right, found[number])
            if self._packing.has_zeros:
                found[pixels + number] = add_products(f, arithmetic, left, ones, found[pixels + number])
        return found
