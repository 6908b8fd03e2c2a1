"""Convolutions as products of weights and pixels in tiles; depthwise ones by a thread for each pixel.

The depth of the product is [tap][channel of the group]: where slices hold whole numbers of channels of one tap, what
the tap decides is worked out once a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm.conversion import memory_type, widened
from kernels.llvm.function import Value
from kernels.ptx.tasks.leaves import ThreadElements, axes_of
from kernels.ptx.tasks.product import store_elements
from kernels.ptx.tasks.threads import MOST_ELEMENTS, Block, NoTask, each_of, span, write_task
from kernels.ptx.tasks.tile import PLAIN, VECTORS, WINDOWS, TaskTile, TiledProduct, chosen, write_tile
from kernels.target import Target
from kernels.templates.convolution.problem import INPUT, OUTPUT, WEIGHTS, Convolution
from kernels.templates.convolution.steps import dense_groups
from kernels.tensor.expression import Variable

_WRITTEN_TAPS = 49  # of a depthwise window whose taps are written out


@dataclass(frozen=True, slots=True)
class DepthMajor:
    """Weights as [group][tap][channel of the group][output channel of the group]."""

    problem: Convolution

    @property
    def elements(self) -> int:
        """ThreadElements of the packed form."""
        problem = self.problem
        return problem.output.channels * problem.depth * prod(problem.kernel)

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed weights."""
        taps = prod(self.problem.kernel)
        given = dense_groups(self.problem, array).reshape(
            self.problem.groups, self.problem.width, self.problem.depth, taps
        )
        return np.ascontiguousarray(given.transpose(0, 3, 2, 1)).reshape(-1)


