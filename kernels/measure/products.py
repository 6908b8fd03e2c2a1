"""Tiles of a matrix product whose weights come from memory: how fast, by where and how far ahead they ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from kernels.cores import FEW_ROWS, WayToAsk
from kernels.dtype import DType
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.run import Array, aligned
from kernels.target import Target
from kernels.templates.epilogue import Epilogue
from kernels.templates.gemm_choice import tile_shapes
from kernels.templates.tile import ProductTile, asked, write_tile
from kernels.tensor.expression import Variable

DEPTH = 768  # of the product: long enough that what surrounds a tile does not count
WAYS: tuple[WayToAsk, ...] = ("near", "far", "half")
ROWS: tuple[Literal["few", "tall"], ...] = ("few", "tall")


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of memory before: how much is under way, which says how far ahead to ask."""

    read: float  # bytes a nanosecond
    latency: float  # nanoseconds


def names() -> Mapping[str, tuple[Literal["few", "tall"], WayToAsk]]:
    """The entries, with the rows of their tile and the way in which it asks."""
    return {f"{rows}_{way}": (rows, way) for rows, way in product(ROWS, WAYS)}


def streamed(target: Target, name: str, memory: Memory, size: int) -> tuple[Kernel, int]:
    """A product of one tile's rows by weights `x`, `size` bytes at the most; and how many bytes it reads of them."""
    rows, way = names()[name]
    height, vectors = _shape(target, rows)
    panel = vectors * target.lanes() * DEPTH  # elements
    panels = size // (4 * panel)
    core = replace(
        target.core, few=way, tall=way,
        memory=memory.read / target.core.gigahertz, latency=memory.latency,
    )  # fmt: skip
    ahead = asked(core, DEPTH, 4 * vectors * target.lanes(), height, 1)
    tile = ProductTile(
        height, vectors, DEPTH, DEPTH, 1, vectors * target.lanes(), vectors * target.lanes(), target.lanes(),
        ahead=ahead.lines, near=ahead.near,
    )  # fmt: skip
    module = Module(target)
    function = write_tile(module, tile, Epilogue(), Variable("row", 1), Variable("column", 1), prefix=name)

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        b = f.at(pointers["x"], f.mul(block, panel))
        f.call(function, pointers["a"], b, pointers["c"], f.at(b, ahead.apart, "i8"))

    operands = (
        Operand("x", "output", DType.F32, panels * panel),
        Operand("a", "input", DType.F32, height * DEPTH),
        Operand("c", "output", DType.F32, height * vectors * target.lanes()),
    )
    return write_kernel(module, name, operands, panels, body), 4 * panels * panel


def others(kernel: Kernel) -> dict[str, Array]:
    """Arrays for what a product reads and writes beside its weights."""
    return {operand.name: aligned(operand.elements) for operand in kernel.operands if operand.name != "x"}


def _shape(target: Target, rows: Literal["few", "tall"]) -> tuple[int, int]:
    """Rows and vectors of the tile with the most sums: of few rows, or of as many as a tile has."""
    shapes = tile_shapes(FEW_ROWS if rows == "few" else 64, 64 * target.lanes(), target, target.lanes())
    most = FEW_ROWS if rows == "few" else max(height for height, _ in shapes)
    return max((one for one in shapes if one[0] == most), key=lambda one: one[1])
