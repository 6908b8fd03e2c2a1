"""Sums of a tile, with channels side by side, into an output in NCHW: turned in registers, then the epilogue."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.llvm import types
from kernels.llvm.function import Function, Parameter
from kernels.llvm.module import Module
from kernels.llvm.transposing import transpose
from kernels.templates.convolution.problem import Convolution
from kernels.templates.epilogue import apply, leaves_of, parameters_of


def write_planar(
    module: Module, problem: Convolution, rows: int, columns: int, valid: Sequence[int], *, name: str
) -> str:
    """Write f(sums, y, operands of the epilogue...) and return its name; pointers are at the tile."""
    f = Function(
        module,
        name,
        (
            Parameter("sums", "ptr", "noalias nocapture readonly"),
            Parameter("y", "ptr", "nocapture"),
            *parameters_of(problem.epilogue),
        ),
    )
    lanes, layout = module.target.lanes(), problem.output
    kind, element = types.vector("float", lanes), types.scalar(problem.epilogue.dtype)
    _, block, _, row, column, _ = problem.variables
    leaves = leaves_of(f, problem.epilogue, column, lanes)
    for r in range(rows):
        for first in range(0, columns, lanes):
            count = min(lanes, columns - first)
            mask = f.first_lanes(count, lanes)
            for vector, channels in enumerate(valid):
                pixels = []
                for position in range(lanes):
                    place = ((r * columns + first + min(position, count - 1)) * len(valid) + vector) * lanes
                    pixels.append(f.load(kind, f.at(f.parameter("sums"), place), align=4 * lanes))
                for channel, total in enumerate(transpose(f, pixels)[:channels]):
                    number = vector * lanes + channel
                    placed = leaves.place(total, {row: r, block: number}, [first], count)
                    value = apply(f, problem.epilogue, placed, lanes)
                    address = f.at(
                        f.parameter("y"), number * layout.block_stride + r * layout.row_stride + first, element
                    )
                    if count == lanes:
                        f.store(value, address)
                    else:
                        f.masked_store(value, address, mask)
    f.finish()
    return name