def convolution(problem: Convolution, target: Target, name: str, tile: TaskTile | None = None) -> Kernel:
    """The task: operands "x", "weights", those of the epilogue, "y"; with the likely best tile where none is given."""
    pixels = problem.output.batch * prod(problem.output.size)
    if max(pixels * problem.output.channels, problem.input.elements) > MOST_ELEMENTS:
        raise NoTask("the images have more elements than 32 bits count.")
    packing = DepthMajor(problem)
    operands = problem.operands(packing)
    if problem.depth == 1 and problem.width == 1 and prod(problem.kernel) <= _WRITTEN_TAPS:
        return _depthwise(problem, target, name)
    depth = problem.depth * prod(problem.kernel)
    tile = tile or chosen(tiled(problem), target)
    counts = (problem.groups, -(-problem.width // tile.rows), -(-pixels // tile.columns))

    def body(block: Block) -> None:
        f = block.f
        group, down, over = block.split(block.number, counts)
        weights = _Weights(problem, group, depth % tile.slice == 0)
        images = _Pixels(problem, group, pixels, tile.slice)

        def store(rows: Value, columns: Value, sums: Value) -> None:
            output = PixelOutput(block, problem, group)
            store_elements(block, problem.epilogue, output, rows, columns, sums, (problem.width, pixels))

        write_tile(block, tile, depth, weights, images, (f.mul(down, tile.rows), f.mul(over, tile.columns)), store)

    return write_task(
        target, name, operands, prod(counts), body, shared=tile.shared, flops=problem.flops, traffic=problem.traffic,
        candidate=str(tile),
    )  # fmt: skip


def tiled(problem: Convolution) -> TiledProduct:
    """The product of weights and pixels as tiles see it."""
    pixels, taps = problem.output.batch * prod(problem.output.size), prod(problem.kernel)
    simple = taps == 1 or problem.depth % 32 == 0
    vectors = problem.width % 4 == 0 and problem.weights_dtype is DType.F32
    return TiledProduct(
        problem.width, pixels, problem.depth * taps, problem.groups, VECTORS if vectors else PLAIN,
        PLAIN if simple else WINDOWS,
    )  # fmt: skip


class PixelOutput:
    """The epilogue's variables at an output channel of a group, and a pixel of all images."""

    def __init__(self, block: Block, problem: Convolution, group: Value) -> None:
        self._block, self._problem, self._group = block, problem, group
        self.load = problem.like_output(OUTPUT)

    def at(self, row: Value, column: Value) -> dict[Variable, Value]:
        """The variables; row and column may be of several parts."""
        block, problem, f = self._block, self._problem, self._block.f
        channel = f.add(f.mul(self._group, problem.width), row)
        places = block.split(column, (problem.output.batch, *problem.output.size))
        lanes = block.split(channel, (problem.output.blocks, problem.output.block))
        image, plane, line, pixel = places
        return dict(zip(problem.variables, (image, lanes[0], plane, line, pixel, lanes[1]), strict=True))


@dataclass(frozen=True, slots=True)
class _Weights:
    """The packed weights of a group: output channels side by side."""

    problem: Convolution
    group: Value
    exact: bool
    along: Literal["outer"] = "outer"

    def prepare(self, block: Block, outer: Value) -> Value:
        """The output channel, or the last one, and where the group begins."""
        f, problem = block.f, self.problem
        begin = f.mul(self.group, problem.depth * prod(problem.kernel) * problem.width)
        return f.add(begin, block.least(outer, problem.width - self.vector))

    @property
    def vector(self) -> int:
        """Four output channels at once, where those of a group lie aligned."""
        return 4 if self.problem.width % 4 == 0 and self.problem.weights_dtype is DType.F32 else 1

    @property
    def dtype(self) -> DType:
        """The weights'."""
        return self.problem.weights_dtype

    def slice(self, block: Block, first: Value) -> None:
        """Nothing."""

    def address(self, block: Block, prepared: Any, part: Any, first: Value, place: Value) -> tuple[Value, Value | None]:
        """Where the weight lies, and whether the depth has it."""
        f, problem = block.f, self.problem
        at = f.add(first, place)
        inside = None if self.exact else block.below(at, problem.depth * prod(problem.kernel))
        where = f.add(prepared, f.mul(at, problem.width))
        return block.at(block.pointers[WEIGHTS], where, memory_type(problem.weights_dtype)), inside


class _Pixels:
    """The images as a matrix of [tap][channel] and pixel: 0 where a window reaches over the border."""

    def __init__(self, problem: Convolution, group: Value, pixels: int, slice_: int) -> None:
        self.problem, self._group, self._pixels = problem, group, pixels
        self.vector, self.dtype = 1, DType.F32
        taps = prod(problem.kernel)
        self._by_taps = problem.depth % slice_ == 0  # a slice has channels of one tap
        self._exact = problem.depth * taps % slice_ == 0
        last = problem.input.column_stride == 1 or problem.input.block == 1
        self.along: Literal["depth", "outer"] = "outer" if last else "depth"
        # Whether no window reaches over a border that is not stored as zeros.
        self._whole = problem.has_halo or (
            problem.input_dilations == (1, 1, 1)
            and all(
                pad == 0 and (out - 1) * stride + reach <= size
                for pad, out, stride, reach, size in zip(
                    problem.pads, problem.output.size, problem.strides, problem.reach, problem.input.size, strict=True
                )
            )
        )

    def prepare(self, block: Block, outer: Value) -> tuple[Value, list[Value]]:
        """Where the image begins, and the first place under the window along each dim."""
        f, problem = block.f, self.problem
        near = block.least(outer, self._pixels - 1)
        image, *places = block.split(near, (problem.output.batch, *problem.output.size))
        starts = [
            f.add(f.mul(place, stride), -pad)
            for place, stride, pad in zip(places, problem.strides, problem.pads, strict=True)
        ]
        return f.add(f.mul(image, problem.input.image_stride), problem.input.origin), starts

    def slice(self, block: Block, first: Value) -> tuple[Value, list[Value]] | None:
        """The tap of a slice, and its first channel."""
        if not self._by_taps:
            return None
        tap, channel = block.split(first, (prod(self.problem.kernel), self.problem.depth))
        return channel, list(block.split(tap, self.problem.kernel))

    def address(self, block: Block, prepared: Any, part: Any, first: Value, place: Value) -> tuple[Value, Value | None]:
        """Where the element of the input under a tap lies, and whether it is inside."""
        f, problem = block.f, self.problem
        base, starts = prepared
        inside: Value | None = None
        if part is not None:
            channel, taps = f.add(part[0], place), part[1]
        else:
            at = f.add(first, place)
            if not self._exact:
                inside = block.below(at, problem.depth * prod(problem.kernel))
            tap, channel = block.word(0), at
            if prod(problem.kernel) > 1:
                tap, channel = block.split(at, (prod(problem.kernel), problem.depth))
            taps = list(block.split(tap, problem.kernel))
        if problem.groups > 1:
            channel = f.add(f.mul(self._group, problem.depth), channel)
        at, there = window_at(block, problem, base, starts, taps, check=not self._whole)
        if there is not None:
            inside = there if inside is None else f.binary("and", inside, there)
        return block.at(block.pointers[INPUT], f.add(at, channel_at(block, problem, channel))), inside

    def element(self, block: Block, prepared: Any, tap: Value) -> Value:
        """The element of the input of a group of one channel under a tap: 0 outside."""
        f = block.f
        address, inside = self.address(block, prepared, None, tap, block.word(0))
        if inside is None:
            return f.load("float", address)
        safe = f.select(inside, address, block.pointers[INPUT])
        return f.select(inside, f.load("float", safe), f.number("float", 0.0))


def channel_at(block: Block, problem: Convolution, channel: Value) -> Value:
    """How far a channel of the input lies from the first one."""
    layout, f = problem.input, block.f
    if layout.block == 1:
        return f.mul(channel, layout.block_stride)
    if layout.blocks == 1:
        return channel
    outer, lane = block.split(channel, (layout.blocks, layout.block))
    return f.add(f.mul(outer, layout.block_stride), lane)


def window_at(
    block: Block, problem: Convolution, base: Value, starts: Sequence[Value], taps: Sequence[Value], *, check: bool
) -> tuple[Value, Value | None]:
    """Where a tap of a window lies in the input, and whether that is inside; None: it always is."""
    f, layout = block.f, problem.input
    inside: Value | None = None
    strides = (layout.plane_stride, layout.row_stride, layout.column_stride)
    for axis, (start, tap, stride) in enumerate(zip(starts, taps, strides, strict=True)):
        place = f.add(start, f.mul(tap, problem.dilations[axis]))
        wide = problem.input_dilations[axis]
        tests = []
        if check and wide > 1:
            tests.append(block.below(place, problem.spread[axis]))
            apart = f.binary("udiv", place, block.word(wide))
            tests.append(f.compare("eq", f.mul(apart, wide), place))
            place = apart
        elif check and (problem.kernel[axis] > 1 or problem.pads[axis] or problem.output.size[axis] > 1):
            tests.append(block.below(place, layout.size[axis]))
        for one in tests:
            inside = one if inside is None else f.binary("and", inside, one)
        base = f.add(base, f.mul(place, stride))
    return base, inside


def _depthwise(problem: Convolution, target: Target, name: str) -> Kernel:
    """Each thread has output elements: neighbours those that lie side by side, pixels or channels."""
    operands = problem.operands(DepthMajor(problem))
    out = problem.output
    by_channels = out.block > 1
    pixels = out.batch * prod(out.size)
    elements = pixels * out.channels
    kind = memory_type(problem.weights_dtype)

    each = each_of(elements, target)

    def body(block: Block) -> None:
        block.turns(each, lambda number: element(block, number))

    def element(block: Block, number: Value) -> None:
        f = block.f
        there, near = block.below(number, elements), block.least(number, elements - 1)
        if by_channels:
            pixel, channel = block.split(near, (pixels, out.channels))
        else:
            image, channel, inner = block.split(near, (out.batch, out.channels, prod(out.size)))
            pixel = f.add(f.mul(image, prod(out.size)), inner)
        images = _Pixels(problem, channel, pixels, 1)
        prepared = images.prepare(block, pixel)
        total = f.number("float", 0.0)
        weights = f.mul(channel, prod(problem.kernel))
        for tap in range(prod(problem.kernel)):
            x = images.element(block, prepared, block.word(tap))
            weight = f.load(kind, block.at(block.pointers[WEIGHTS], f.add(weights, tap), kind))
            total = f.fma(x, widened(f, weight, problem.weights_dtype), total)
        at = axes_of(PixelOutput(block, problem, block.word(0)).at(channel, pixel))

        def put() -> None:
            leaves = ThreadElements(block, at, {"accumulated": total})
            leaves.store(leaves.values((problem.epilogue.value,))[0], problem.like_output(OUTPUT))

        f.when(there, put)

    return write_task(
        target, name, operands, -(-elements // span(each)), body, flops=problem.flops, traffic=problem.traffic,
        candidate=f"{each} elements of a thread",
    )  # fmt: skip
