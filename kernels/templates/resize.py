"""Resizing images: nearest and linear, in one to three dims, with ONNX's ways to map coordinates.

Along each axis an output lies between two input places, with a weight for the second one; what lies where is decided
when the kernel is built, and the kernel only mixes two, four or eight inputs. Channels that lie side by side are mixed
a vector at a time; where the result wants them apart, as many pixels as a vector has lanes are turned in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from kernels.errors import KernelsError
from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Amount, Function, Value
from kernels.target import Target
from kernels.templates.builder import Builder
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.places import operands_at, output_at, variables_at
from kernels.templates.convolution.planar import write_planar
from kernels.templates.convolution.problem import INPUT, OUTPUT, Convolution
from kernels.templates.convolution.store import store_pixels
from kernels.templates.convolution.windows import each_vector, side_by_side, vector_at, vectors_of
from kernels.templates.epilogue import Epilogue, TileLeaves
from kernels.templates.grid import unravel
from kernels.templates.template import only

Coordinates = Literal["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners"]
Rounding = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
_BLOCK_PIXELS = 20_000  # vectors that a block writes: about 50 microseconds


class InvalidResize(KernelsError):
    """A resizing that changes more than the size."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Resizing as ONNX's Resize does it. `scales` are output over input where none are given."""

    input: Layout
    output: Layout
    mode: Literal["nearest", "linear"]
    coordinates: Coordinates = "half_pixel"
    rounding: Rounding = "round_prefer_floor"
    scales: tuple[float, float, float] | None = None
    epilogue: Epilogue = field(default_factory=Epilogue)

    def __post_init__(self) -> None:
        one, other = self.input, self.output
        alike = (one.order, one.block) == (other.order, other.block) or other.order == "NCHW"
        if (one.batch, one.channels) != (other.batch, other.channels) or not alike:
            raise InvalidResize("resizing keeps images and channels, and their blocks where it does not part them")

    @property
    def places(self) -> Convolution:
        """The same operands as those of a convolution of single pixels, for the names of an epilogue's variables."""
        return Convolution(
            self.input, self.output, (1, 1, 1), groups=self.output.channels, epilogue=self.epilogue
        )  # fmt: skip

    def between(self, axis: int, output: int) -> tuple[int, int, float]:
        """The two input places of an output place along an axis, and the weight of the second."""
        size = self.input.size[axis]
        place = self._place(axis, output)
        if self.mode == "nearest":
            chosen = min(max(_rounded(place, self.rounding), 0), size - 1)
            return chosen, chosen, 0.0
        inside = min(max(place, 0.0), size - 1.0)
        low = min(math.floor(inside), size - 1)
        return low, min(low + 1, size - 1), inside - low

    def _place(self, axis: int, output: int) -> float:
        before, after = self.input.size[axis], self.output.size[axis]
        scale = self.scales[axis] if self.scales else after / before
        if self.coordinates == "asymmetric":
            return output / scale
        if self.coordinates == "align_corners":
            return output * (before - 1) / (after - 1) if after > 1 else 0.0
        if self.coordinates == "pytorch_half_pixel" and after == 1:
            return 0.0
        place = (output + 0.5) / scale - 0.5
        if self.coordinates == "half_pixel_symmetric":
            whole = before * scale  # the output's size before it was rounded down
            return before / 2 * (1 - after / whole) + place
        return place


def _rounded(place: float, rounding: Rounding) -> int:
    if rounding == "floor":
        return math.floor(place)
    if rounding == "ceil":
        return math.ceil(place)
    if rounding == "round_prefer_floor":
        return math.ceil(place - 0.5)
    return math.floor(place + 0.5)


def build(problem: Resize, target: Target, name: str = "resize") -> Kernel:
    """The kernel: operands "x", those of the epilogue, "y"."""
    return _ResizeBuilder(problem, None, target, name).kernel()


RESIZE = only("resize", Resize, build)


