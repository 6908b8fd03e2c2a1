"""Depthwise convolution: each channel by itself, a vector of channels at a time.

A tile is some columns of one row; over volumes the planes of the kernel are a loop around it. An input vector is loaded
once and serves all taps that see it. Rows that see the whole kernel are written out, with the weights in registers,
where they fit; all others run a loop over the kernel's rows. Where several outputs see the same input channel, a part
of a vector is loaded, and each of its lanes repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.size import is_free
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.convolution.places import operands_at, output_at, variables_at
from kernels.templates.convolution.problem import INPUT, OUTPUT, WEIGHTS, Convolution, of_any_sides
from kernels.templates.convolution.store import store_pixels
from kernels.templates.convolution.taps import Planes, planes_seen, taps_of_row
from kernels.templates.convolution.windows import (
    Columns,
    Rows,
    WindowAxis,
    column_kinds,
    columns_of_any_size,
    each_tile,
    each_vector,
    row_kinds,
    rows_of_any_size,
    side_by_side,
    stretches,
    vector_at,
    vectors_of,
)
from kernels.templates.cost import ROW, beside, nanoseconds
from kernels.templates.epilogue import leaves_of, parameters_of
from kernels.templates.grid import unravel
from kernels.templates.template import Template

_BLOCK_FLOPS = 4_000_000  # about 50 to 100 microseconds
_SHARED_FLOPS = 500_000  # of a block for several workers
_SHARED_BLOCKS = 16  # of an image, at the most


@dataclass(frozen=True, slots=True)
class Depthwise:
    """Sizes that decide the speed of a depthwise convolution."""

    rows: int  # of a tile whose rows see the whole kernel; other tiles have one
    columns: int
    row_stretch: int  # rows of a block
    vector_stretch: int  # vectors of channels of a block
    unrolled: bool  # whether rows that see the whole kernel are written out
    rows_outside: bool = False  # whether blocks of the same rows follow one another, rather than those of one vector

    def __str__(self) -> str:
        how, block = "unrolled" if self.unrolled else "loop", f"{self.row_stretch} rows x {self.vector_stretch} vectors"
        return f"depthwise {self.rows}x{self.columns} {how} block {block}{' by rows' if self.rows_outside else ''}"


def applies(problem: Convolution, target: Target) -> bool:
    """Whether each channel stands alone and channels lie side by side in input and output alike."""
    lanes, ones = target.lanes(), (1, 1, 1)
    orders = [(one.order, one.block if one.order == "NCHWc" else 0) for one in (problem.input, problem.output)]
    plane = is_plane(problem) or not of_any_sides(problem)
    alone = problem.input.channels == problem.output.channels == 1
    alone |= problem.sees_one_channel and lanes % problem.width == 0
    wide = problem.weights_dtype is DType.F32  # a few weights for each channel: they are not worth widening
    alike = orders[0] == orders[1] and side_by_side(problem.input, lanes)
    return wide and plane and alike and alone and problem.input_dilations == ones


def is_plane(problem: Convolution) -> bool:
    """Whether images and kernel have no depth."""
    return problem.kernel[0] == problem.input.size[0] == problem.output.size[0] == 1 and not problem.pads[0]


def candidates(problem: Convolution, target: Target) -> tuple[Depthwise, ...]:
    """Candidates, the likely best first; none where it does not apply."""
    if not applies(problem, target):
        return ()
    lanes, taps = target.lanes(), problem.kernel[1] * problem.kernel[2]
    height, width = problem.output.size[1:]
    vectors = vectors_of(problem.output, lanes)
    flops = 2 * taps * height * width * lanes
    vector_stretch = max(1, min(vectors, _BLOCK_FLOPS // flops))
    row_stretch = max(1, min(height, -(-_BLOCK_FLOPS * height // flops)))
    most = 14 if target.vector_registers >= 32 else 6
    found = []
    for rows in (1, 2, 4):
        size = -(-width // -(-width // max(1, most // rows)))
        unrolled = rows * size + taps + 3 <= target.vector_registers
        if unrolled and rows <= height:
            found.append(Depthwise(rows, size, -(-row_stretch // rows) * rows, vector_stretch, True))
    size = -(-width // -(-width // most))
    found.append(Depthwise(1, size, row_stretch, vector_stretch, False))
    return tuple(sorted(dict.fromkeys(found), key=lambda one: estimate(problem, one, target)))


def share(problem: Convolution, candidate: Depthwise, target: Target) -> Depthwise:
    """The candidate with smaller blocks, which follow the rows: a worker's share is a part of the image."""
    blocks = min(_SHARED_BLOCKS, problem.flops // _SHARED_FLOPS // problem.output.batch)
    rows, vectors = stretches(problem.output.size[1], vectors_of(problem.output, target.lanes()), blocks)
    rows = -(-rows // candidate.rows) * candidate.rows
    return replace(candidate, row_stretch=rows, vector_stretch=vectors, rows_outside=True) if blocks > 1 else candidate


def estimate(problem: Convolution, candidate: Depthwise, target: Target) -> float:
    """Nanoseconds of all images on one core: products, inputs that tiles load, outputs, calls.

    Where the rows of a window do not stay in the first cache beside those of the output, each tile reads its own again
    from the second one: tiles of several rows read fewer.
    """
    speed, lanes = target.core, target.lanes()
    height, width = problem.output.size[1:]
    tiles = -(-height // candidate.rows) * -(-width // candidate.columns) * problem.output.size[0]
    seen = (candidate.columns - 1) * problem.strides[2] + problem.reach[2]
    rows_seen = (candidate.rows - 1) * problem.strides[1] + problem.kernel[1]
    products = candidate.rows * candidate.columns * problem.kernel[1] * problem.kernel[2] / speed.products
    loads = seen * rows_seen * (1 if problem.width == 1 else 2) / speed.loads
    outputs = 2.0 * candidate.rows * candidate.columns + ROW * (candidate.rows - 1)
    each = max(products, loads) + 0.1 * min(products, loads)
    held = (problem.kernel[1] * problem.input.size[2] + width) * target.vector_bytes <= target.l1 // 2
    if not held:
        each = beside(each, seen * rows_seen * target.vector_bytes / speed.l2)
    each = each * problem.kernel[0] + outputs + (10.0 if candidate.unrolled else 30.0)
    return nanoseconds(tiles * each * vectors_of(problem.output, lanes) * problem.output.batch, target)


@dataclass(frozen=True, slots=True)
class DepthwisePacking:
    """Weights as [vector of channels][tap][lane]."""

    problem: Convolution
    lanes: int

    @property
    def elements(self) -> int:
        """Elements of all vectors."""
        return vectors_of(self.problem.output, self.lanes) * self.lanes * prod(self.problem.kernel)

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed weights."""
        taps = array.reshape(self.problem.output.channels, -1)
        whole = np.zeros((vectors_of(self.problem.output, self.lanes) * self.lanes, taps.shape[1]), array.dtype)
        whole[: len(taps)] = taps[:, ::-1] if self.problem.transposed else taps
        return whole.reshape(-1, self.lanes, taps.shape[1]).swapaxes(1, 2).reshape(-1)


def axes(problem: Convolution) -> tuple[WindowAxis, WindowAxis]:
    """Rows and columns."""
    made = [
        WindowAxis(
            problem.input.size[axis], problem.output.size[axis], problem.kernel[axis], problem.strides[axis],
            problem.dilations[axis], problem.pads[axis], problem.input.before[axis], problem.input.after[axis],
        )
        for axis in (1, 2)
    ]  # fmt: skip
    return made[0], made[1]


def build(problem: Convolution, candidate: Depthwise, target: Target, name: str = "depthwise") -> Kernel:
    """The kernel: operands "x", "weights", those of the epilogue, "y"."""
    return _DepthwiseBuilder(problem, candidate, target, name).kernel()


DEPTHWISE = Template("depthwise", Convolution, candidates, build, estimate)


class _DepthwiseBuilder(Builder[Convolution, Depthwise]):
    def __init__(self, problem: Convolution, candidate: Depthwise, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.kind = types.vector("float", self.lanes)
        self.packing = DepthwisePacking(problem, self.lanes)
        self.down, self.across = axes(problem)
        self.of_any_sides = of_any_sides(problem)
        self.rows = rows_of_any_size(self.down) if self.of_any_sides else row_kinds(self.down)
        size = candidate.columns
        self.columns = columns_of_any_size(self.across, size) if self.of_any_sides else column_kinds(self.across, size)
        self.vectors = vectors_of(problem.output, self.lanes)
        height = problem.output.size[1]
        self.is_plane = is_plane(problem)
        self.dims = (
            problem.output.batch * problem.output.size[0], -(-self.vectors // candidate.vector_stretch),
            (height + candidate.row_stretch - 1) // candidate.row_stretch,
        )  # fmt: skip

    def kernel(self) -> Kernel:
        problem, operands = self.problem, self.problem.operands(self.packing)
        return self.written(operands, prod(self.dims), flops=problem.flops, traffic=problem.traffic)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        problem, candidate = self.problem, self.candidate
        if candidate.rows_outside:
            batch, groups, parts = self.dims
            image, part, stretch = unravel(f, block, (batch, parts, groups))
        else:
            image, stretch, part = unravel(f, block, self.dims)
        first: Amount = 0
        last: Amount = problem.output.size[1]
        if is_free(self.dims[2]) or self.dims[2] > 1:
            first = f.mul(part, candidate.row_stretch)
            last = f.minimum(f.add(first, candidate.row_stretch), f.integer(problem.output.size[1]))
        begin = f.mul(stretch, candidate.vector_stretch)
        image, plane = unravel(f, image, (problem.output.batch, problem.output.size[0]))
        x = f.at(pointers[INPUT], f.mul(image, problem.input.image_stride))
        end = f.add(begin, candidate.vector_stretch)
        planes = Planes(plane, None, f.integer(0), 0) if self.is_plane else planes_seen(f, problem, plane, self.lanes)
        each_vector(
            f, problem.output, self.lanes, begin, end, partial(self._vector, f, pointers, planes, image, x, first, last)
        )

    def _vector(
        self, f: Function, pointers: dict[str, Value], planes: Planes, image: Value, x: Value, first: Amount,
        last: Amount, valid: int,
    ) -> Callable[[Value, tuple[Value, ...]], None]:  # fmt: skip
        problem = self.problem
        layout = problem.input
        corner = layout.position(0, 0, layout.before)
        taps = prod(problem.kernel)

        def vector(number: Value, _: tuple[Value, ...]) -> None:
            at = f.at(x, f.add(vector_at(f, layout, number, self.lanes // problem.width), corner))
            at = f.at(at, planes.elements)
            weights = f.at(f.at(pointers[WEIGHTS], f.mul(number, taps * self.lanes)), planes.weights)

            def tile(down: Rows, across: Columns, row: Value, column: Value, several: int) -> None:
                low, seen = taps_of_row(f, problem, down, row)
                start = f.add(f.mul(low, problem.dilations[1]), -problem.pads[1])
                from_row = f.mul(f.add(f.mul(row, problem.strides[1]), start), layout.row_stride)
                from_column = f.mul(
                    f.add(f.mul(column, problem.strides[2]), -problem.pads[2]), layout.column_stride
                )  # fmt: skip
                variables = variables_at(
                    f, problem, (image, planes.number, f.integer(0)), f.mul(number, self.lanes),
                    problem.output.channels, row, column,
                )  # fmt: skip
                y = output_at(f, problem, pointers[OUTPUT], variables)
                operands = operands_at(f, problem, pointers, variables)
                source = f.at(at, f.add(from_row, from_column))
                from_weights = f.at(weights, f.mul(low, problem.kernel[2] * self.lanes))
                whole = self.candidate.unrolled and not down.at_border and down.high - down.low == problem.kernel[1]
                count = (() if planes.seen is None else (planes.seen,)) + (() if whole else (seen,))
                if across.at_border:
                    left = f.add(f.mul(column, problem.strides[2]), -problem.pads[2])
                    count = (*count, left, f.sub(f.integer(problem.output.size[2]), column))
                f.call(self._function(across, valid, whole, several), source, from_weights, y, *count, *operands)

            each_tile(f, self.rows, self.columns, first, last, tile, self.candidate.rows, problem.kernel[1])

        return vector

    def _function(self, across: Columns, valid: int, whole: bool, several: int) -> str:
        """f(x, weights, y, [planes and] [rows of the kernel,] operands of the epilogue...): one tile."""
        kind = "border" if across.at_border else "inside" if self.of_any_sides else self.columns.index(across)
        name = f"{self.name}_{f'whole{several}' if whole else 'rows'}_{kind}_{valid}"
        if self.module.has(name):
            return name
        problem = self.problem
        f = Function(
            self.module,
            name,
            (
                Parameter("x", "ptr", "noalias nocapture readonly"),
                Parameter("weights", "ptr", "noalias nocapture readonly"),
                Parameter("y", "ptr", "nocapture"),
                *(() if self.is_plane else (Parameter("planes", "i64"),)),
                *(() if whole else (Parameter("rows", "i64"),)),
                *((Parameter("left", "i64"), Parameter("columns", "i64")) if across.at_border else ()),
                *parameters_of(problem.epilogue),
            ),
        )
        pixels = [(row, column) for row in range(several) for column in range(across.size)]

        def plane(number: Value, carried: tuple[Value, ...]) -> list[Value]:
            x = f.at(f.parameter("x"), f.mul(number, problem.dilations[0] * problem.input.plane_stride))
            weights = f.at(f.parameter("weights"), f.mul(number, problem.kernel[1] * problem.kernel[2] * self.lanes))
            if whole:
                sums = dict(zip(pixels, carried, strict=True))
                self._whole(f, across, valid, several, sums, x, weights)
                return [sums[one] for one in pixels]
            return list(f.loop(0, f.parameter("rows"), 1, self._kernel_row(f, across, valid, x, weights), carried))

        planes: Amount = 1 if self.is_plane else f.parameter("planes")
        made = f.loop(0, planes, 1, plane, [f.number(self.kind, 0)] * len(pixels))
        sums = dict(zip(pixels, made, strict=True))
        if across.at_border:
            for column in range(across.size):
                exists = f.compare("ult", f.integer(column), f.parameter("columns"))
                some = [one for one in pixels if one[1] == column]
                f.when(exists, partial(self._store, f, {one: sums[one] for one in some}, valid))
        else:
            self._store(f, sums, valid)
        f.finish()
        return name

    def _store(self, f: Function, sums: Mapping[tuple[int, int], Value], valid: int) -> None:
        leaves = leaves_of(f, self.problem.epilogue, self.problem.variables[5], self.lanes)
        store_pixels(f, self.problem, leaves, f.parameter("y"), tuple(sums), tuple(sums.values()), (valid,))

    def _whole(
        self, f: Function, across: Columns, valid: int, several: int, sums: dict[tuple[int, int], Value], start: Value,
        weights: Value,
    ) -> None:  # fmt: skip
        """Some rows of outputs that see the whole kernel: input rows from top to bottom, each for all that see it."""
        problem = self.problem
        taps = [self._weight(f, weights, tap) for tap in range(problem.kernel[1] * problem.kernel[2])]
        seen: dict[int, list[tuple[int, int]]] = {}
        for row in range(several):
            for tap in range(problem.kernel[1]):
                seen.setdefault(row * problem.strides[1] + tap * problem.dilations[1], []).append((row, tap))
        for place in sorted(seen):
            x = f.at(start, place * problem.input.row_stride)
            for value, column, tap in self._inputs(f, across, valid, x):
                for row, row_tap in seen[place]:
                    weight = taps[row_tap * problem.kernel[2] + tap]
                    sums[row, column] = f.fma(value, weight, sums[row, column])

    def _kernel_row(
        self, f: Function, across: Columns, valid: int, start: Value, first: Value
    ) -> Callable[[Value, tuple[Value, ...]], list[Value]]:
        """The body of a loop over the kernel's rows, for one row of outputs."""
        problem = self.problem

        def body(number: Value, carried: tuple[Value, ...]) -> list[Value]:
            x = f.at(start, f.mul(number, problem.dilations[1] * problem.input.row_stride))
            weights = f.at(first, f.mul(number, problem.kernel[2] * self.lanes))
            taps = [self._weight(f, weights, tap) for tap in range(problem.kernel[2])]
            sums = list(carried)
            for value, column, tap in self._inputs(f, across, valid, x):
                sums[column] = f.fma(value, taps[tap], sums[column])
            return sums

        return body

    def _weight(self, f: Function, weights: Value, tap: int) -> Value:
        return f.load(self.kind, f.at(weights, tap * self.lanes))

    def _inputs(self, f: Function, across: Columns, valid: int, x: Value) -> Iterator[tuple[Value, int, int]]:
        """The inputs of one row from left to right, each with the columns and taps that see it."""
        problem, layout = self.problem, self.problem.input
        width = problem.width
        lanes = self.lanes // width
        kind = types.vector("float", lanes) if lanes > 1 else "float"
        uses: dict[int, list[tuple[int, int]]] = {}
        for column, (low, high) in enumerate(across.taps):
            for tap in range(low, high):
                place = column * problem.strides[2] + tap * problem.dilations[2]
                uses.setdefault(place, []).append((column, tap))
        masked = layout.order == "NHWC" and valid < self.lanes
        zeros = self.module.constant(f"{self.name}_zeros", "float", ["0.0"] * self.lanes) if across.at_border else ""
        for place in sorted(uses):
            address = f.at(x, place * layout.column_stride)
            if across.at_border:
                end = f.integer(layout.size[2])
                is_stored = f.compare("ult", f.add(f.parameter("left"), place), end)
                address = f.select(is_stored, address, Value((zeros,), "ptr"))
            if masked and lanes > 1:
                value = f.masked_load(kind, address, f.first_lanes(valid // width, lanes))
            else:
                value = f.load(kind, address)
            if lanes == 1:
                value = f.splat(value, self.lanes)
            elif width > 1:
                value = f.shuffle(value, value, [lane // width for lane in range(self.lanes)])
            for column, tap in uses[place]:
                yield value, column, tap
