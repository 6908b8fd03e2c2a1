"""Convolutions on matrix units: their results between guard pages, and their tiles' meaning on any machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.target import host, x86_64_amx, x86_64_v4
from kernels.templates.convolution.problem import Convolution, convolution
from kernels.templates.units.image import UNIT_CONVOLUTION, ImagePacking
from kernels.templates.units.image_choice import UnitImage
from kernels.templates.units.rounding import PAIR, Rounded
from kernels.templates.units.window import Window
from kernels.tensor.expression import relu
from kernels.tensor.scalars import narrow, widen
from kernels.units.instructions import ROW_BYTES, ROWS, TILE_BYTES, Depth, product
from kernels.units.interpret import interpret
from kernels.units.write import NoMatrixUnit
from tests.kernels.templates.convolution.oracle import Sample, definition, run, sample
from tests.kernels.units.test_units import has_units

CASES = {
    "one by one": convolution(1, 64, 64, (8, 8), (1, 1), order="NCHWc"),
    "three by three": convolution(2, 48, 40, (9, 11), (3, 3), pads=(1, 1, 1, 1), order="NCHWc"),
    "strides": convolution(1, 32, 64, (11, 12), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), order="NCHWc"),
    "one by one with strides": convolution(1, 32, 16, (14, 9), (1, 1), strides=(2, 2), order="NCHWc"),
    "dilated": convolution(1, 32, 32, (13, 13), (3, 3), pads=(2,) * 4, dilations=(2, 2), order="NCHWc"),
    "groups": convolution(1, 64, 128, (7, 6), (3, 3), pads=(1, 1, 1, 1), groups=4, order="NCHWc"),
    "channels last": convolution(1, 33, 50, (9, 8), (5, 3), strides=(2, 1), pads=(2, 1, 2, 1), order="NHWC"),
    "to planes": convolution(1, 64, 70, (6, 19), (3, 3), pads=(1, 1, 1, 1), order="NCHWc", output_order="NCHW"),
    "a row": convolution(1, 16, 24, (40,), (3,), pads=(1, 1), order="NCHWc", output_order="NHWC"),
    "with a halo": convolution(1, 32, 32, (6, 6), (3, 3), pads=(1,) * 4, order="NCHWc", halo=1, output_halo=1),
}  # fmt: skip


def rounded(given: Sample) -> Sample:
    """The same with numbers that bfloat16 holds."""
    x, weights = (widen(narrow(one, DType.BF16), DType.BF16) for one in (given.x, given.weights))
    return replace(given, x=x, weights=weights)


@has_units
@pytest.mark.parametrize("candidate", [None, UnitImage(1, 1), UnitImage(3, 2)])
@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_those_of_rounded_numbers(name: str, candidate: UnitImage | None) -> None:
    problem = CASES[name].with_epilogue(lambda sums: relu(sums + CASES[name].bias()))
    kernel = UNIT_CONVOLUTION.build(
        problem, candidate or UNIT_CONVOLUTION.candidates(problem, host())[0], host(), "convolution"
    )
    taken = sample(problem)
    bias = np.random.default_rng(1).standard_normal(kernel.operand("bias").elements).astype(np.float32)
    found = run(kernel, taken, {"bias": bias})
    channels = problem.output.channels
    expected = np.maximum(rounded(taken).expected + bias[:channels, None, None, None], 0)
    assert np.abs(found - expected).max() < 1e-5  # sums of float32 of numbers near 1


@pytest.mark.parametrize("name", ["three by three", "strides", "dilated"])
def test_tiles_of_a_window_give_the_convolution(name: str) -> None:
    """On any machine: a window laid out by its numbers, weights as they are packed, tiles as they are meant."""
    problem = replace(
        CASES[name], input=replace(CASES[name].input, batch=1), output=replace(CASES[name].output, batch=1)
    )
    taken = rounded(sample(problem))
    height, width = problem.output.size[1:]
    window, packing = Window(problem, height, problem.depth), Rounded(ImagePacking(problem))
    memory = {
        "a": filled(window, taken),
        "b": packing.pack(taken.weights).view(np.uint8),
        "next": np.zeros(0, np.uint8),
    }
    pairs, panels = -(-window.positions(height) // (2 * ROWS)), -(-problem.output.channels // PAIR)
    steps = window.blocks * len(window.places)
    found = np.zeros((panels, pairs * 2 * ROWS, 2 * ROWS), np.float32)
    vectors = [min(2, -(-problem.output.channels // ROWS) - 2 * panel) for panel in range(panels)]
    for panel, size in enumerate(vectors):
        program = product(
            "bf16", 2, size, (Depth(window.blocks, window.block_bytes),), a_stride=ROW_BYTES, a_apart=TILE_BYTES,
            places=window.places,
        )  # fmt: skip
        for pair in range(pairs):
            sums = np.zeros(2 * size * TILE_BYTES, np.uint8)
            start = sum(vectors[:panel]) * steps * TILE_BYTES
            here = {"a": memory["a"][pair * 2 * TILE_BYTES :], "b": memory["b"][start:], "sums": sums}
            interpret(program, here)
            found[panel, 32 * pair : 32 * pair + 32, : 16 * size] = sums.view(np.float32).reshape(32, 16 * size)
    positions = found.transpose(1, 0, 2).reshape(pairs * 32, -1)[:, : problem.output.channels]
    rows = [positions[row * window.pitch : row * window.pitch + width] for row in range(height)]
    expected = definition(problem, taken.x, taken.weights)[0, :, 0]
    assert np.abs(np.stack(rows).transpose(2, 0, 1) - expected).max() < 1e-5


def filled(window: Window, taken: Sample) -> np.ndarray:
    """The copy of a whole image as `write_window` makes it, written with NumPy."""
    problem = window.problem
    (_, down, right), (_, top, left) = problem.strides, problem.pads
    memory = np.zeros(window.bytes // 2, np.uint16)
    channels, _, height, width = taken.x[0].shape
    for plane, (y, x) in enumerate(window.phases):
        for row in range(window.height):
            for column in range(window.pitch):
                place = row * down + y - top, column * right + x - left
                if 0 <= place[0] < height and 0 <= place[1] < width:
                    for block in range(window.blocks):
                        some = taken.x[0, block * PAIR : (block + 1) * PAIR, 0, place[0], place[1]]
                        start = block * window.block_bytes + plane * window.plane_bytes
                        start += (row * window.pitch + column) * ROW_BYTES
                        memory[start // 2 : start // 2 + some.size] = narrow(some, DType.BF16)
    assert channels == window.channels
    return memory.view(np.uint8)


def test_code_for_a_processor_with_units_is_compiled_anywhere() -> None:
    kernel = UNIT_CONVOLUTION.kernel(CASES["strides"], x86_64_amx())
    assert kernel.module.uses_units and "tdpbf16ps" in assembly(kernel.module.text(), x86_64_amx())


@pytest.mark.parametrize(
    ("problem", "target"),
    [
        (CASES["one by one"], x86_64_v4()),
        (convolution(1, 3, 64, (8, 8), (3, 3), order="NHWC"), x86_64_amx()),  # too few channels for a tile
        (convolution(1, 32, 32, (8, 8), (3, 3), order="NCHW"), x86_64_amx()),
        (convolution(1, 32, 32, (4, 8, 8), (3, 3, 3), order="NCHWc"), x86_64_amx()),
    ],
)
def test_what_no_unit_computes_is_refused(problem: Convolution, target: object) -> None:
    with pytest.raises(NoMatrixUnit, match="has no matrix unit for this convolution of rounded numbers"):
        UNIT_CONVOLUTION.candidates(problem, target)  # type: ignore[arg-type]


def test_several_workers_share_blocks_with_the_same_operands() -> None:
    large = convolution(1, 256, 256, (28, 28), (3, 3), pads=(1,) * 4, order="NCHWc")
    kernel = UNIT_CONVOLUTION.kernel(large, replace(x86_64_amx(), workers=4))
    assert kernel.shared is not None and kernel.shared.blocks >= 4 * kernel.blocks