class _ResizeBuilder(Builder[Resize, None]):
    def __init__(self, problem: Resize, candidate: None, target: Target, name: str) -> None:
        super().__init__(problem, candidate, target, name)
        self.places = problem.places
        self.lanes = target.lanes() if side_by_side(problem.input, target.lanes()) else 1
        self.kind = types.vector("float", self.lanes)
        self.turns = self.lanes > 1 and problem.output.order == "NCHW"
        depth, height, width = problem.output.size
        self.vectors = vectors_of(problem.input, self.lanes)
        self.vector_stretch = max(1, min(self.vectors, _BLOCK_PIXELS // (height * width)))
        self.row_stretch = max(1, min(height, _BLOCK_PIXELS // width))
        self.dims = (
            problem.output.batch, depth, -(-self.vectors // self.vector_stretch), -(-height // self.row_stretch)
        )  # fmt: skip

    def kernel(self) -> Kernel:
        flops = 0 if self.problem.mode == "nearest" else 7 * self.problem.output.elements
        scratch = 4 * self.lanes**2 if self.turns else 0
        made = self.written(self.places.operands(), prod(self.dims), scratch_bytes=scratch, flops=flops)
        return replace(made, candidate=f"resize, block {self.row_stretch} rows x {self.vector_stretch} vectors")

    def _table(self, f: Function, axis: int, stride: int) -> tuple[Value, Value, Value]:
        """Where an axis's tables start: distances of the first place, of the second, weights of the second."""
        found = [self.problem.between(axis, output) for output in range(self.problem.output.size[axis])]
        columns = (
            ("i64", [str(low * stride) for low, _, _ in found]),
            ("i64", [str(high * stride) for _, high, _ in found]),
            ("float", [types.constant("float", weight) for _, _, weight in found]),
        )
        names = [
            f.module.constant(f"{self.name}_axis{axis}_{number}", kind, values)
            for number, (kind, values) in enumerate(columns)
        ]
        first, second, weight = (Value((one,), "ptr") for one in names)
        return first, second, weight

    def entry(self, f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        problem = self.problem
        layout, height = problem.input, problem.output.size[1]
        image, plane, stretch, part = unravel(f, block, self.dims)
        begin = f.mul(stretch, self.vector_stretch)
        end = f.add(begin, self.vector_stretch)
        first = f.mul(part, self.row_stretch)
        last = f.minimum(f.add(first, self.row_stretch), f.integer(height))
        x = f.at(pointers[INPUT], f.add(f.mul(image, layout.image_stride), layout.position(0, 0, layout.before)))
        planes = self._mixed(f, [(x, None)], 0, plane, layout.plane_stride)
        body = self._vector(f, pointers, (image, plane), planes, first, last, scratch)
        each_vector(f, layout, self.lanes, begin, end, body)

    def _mixed(
        self, f: Function, sources: list[tuple[Value, Value | None]], axis: int, output: Value, stride: int
    ) -> list[tuple[Value, Value | None]]:
        """Each source (address and weight; None: 1) at its places along one more axis."""
        first, second, weight = self._table(f, axis, stride)
        low = f.load("i64", f.at(first, output, "i64"))
        if self.problem.mode == "nearest":
            return [(f.at(address, low), None) for address, _ in sources]
        size = self.problem.input.size[axis]
        if size == 1:
            return sources
        high = f.load("i64", f.at(second, output, "i64"))
        share = f.load("float", f.at(weight, output))
        rest = f.sub(f.number("float", 1.0), share)
        found: list[tuple[Value, Value | None]] = []
        for address, given in sources:
            for distance, part in ((low, rest), (high, share)):
                found.append((f.at(address, distance), part if given is None else f.mul(given, part)))
        return found

    def _vector(
        self,
        f: Function,
        pointers: dict[str, Value],
        outer: tuple[Value, Value],
        planes: list[tuple[Value, Value | None]],
        first: Amount,
        last: Amount,
        scratch: Value,
    ) -> Callable[[int], Callable[[Value, tuple[Value, ...]], None]]:
        problem, layout = self.problem, self.problem.input
        image, plane = outer
        width = problem.output.size[2]

        def body(valid: int) -> Callable[[Value, tuple[Value, ...]], None]:
            def vector(number: Value, _: tuple[Value, ...]) -> None:
                if self.lanes == 1:
                    offset = f.mul(number, layout.block_stride)
                else:
                    offset = vector_at(f, layout, number, self.lanes)
                here = [(f.at(address, offset), weight) for address, weight in planes]

                def row(down: Value, _: tuple[Value, ...]) -> None:
                    rows = self._mixed(f, here, 1, down, layout.row_stride)
                    channel = f.mul(number, self.lanes)

                    def places_at(across: Value) -> tuple[Value, tuple[Value, ...]]:
                        variables = variables_at(
                            f, self.places, (image, plane, f.integer(0)), channel, problem.output.channels, down,
                            across, self.lanes,
                        )  # fmt: skip
                        y = output_at(f, self.places, pointers[OUTPUT], variables)
                        return y, operands_at(f, self.places, pointers, variables)

                    def pixel(across: Value) -> Value:
                        return self._sum(f, self._mixed(f, rows, 2, across, layout.column_stride), valid)

                    def column(across: Value, _: tuple[Value, ...]) -> None:
                        y, operands = places_at(across)
                        at = dict(zip((one.name for one in problem.epilogue.buffers), operands, strict=True))
                        leaves = TileLeaves(f, at, self.places.variables[5], self.lanes)
                        store_pixels(f, self.places, leaves, y, [(0, 0)], [pixel(across)], (valid,), self.lanes)

                    def turned(begin: Value, count: int) -> None:
                        def one(place: Value, _: tuple[Value, ...]) -> None:
                            f.store(pixel(f.add(begin, place)), f.at(scratch, f.mul(place, self.lanes)))

                        f.loop(0, count, 1, one)
                        y, operands = places_at(begin)
                        f.call(self._planar(f, count, valid), scratch, y, *operands)

                    if self.turns:
                        whole = width // self.lanes * self.lanes
                        f.loop(0, whole, self.lanes, lambda begin, _: turned(begin, self.lanes))
                        if whole < width:
                            turned(f.integer(whole), width - whole)
                    else:
                        f.loop(0, width, 1, column)

                f.loop(first, last, 1, row)

            return vector

        return body

    def _planar(self, f: Function, columns: int, valid: int) -> str:
        """The function that turns so many pixels of a row, and stores what the epilogue makes of them."""
        name = f"{self.name}_planar_{columns}_{valid}"
        return name if f.module.has(name) else write_planar(f.module, self.places, 1, columns, (valid,), name=name)

    def _sum(self, f: Function, sources: list[tuple[Value, Value | None]], valid: int) -> Value:
        total: Value | None = None
        for address, weight in sources:
            if valid < self.lanes and self.problem.input.order == "NHWC":
                value = f.masked_load(self.kind, address, f.first_lanes(valid, self.lanes))
            else:
                value = f.load(self.kind, address)
            if weight is None:
                return value
            share = f.splat(weight, self.lanes)
            total = f.mul(value, share) if total is None else f.fma(value, share, total)
        assert total is not None, "there is always a source"
        return total
