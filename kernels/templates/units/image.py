"""Convolutions on matrix units: an implicit product of positions by channels, on numbers rounded to bfloat16.

A block rounds the window of its rows into scratch (`window`), where the tiles of A are 16 positions by 32 channels at a
place of the kernel. Panels of 32 output channels pass over all positions, pairs of tiles at a time; the sums of a panel
wait in scratch, from where the direct convolution's epilogue takes those that are outputs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm.function import Function, Parameter, Value
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.convolution.places import operands_at, output_at, variables_at
from kernels.templates.convolution.planar import write_planar
from kernels.templates.convolution.problem import INPUT, OUTPUT, WEIGHTS, Convolution
from kernels.templates.convolution.steps import dense_groups, split_groups, valid_lanes
from kernels.templates.convolution.tile import PixelTile, write_tile
from kernels.templates.grid import Group, balanced, each_piece, pieces, start_of, stretch_of, unravel
from kernels.templates.packing import PanelPacking
from kernels.templates.template import Template
from kernels.templates.units.image_choice import (
    UnitImage,
    candidates,
    dense,
    estimate,
    panels_of,
    repeats,
    share,
    sums_bytes,
)
from kernels.templates.units.rounding import PAIR, Rounded
from kernels.templates.units.window import Window, write_window
from kernels.units.instructions import LANES, ROW_BYTES, ROWS, TILE_BYTES, Depth, product
from kernels.units.write import write

COLUMNS = 8  # pixels of a row whose sums one call of the epilogue's function takes
PAIR_BYTES = 2 * ROWS * ROW_BYTES  # of a pair of tiles of positions


def build(problem: Convolution, candidate: UnitImage, target: Target, name: str = "convolution") -> Kernel:
    """The kernel: operands "x", "weights", those of the epilogue, "y"."""
    return _UnitImageBuilder(problem, candidate, target, name).kernel()


def family(candidate: UnitImage) -> tuple[str, Hashable]:
    """All are of one family."""
    return "units", candidate.row_stretch


UNIT_CONVOLUTION = Template(
    "convolution", Convolution, candidates, build, estimate, share, repeats, family, variant="units"
)


@dataclass(frozen=True, slots=True)
class ImagePacking:
    """Weights of each dense group as panels, whose depth is blocks of 32 channels, in each the places of the kernel."""

    problem: Convolution

    @property
    def panels(self) -> PanelPacking:
        """The panels of one dense group."""
        problem, groups = self.problem, dense(self.problem)
        blocks = -(-problem.depth * groups.together // PAIR)
        depth = blocks * problem.kernel[1] * problem.kernel[2] * PAIR
        return PanelPacking(depth, problem.width * groups.together, LANES, panels_of(problem), 2)

    @property
    def elements(self) -> int:
        """Elements of all groups."""
        return dense(self.problem).count * self.panels.elements

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed weights."""
        panels, parts = self.panels, []
        for group in dense_groups(self.problem, array, dense(self.problem)):  # [width, depth, 1, rows, columns]
            width, depth, _, rows, columns = group.shape
            blocks = -(-depth // PAIR)
            whole = np.zeros((width, blocks * PAIR, rows * columns), array.dtype)
            whole[:, :depth] = group.reshape(width, depth, rows * columns)
            matrix = whole.reshape(width, blocks, PAIR, rows * columns).transpose(1, 3, 2, 0)
            parts.append(panels.pack(matrix.reshape(-1, width)))
        return np.concatenate(parts)


class _UnitImageBuilder(Builder[Convolution, UnitImage]):
    def __init__(self, problem: Convolution, candidate: UnitImage, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.dense = dense(problem)
        self.window = Window(problem, candidate.row_stretch, problem.depth * self.dense.together)
        self.rows = balanced(problem.output.size[1], candidate.row_stretch)
        self.row_blocks = pieces(self.rows)
        self.width = problem.width * self.dense.together
        self.channels = split_groups(panels_of(problem), self.width, LANES)
        self.channel_blocks = -(-pieces(self.channels) // candidate.panel_stretch)
        self.packing = ImagePacking(problem)
        self.steps = self.window.blocks * len(self.window.places)

    def kernel(self) -> Kernel:
        problem = self.problem
        blocks = problem.output.batch * self.dense.count * self.row_blocks * self.channel_blocks
        return self.written(
            problem.operands(Rounded(self.packing), DType.BF16), blocks,
            scratch_bytes=self.window.bytes + sums_bytes(self.window), flops=problem.flops, traffic=problem.traffic,
        )  # fmt: skip

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        problem, source = self.problem, self.problem.input
        dims = (problem.output.batch, self.dense.count, self.row_blocks, self.channel_blocks)
        image, group, row_block, channel_block = unravel(f, block, dims)
        channels = stretch_of(f, channel_block, self.candidate.panel_stretch, pieces(self.channels))
        depth = self.window.channels
        apart = depth if source.order == "NHWC" else depth // source.block * source.block_stride
        x = f.at(pointers[INPUT], f.add(f.mul(image, source.image_stride), source.position(0, 0, source.before)))
        x = f.at(x, f.mul(group, apart))
        first = start_of(f, self.rows, row_block)
        count = f.sub(start_of(f, self.rows, f.add(row_block, 1)), first)
        copy = f"{self.name}_window"
        write_window(self.module, self.window, name=copy)
        f.call(copy, x, scratch, first)
        sums = f.at(scratch, self.window.bytes, "i8")
        size = self.packing.panels.elements * DType.BF16.bytes
        weights = f.at(pointers[WEIGHTS], f.mul(group, size), "i8")
        positions = f.add(f.mul(f.sub(count, 1), self.window.pitch), problem.output.size[2])
        pairs = f.binary("udiv", f.add(positions, 2 * ROWS - 1), f.integer(2 * ROWS))

        def panel(wide: Group, vector: Value) -> None:
            b = f.at(weights, f.mul(vector, self.steps * TILE_BYTES), "i8")
            tile = self._tile(wide)
            following = f.at(b, self.steps * wide.size * TILE_BYTES, "i8")

            def pair(number: Value, _: tuple[Value, ...]) -> None:
                a = f.at(scratch, f.mul(number, PAIR_BYTES), "i8")
                here = f.at(sums, f.mul(number, wide.size * PAIR_BYTES), "i8")
                lines = f.mul(number, self.steps * self._ahead() * ROW_BYTES)
                f.call(tile, a, b, here, f.at(following, lines, "i8"))

            f.loop(0, pairs, 1, pair)

            def row(number: Value, _: tuple[Value, ...]) -> None:
                at = f.at(sums, f.mul(number, self.window.pitch * wide.size * ROW_BYTES), "i8")
                self._finish(f, (image, group), wide, vector, f.add(first, number), at, pointers)

            f.loop(0, count, 1, row)

        each_piece(f, self.channels, *channels, panel)

    def _ahead(self) -> int:
        """Lines of the next panel that a pair of tiles asks for at each place of the kernel."""
        pairs = -(-self.window.positions(self.window.rows) // (2 * ROWS))
        near = self.packing.elements * DType.BF16.bytes <= self.target.l1
        return 0 if near else -(-2 * ROWS // pairs)

    def _tile(self, wide: Group) -> str:
        """The function of a pair of tiles of positions by a panel."""
        name = f"{self.name}_units_{wide.size}"
        if not self.module.has(name):
            given = ("a", "b", "sums", "next")
            f = Function(self.module, name, tuple(Parameter(one) for one in given))
            window = self.window
            program = product(
                "bf16", 2, wide.size, (Depth(window.blocks, window.block_bytes),), a_stride=ROW_BYTES,
                a_apart=TILE_BYTES, places=window.places, ahead=self._ahead(),
            )  # fmt: skip
            write(f, program, {one: f.parameter(one) for one in given})
            f.finish()
        return name

    def _finish(
        self, f: Function, at: tuple[Value, Value], wide: Group, vector: Value, row: Value, sums: Value,
        pointers: dict[str, Value],
    ) -> None:  # fmt: skip
        """Apply the epilogue to the sums of a row of outputs, and store them."""
        problem = self.problem
        valid = valid_lanes(wide.start, wide.size, self.width, LANES)
        planar = problem.output.order == "NCHW" and problem.output.channels > 1

        def columns(some: Group, column: Value) -> None:
            suffix = f"{some.size}_{sum(valid)}"
            name = f"{self.name}_{'planar' if planar else 'pixels'}_{suffix}"
            if not self.module.has(name):
                if planar:
                    write_planar(self.module, problem, 1, some.size, valid, name=name)
                else:
                    tile = PixelTile(1, some.size, valid, (), begins=False)
                    write_tile(self.module, problem, problem.input, tile, name=name)
            image, group = at
            where = variables_at(
                f, problem, (image, f.integer(0), group), f.mul(vector, LANES), self.width, row, column
            )  # fmt: skip
            y = output_at(f, problem, pointers[OUTPUT], where)
            operands = operands_at(f, problem, pointers, where)
            here, nothing = f.at(sums, f.mul(column, wide.size * ROW_BYTES), "i8"), Value(("null",), "ptr")
            given = (here, y) if planar else (nothing, nothing, y, here, nothing)
            f.call(name, *given, *operands)

        size = COLUMNS if not planar else LANES
        groups = balanced(problem.output.size[2], size)
        each_piece(f, groups, 0, pieces(groups), columns)
