"""Depthwise convolution of bytes: every channel alone, a vector of channels at a time, summed in float32.

Sums stay below 2**24, so that float32 holds each of them exactly; a fused multiply-add then does what no instruction on
bytes does better, as those add up neighbours, which here are different channels. An input vector is converted once
and serves all taps that see it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value
from kernels.target import Target
from kernels.templates import cost
from kernels.templates.builder import Builder
from kernels.templates.convolution.places import operands_at, output_at, variables_at
from kernels.templates.convolution.problem import INPUT, OUTPUT, WEIGHTS
from kernels.templates.epilogue import leaves_of, parameters_of
from kernels.templates.grid import Group, balanced, each_piece, even, pieces, start_of, unravel
from kernels.templates.quantized.arithmetic import ByteArithmetic
from kernels.templates.quantized.problem import X_ZERO, QuantizedConvolution
from kernels.templates.quantized.stage import copy_bytes, window, write_window
from kernels.templates.quantized.store import along, store_pixels
from kernels.templates.template import Template

_EXACT = 1 << 24  # float32 holds every integer up to this one
_LARGEST = 255 * 255  # of a product
_BLOCK_PRODUCTS = 200_000  # of vectors: 50 to 200 microseconds


@dataclass(frozen=True, slots=True)
class ByteDepthwise:
    """Sizes that decide the speed of a depthwise convolution of bytes."""

    rows: int  # of a tile
    columns: int
    row_stretch: int  # row pieces of a block
    unrolled: bool  # whether the kernel is written out, with its weights in registers

    def __str__(self) -> str:
        return f"depthwise {self.rows}x{self.columns}{' unrolled' if self.unrolled else ''} block {self.row_stretch}"


def applies(problem: QuantizedConvolution) -> bool:
    """Whether each channel stands alone, sums are exact in float32, and the weights are constant."""
    geometry = problem.geometry
    taps = geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]
    return geometry.is_depthwise and taps * _LARGEST < _EXACT and problem.constant_weights


def candidates(problem: QuantizedConvolution, target: Target) -> tuple[ByteDepthwise, ...]:
    """Candidates, the likely best first; none where it does not apply."""
    if not applies(problem):
        return ()
    geometry = problem.geometry
    height, width = geometry.output.size[1:]
    taps = geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]
    found = []
    for rows in range(1, min(height, 3) + 1):
        for unrolled, kept in ((True, taps), (False, geometry.kernel[2])):
            most = (target.vector_registers - 3 - kept) // rows
            if most < 1 or (unrolled and geometry.kernel[0] > 1) or (rows > 1 and not unrolled):
                continue
            columns = -(-width // -(-width // min(most, 14)))
            found.append(ByteDepthwise(rows, columns, 1, unrolled))
    if not found:
        found = [ByteDepthwise(1, 1, 1, False)]
    made = [replace(one, row_stretch=_stretch(problem, target, one)) for one in found]
    return tuple(sorted(dict.fromkeys(made), key=lambda one: estimate(problem, one, target)))


def _stretch(problem: QuantizedConvolution, target: Target, one: ByteDepthwise) -> int:
    """Row pieces of a block: some work, and a copy of the input that stays in half of the second cache."""
    geometry = problem.geometry
    height, width = geometry.output.size[1:]
    taps = geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]
    vectors = -(-geometry.output.channels // target.lanes())
    total = pieces(balanced(height, one.rows))
    wanted = max(1, min(total, _BLOCK_PRODUCTS // (one.rows * width * taps * vectors)))
    row = geometry.input.size[2] * geometry.input.channels * geometry.strides[1] * one.rows
    wanted = max(1, min(wanted, target.l2 // 2 // max(1, row)))
    return even(total, wanted)


def estimate(problem: QuantizedConvolution, candidate: ByteDepthwise, target: Target) -> float:
    """Nanoseconds of all blocks on one core: products, conversions of inputs, outputs, calls."""
    geometry, speed = problem.geometry, target.core
    height, width = geometry.output.size[1:]
    tiles = -(-height // candidate.rows) * -(-width // candidate.columns)
    pixels = candidate.rows * candidate.columns
    seen = (candidate.columns - 1) * geometry.strides[2] + geometry.reach[2]
    rows = (candidate.rows - 1) * geometry.strides[1] + geometry.kernel[1] if candidate.unrolled else geometry.kernel[1]
    taps = geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]
    cycles = pixels * taps / speed.products + 1.5 * seen * rows * geometry.kernel[0] + 7.0 * pixels + 20.0
    vectors = -(-geometry.output.channels // target.lanes())
    return cost.nanoseconds(tiles * cycles * vectors * geometry.output.batch * geometry.output.size[0], target)


@dataclass(frozen=True, slots=True)
class ByteDepthwisePacking:
    """Weights as [vector of channels][minus their sum, then each tap][lane], float32, zero points taken away."""

    problem: QuantizedConvolution
    lanes: int

    @property
    def taps(self) -> int:
        """Places of the kernel."""
        kernel = self.problem.geometry.kernel
        return kernel[0] * kernel[1] * kernel[2]

    @property
    def elements(self) -> int:
        """Numbers of all vectors."""
        return -(-self.problem.geometry.output.channels // self.lanes) * self.lanes * (self.taps + 1)

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed weights."""
        zeros = self.problem.weights_zero
        assert zeros is not None, "asked for by `applies`"
        taps = array.reshape(-1, self.taps).astype(np.int64) - np.array(zeros, np.int64)[:, None]
        whole = np.zeros((-(-len(taps) // self.lanes) * self.lanes, self.taps + 1), np.float32)
        whole[: len(taps), 0] = -taps.sum(axis=1)
        whole[: len(taps), 1:] = taps
        return whole.reshape(-1, self.lanes, self.taps + 1).swapaxes(1, 2).reshape(-1)


def build(problem: QuantizedConvolution, candidate: ByteDepthwise, target: Target, name: str = "depthwise") -> Kernel:
    """The kernel: operands "x", "weights", "x_zero" where that is no constant, those of the epilogue, "y"."""
    return _ByteDepthwiseBuilder(problem, candidate, target, name).kernel()


BYTE_DEPTHWISE = Template("byte_depthwise", QuantizedConvolution, candidates, build, estimate)


class _ByteDepthwiseBuilder(Builder[QuantizedConvolution, ByteDepthwise]):
    def __init__(self, problem: QuantizedConvolution, candidate: ByteDepthwise, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.geometry = problem.geometry
        self.packing = ByteDepthwisePacking(problem, self.lanes)
        self.kind = types.vector("float", self.lanes)
        height, width = self.geometry.output.size[1:]
        self.rows, self.columns = balanced(height, candidate.rows), balanced(width, candidate.columns)
        self.row_blocks = -(-pieces(self.rows) // candidate.row_stretch)
        # All channels are copied together, as if they were one group.
        self.together = replace(problem, geometry=replace(self.geometry, groups=1))
        self.window = window(self.together.geometry, max(group.size for group in self.rows) * candidate.row_stretch)
        self.unshifted: ByteArithmetic = "u8s8" if problem.x_dtype is DType.U8 else "s8s8"
        whole = self.geometry.output.channels % self.lanes == 0
        self.staged = not (whole and self.geometry.input.order == "NHWC" and self.geometry.has_halo)
        self.source = self.window if self.staged else self.geometry.input
        out = self.geometry.output
        self.dims = (out.batch, out.size[0], self.row_blocks)

    def kernel(self) -> Kernel:
        operands = tuple(
            replace(one, role="constant", dtype=DType.F32) if one.name == WEIGHTS else one
            for one in self.problem.operands(self.packing)
        )
        scratch = copy_bytes(self.window.elements, self.unshifted) if self.staged else 0
        return self.written(operands, prod(self.dims), scratch_bytes=scratch, flops=self.geometry.flops)

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        geometry, layout, problem = self.geometry, self.geometry.input, self.problem
        image, plane, row_block = unravel(f, block, self.dims)
        stretch, total = self.candidate.row_stretch, pieces(self.rows)
        low = f.mul(row_block, stretch)
        high = f.minimum(f.add(low, stretch), f.integer(total))
        x = f.at(f.at(pointers[INPUT], f.mul(image, layout.image_stride), "i8"), layout.origin, "i8")
        if problem.x_zero is None:
            signed = "sext" if problem.x_dtype.is_signed else "zext"
            zero = f.convert(signed, "i32", f.load("i8", pointers[X_ZERO]))
        else:
            zero = f.number("i32", problem.x_zero)
        first = start_of(f, self.rows, low)
        if self.staged:
            name = write_window(self.module, self.together, self.unshifted, self.window, f"{self.name}_stage")
            from_plane = f.add(f.mul(plane, geometry.strides[0]), -geometry.pads[0])
            f.call(name, x, scratch, from_plane, f.add(f.mul(first, geometry.strides[1]), -geometry.pads[1]), zero)
            x = scratch
        else:
            steps = (layout.plane_stride, layout.row_stride, layout.column_stride)
            back = sum(pad * step for pad, step in zip(geometry.pads, steps, strict=True))
            x = f.at(x, f.add(f.mul(plane, geometry.strides[0] * layout.plane_stride), -back), "i8")

        def piece(tall: Group, row: Value) -> None:
            down = f.sub(row, first) if self.staged else row

            def across(wide: Group, column: Value) -> None:
                place = f.add(
                    f.mul(down, geometry.strides[1] * self.source.row_stride),
                    f.mul(column, geometry.strides[2] * self.source.column_stride),
                )
                here = f.at(x, place, "i8")

                def vector(number: Value, valid: int) -> None:
                    at = variables_at(
                        f, geometry, (image, plane, f.integer(0)), f.mul(number, self.lanes),
                        geometry.output.channels, row, column,
                    )  # fmt: skip
                    weights = f.at(pointers[WEIGHTS], f.mul(number, (self.packing.taps + 1) * self.lanes))
                    f.call(
                        self._tile(tall.size, wide.size, valid), f.at(here, f.mul(number, self.lanes), "i8"), weights,
                        output_at(f, geometry, pointers[OUTPUT], at), zero, *operands_at(f, geometry, pointers, at),
                    )  # fmt: skip

                whole, rest = divmod(geometry.output.channels, self.lanes)
                f.loop(0, whole, 1, lambda number, _: vector(number, self.lanes))
                if rest:
                    vector(f.integer(whole), rest)

            each_piece(f, self.columns, 0, pieces(self.columns), across)

        each_piece(f, self.rows, low, high, piece)

    def _tile(self, rows: int, columns: int, valid: int) -> str:
        """f(x, weights, y, zero, operands of the epilogue...): pixels of one vector of channels."""
        name = f"{self.name}_{rows}x{columns}_{valid}"
        if self.module.has(name):
            return name
        f = Function(
            self.module,
            name,
            (
                Parameter("x", "ptr", "noalias nocapture readonly"),
                Parameter("weights", "ptr", "noalias nocapture readonly"),
                Parameter("y", "ptr", "nocapture"),
                Parameter("zero", "i32"),
                *parameters_of(self.geometry.epilogue),
            ),
        )
        pixels = tuple((row, column) for row in range(rows) for column in range(columns))
        zero = f.splat(f.convert("sitofp", "float", f.parameter("zero")), self.lanes)
        begin = f.mul(f.load(self.kind, f.parameter("weights")), zero)
        sums = dict.fromkeys(pixels, begin)
        taken = f.at(f.parameter("weights"), self.lanes)
        if self.candidate.unrolled:
            self._unrolled(f, taken, sums, rows, columns)
        else:
            sums = self._looped(f, taken, sums)
        found = [f.convert("fptosi", types.vector("i32", self.lanes), sums[pixel]) for pixel in pixels]
        leaves = leaves_of(f, self.geometry.epilogue, along(self.geometry), self.lanes)
        store_pixels(f, self.geometry, leaves, f.parameter("y"), pixels, found, (valid,))
        f.finish()
        return name

    def _input(self, f: Function, address: Value) -> Value:
        """A vector of channels as floats."""
        stored = f.load(types.vector("i8", self.lanes), address, align=1)
        signed = self.problem.x_dtype.is_signed
        wide = f.convert("sext" if signed else "zext", types.vector("i32", self.lanes), stored)
        return f.convert("sitofp", self.kind, wide)

    def _unrolled(
        self, f: Function, weights: Value, sums: dict[tuple[int, int], Value], rows: int, columns: int
    ) -> None:
        """Input rows from top to bottom, each for all rows of the tile that see it."""
        geometry = self.geometry
        _, high, wide = geometry.kernel
        taps = [f.load(self.kind, f.at(weights, tap * self.lanes)) for tap in range(high * wide)]
        uses: dict[tuple[int, int], list[tuple[tuple[int, int], int]]] = {}
        for row in range(rows):
            for column in range(columns):
                for tap in range(high * wide):
                    place = (
                        row * geometry.strides[1] + tap // wide * geometry.dilations[1],
                        column * geometry.strides[2] + tap % wide * geometry.dilations[2],
                    )
                    uses.setdefault(place, []).append(((row, column), tap))
        for place in sorted(uses):
            distance = place[0] * self.source.row_stride + place[1] * self.source.column_stride
            value = self._input(f, f.at(f.parameter("x"), distance, "i8"))
            for pixel, tap in uses[place]:
                sums[pixel] = f.fma(value, taps[tap], sums[pixel])

    def _looped(self, f: Function, weights: Value, sums: dict[tuple[int, int], Value]) -> dict[tuple[int, int], Value]:
        """A loop over the planes and rows of the kernel, for one row of outputs."""
        geometry, pixels = self.geometry, tuple(sums)
        planes, high, wide = geometry.kernel
        uses: dict[int, list[tuple[int, int]]] = {}
        for number, (_, column) in enumerate(pixels):
            for tap in range(wide):
                uses.setdefault(column * geometry.strides[2] + tap * geometry.dilations[2], []).append((number, tap))

        def plane(p: Value, of_plane: tuple[Value, ...]) -> tuple[Value, ...]:
            def row(r: Value, carried: tuple[Value, ...]) -> list[Value]:
                place = f.add(
                    f.mul(p, geometry.dilations[0] * self.source.plane_stride),
                    f.mul(r, geometry.dilations[1] * self.source.row_stride),
                )
                x = f.at(f.parameter("x"), place, "i8")
                first = f.at(weights, f.mul(f.add(f.mul(p, high), r), wide * self.lanes))
                taps = [f.load(self.kind, f.at(first, tap * self.lanes)) for tap in range(wide)]
                found = list(carried)
                for distance in sorted(uses):
                    value = self._input(f, f.at(x, distance * self.source.column_stride, "i8"))
                    for number, tap in uses[distance]:
                        found[number] = f.fma(value, taps[tap], found[number])
                return found

            return f.loop(0, high, 1, row, of_plane)

        made = f.loop(0, planes, 1, plane, [sums[pixel] for pixel in pixels])
        return dict(zip(pixels, made, strict=True))
