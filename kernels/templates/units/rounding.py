"""Rounding float32 to bfloat16 on the way to tiles: to nearest even; subnormal numbers become zeros."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.dtype import DType
from kernels.kernel import Packing
from kernels.llvm import types
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.module import Module
from kernels.templates.convolution.layout import Layout
from kernels.tensor.scalars import narrow
from kernels.units.instructions import LANES, ROW_BYTES, ROWS, TILE_BYTES

PAIR = 2 * LANES  # elements of a row of a tile
TOGETHER = 4  # rows of tiles that a turn of the loop rounds


@dataclass(frozen=True, slots=True)
class Rounded:
    """A packing of what is given as floats, or as the bits of bfloat16, and lies as bfloat16."""

    packing: Packing

    @property
    def elements(self) -> int:
        """How many elements the packed form has."""
        return self.packing.elements

    def pack(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The packed form of the rounded numbers, their bits."""
        is_rounded = array.dtype == DType.BF16.numpy
        return self.packing.pack(array if is_rounded else narrow(array.astype(np.float32), DType.BF16))


def round_pair(f: Function, low: Value, high: Value) -> Value:
    """Two vectors of float32 as one of bfloat16, as bits of 64 bytes."""
    kind = types.vector("bfloat", PAIR)
    f.module.declare("llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, [high.type, low.type])
    given = f"{high.type} {high.text}, {low.type} {low.text}"
    return f.value(kind, f"call {kind} @llvm.x86.avx512bf16.cvtne2ps2bf16.512({given})")


def round_pixel(f: Function, layout: Layout, at: Value, valid: int) -> Value:
    """32 channels of a pixel of NHWC or of blocks of 16, of which so many exist."""
    kind, halves = types.vector("float", LANES), []
    for half in range(2):
        there = min(LANES, valid - half * LANES)
        distance = half * (layout.block_stride if layout.order == "NCHWc" else LANES)
        address = f.at(at, distance)
        if there <= 0:
            halves.append(f.number(kind, 0))
        elif there == LANES or layout.order == "NCHWc":
            halves.append(f.load(kind, address))
        else:
            halves.append(f.masked_load(kind, address, f.first_lanes(there, LANES)))
    return round_pair(f, *halves)


def write_rows(
    module: Module, depth: int, row_distance: int, steps: int, *, prefix: str, side_by_side: bool = False
) -> str:
    """Write, once, f(a, tiles, rows): rows of `depth` float32 side by side as tiles, and return its name.

    A tile of 16 rows by 32 elements of the depth takes 1 KiB; the `steps` tiles of the same rows follow one another.
    Of rows that stay `side_by_side` each takes `steps` lines, one behind the other. What fills the last line that a row
    needs is zero, rows behind the last one are left as they are.
    """
    name = f"{prefix}_rows_{depth}_{row_distance}"
    step_bytes = ROW_BYTES if side_by_side else TILE_BYTES
    if module.has(name):
        return name
    f = Function(
        module, name,
        (
            Parameter("a", "ptr", "noalias nocapture readonly"), Parameter("tiles", "ptr", "noalias nocapture"),
            Parameter("rows", "i64"),
        ),
    )  # fmt: skip
    kind = types.vector("float", LANES)

    def part(source: Value, aim: Value, step: int, valid: int) -> None:
        halves = []
        for half in range(2):
            address, there = f.at(source, step * PAIR + half * LANES), min(LANES, valid - half * LANES)
            if there == LANES:
                halves.append(f.load(kind, address))
            elif there > 0:
                halves.append(f.masked_load(kind, address, f.first_lanes(there, LANES)))
            else:
                halves.append(f.number(kind, 0))
        f.store(round_pair(f, *halves), f.at(aim, step * step_bytes, "i8"), align=ROW_BYTES)

    whole, rest = divmod(depth, PAIR)

    def row(number: Value, _: tuple[Value, ...]) -> None:
        source = f.at(f.parameter("a"), f.mul(number, row_distance))
        if side_by_side:
            place = f.mul(number, steps * ROW_BYTES)
        else:
            tile, within = f.binary("udiv", number, f.integer(ROWS)), f.binary("urem", number, f.integer(ROWS))
            place = f.add(f.mul(tile, steps * TILE_BYTES), f.mul(within, ROW_BYTES))
        aim = f.at(f.parameter("tiles"), place, "i8")

        def turn(step: Value, _: tuple[Value, ...], count: int = TOGETHER) -> None:
            here = f.at(source, f.mul(step, PAIR)), f.at(aim, f.mul(step, step_bytes), "i8")
            for one in range(count):
                part(*here, one, PAIR)

        most = whole // TOGETHER * TOGETHER
        f.loop(0, most, TOGETHER, turn)
        f.loop(most, whole, 1, lambda step, carried: turn(step, carried, 1))
        if rest:
            part(source, aim, whole, rest)

    f.loop(0, f.parameter("rows"), 1, row)
    f.finish()
    return name
