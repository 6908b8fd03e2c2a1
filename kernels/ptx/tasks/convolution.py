"""Convolutions as products of weights and pixels in tiles; depthwise ones by a thread for each pixel.

The depth of the product is [tap][channel of the group]: where slices hold whole numbers of channels of one tap, what
the tap decides is worked out once a slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm.conversion import memory_type, widened
from kernels.llvm.function import Value
from kernels.ptx.tasks.leaves import ThreadElements, axes_of
from kernels.ptx.tasks.pixels import PixelSource, WindowSource, checked_axes, fill_table, table_bytes
from kernels.ptx.tasks.product import store_elements
from kernels.ptx.tasks.threads import MOST_ELEMENTS, Block, NoTask, each_of, span, write_task
from kernels.ptx.tasks.tile import TaskTile, TiledProduct, chosen
from kernels.ptx.tasks.tile_source import StridedSource
from kernels.ptx.tasks.tile_writer import prepare_tile, write_tile
from kernels.target import Target
from kernels.templates.convolution.problem import OUTPUT, WEIGHTS, Convolution
from kernels.templates.convolution.steps import dense_groups
from kernels.tensor.expression import Variable

_WRITTEN_TAPS = 25  # of a depthwise window that are read in one turn: more would not stay in registers


@dataclass(frozen=True, slots=True)
class DepthMajor:
    """Weights as [group][tap][channel of the group][output channel of the group, and zeros behind the last]."""

    problem: Convolution
    vector: int = 1

    @property
    def room(self) -> int:
        """Output channels and zeros of a group: whole vectors."""
        return -(-self.problem.width // self.vector) * self.vector

    @property
    def elements(self) -> int:
        """ThreadElements of the packed form."""
        problem = self.problem
        return problem.groups * self.room * problem.depth * prod(problem.kernel)

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed weights."""
        taps = prod(self.problem.kernel)
        given = dense_groups(self.problem, array).reshape(
            self.problem.groups, self.problem.width, self.problem.depth, taps
        )
        filled = np.zeros((self.problem.groups, taps, self.problem.depth, self.room), given.dtype)
        filled[..., : self.problem.width] = given.transpose(0, 3, 2, 1)
        return filled.reshape(-1)


def convolution(problem: Convolution, target: Target, name: str, tile: TaskTile | None = None) -> Kernel:
    """The task: operands "x", "weights", those of the epilogue, "y"; with the likely best tile where none is given."""
    pixels = problem.output.batch * prod(problem.output.size)
    if max(pixels * problem.output.channels, problem.input.elements) > MOST_ELEMENTS:
        raise NoTask("the images have more elements than 32 bits count.")
    if problem.depth == 1 and problem.width == 1:
        return _depthwise(problem, target, name)
    vector = 4 if problem.weights_dtype is DType.F32 else 1
    packing = DepthMajor(problem, vector)
    operands = problem.operands(packing)
    depth = problem.depth * prod(problem.kernel)
    tile = tile or chosen(tiled(problem), target, lambda one: table_bytes(problem, one.slice))
    counts = (problem.groups, -(-problem.width // tile.rows), -(-pixels // tile.columns))

    def weights_of(block: Block, group: Value) -> StridedSource:
        start = block.f.mul(group, depth * packing.room)
        packed = block.at(block.pointers[WEIGHTS], start, memory_type(problem.weights_dtype))
        return StridedSource(packed, 1, packing.room, packing.room, depth, problem.weights_dtype, vector)

    def prepare(block: Block) -> None:
        group, down, _ = block.split(block.number, counts)
        fill_table(block, problem, group, tile.shared, tile.slice)
        prepare_tile(block, tile, depth, weights_of(block, group), "left", block.f.mul(down, tile.rows))

    def body(block: Block) -> None:
        f = block.f
        group, down, over = block.split(block.number, counts)
        images = PixelSource(problem, group, pixels, tile.shared)
        block.barrier()

        def store(rows: Value, columns: Value, sums: Value) -> None:
            output = PixelOutput(block, problem, group)
            store_elements(block, problem.epilogue, output, rows, columns, sums, (problem.width, pixels))

        corner = f.mul(down, tile.rows), f.mul(over, tile.columns)
        write_tile(block, tile, depth, weights_of(block, group), images, corner, store, "left")

    shared = tile.shared + table_bytes(problem, tile.slice)
    return write_task(
        target, name, operands, prod(counts), body, shared=shared, flops=problem.flops, traffic=problem.traffic,
        candidate=str(tile), prepare=prepare, resident=tile.resident,
    )  # fmt: skip


def tiled(problem: Convolution) -> TiledProduct:
    """The product of weights and pixels as tiles see it."""
    pixels, taps = problem.output.batch * prod(problem.output.size), prod(problem.kernel)
    vector = 4 if problem.weights_dtype is DType.F32 else 1
    channels, checks = problem.depth if table_bytes(problem, 1) else 0, len(checked_axes(problem))
    return TiledProduct(problem.width, pixels, problem.depth * taps, problem.groups, vector, 1, channels, checks)


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
        window = WindowSource(block, problem, pixel, channel)
        weights = f.mul(channel, prod(problem.kernel))

        def add(tap: Value, held: tuple[Value, ...]) -> tuple[Value, ...]:
            x = window.element(tap)
            weight = f.load(kind, block.at(block.pointers[WEIGHTS], f.add(weights, tap), kind))
            return (f.fma(x, widened(f, weight, problem.weights_dtype), held[0]),)

        taps = prod(problem.kernel)
        turn = taps if taps <= _WRITTEN_TAPS else min(problem.kernel[-1], _WRITTEN_TAPS)

        def some(first: Value, held: tuple[Value, ...]) -> tuple[Value, ...]:
            for tap in range(turn):
                held = add(f.add(first, tap), held)
            return held

        held = block.strided(block.word(0), taps // turn * turn, turn, some, (f.number("float", 0.0),))
        for tap in range(taps // turn * turn, taps):
            held = add(block.word(tap), held)
        (total,) = held
        at = axes_of(PixelOutput(block, problem, block.word(0)).at(channel, pixel))

        def put() -> None:
            leaves = ThreadElements(block, at, {"accumulated": total})
            leaves.store(leaves.values((problem.epilogue.value,))[0], problem.like_output(OUTPUT))

        f.when(there, put)

    return write_task(
        target, name, operands, -(-elements // span(each)), body, flops=problem.flops, traffic=problem.traffic,
        candidate=f"{each} elements of a thread",
    )  # fmt: skip
