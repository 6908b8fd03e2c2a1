"""Weights of 16 bits beside the same ones in float32: whole float16 models of the zoo and their twins, and products.

Both sides of a pair run by turns on one core, in CPU time. A model's weights are those of its program.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.kernels.timing import Call, pin, ratio, readings, unpin
from bench.peers import OURS
from bench.script import main
from kernels.dtype import DType
from kernels.run import Executable, aligned
from kernels.target import host
from kernels.templates.gemm import GEMM, Gemm

ISSUE, NUMBER = 20, 5
PAIRS = (("resnet18_fp16", "resnet18"),)
PRODUCTS = ((1, 4096, 1024), (16, 768, 768), (128, 768, 768), (128, 768, 3072))  # rows, columns, depth
ROUNDS, QUICK_ROUNDS = 15, 3
READING = 30e-3  # seconds
HALF, TIME = 0.525, 1.05  # of the twin's weights, and of its time
CONSTANTS = 100 << 20  # bytes of weights of the network that products stand in


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Shares of weights and of time, one thread."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    rows, met = [], True
    for short, wide in PAIRS:
        share, low, middle, high = _twins(short, wide, rounds)
        rows.append((short, share, middle, low, high))
        met = met and share <= HALF and low <= TIME
    sheet.table("float16 models beside float32, one thread", ("model", "weights", "time", "from", "to"), rows)
    pin()
    sheet.table(
        "products with weights of 16 bits, float32's time over theirs, one thread",
        ("rows, columns, depth", "float16", "bfloat16"),
        [(" x ".join(map(str, shape)), *_products(shape, rounds)) for shape in PRODUCTS],
    )
    unpin()
    figure = ", ".join(
        f"{name} {100 * share:.0f} % of the weights, {time:.2f} x the time" for name, share, time, *_ in rows
    )
    wanted = f"weights at most {HALF:g}, time at most {TIME:g} of the float32 twin's"
    return [Bar(ISSUE, NUMBER, "float16 models", wanted, figure, met)]


def _twins(short: str, wide: str, rounds: int) -> tuple[float, float, float, float]:
    """The share of the weights, and that of the time with its interval."""
    unpin()
    calls: dict[str, Call] = {}
    sizes = []
    for name in (short, wide):
        program = graphopt.compile(models.load(name), threads=1, dims=models.sizes(name) or None).program
        generator = np.random.default_rng(0)
        feed = {one.name: generator.standard_normal(one.shape).astype(one.dtype) for one in program.inputs}
        calls[name] = program.bind(feed)
        sizes.append(program.weights.nbytes)
    pin()
    taken = readings(calls, rounds, READING)
    found = ratio(taken[short], taken[wide])
    unpin()
    return sizes[0] / sizes[1], found.low, found.median, found.high


def _products(shape: tuple[int, int, int], rounds: int) -> tuple[float, float]:
    """The time with f32 weights over that with f16 and with bf16."""
    rows, columns, depth = shape
    generator = np.random.default_rng(0)
    a = generator.standard_normal(rows * depth).astype(np.float32)
    b = generator.standard_normal((depth, columns)).astype(np.float16)
    target = replace(host(), constants=CONSTANTS)
    stored: dict[DType, npt.NDArray[Any]] = {
        DType.F32: b.astype(np.float32), DType.F16: b,
        DType.BF16: (b.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
    }  # fmt: skip
    calls: dict[str, Call] = {}
    for dtype, weights in stored.items():
        kernel = GEMM.kernel(Gemm(rows, columns, depth, b_dtype=dtype), target)
        packing = kernel.operand("b").packing
        assert packing is not None, "the weights are constants"
        given = {"a": a, "b": packing.pack(weights), "c": aligned(rows * columns)}
        calls[dtype.value] = Executable([kernel]).calls([(kernel, given)])
    taken = readings(calls, rounds)
    return ratio(taken["f32"], taken["f16"]).median, ratio(taken["f32"], taken["bf16"]).median


if __name__ == "__main__":
    main(measure)
