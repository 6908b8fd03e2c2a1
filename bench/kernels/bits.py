"""Bar 4 of low precision: one row by weights of four bits, beside memory, beside its own rate, beside ONNX Runtime.

Weights have a scale and a zero point for each block of 32, and lie beyond the last cache. Rates count all their bytes.
The row's own rate is that of a matrix in the second cache, where nothing but widening and multiplying decides. Memory
is read by turns with the rows: on a shared machine its rate is another one from minute to minute. Both lie where a
program's weights lie, in huge pages where the system has some.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

import graphopt
from bench.bar import Bar, Sheet
from bench.kernels.timing import Peer, model, pin, ratio, readings
from bench.peers import OURS
from bench.script import main
from graphopt.program.core import with_core
from kernels.measure.streams import reading
from kernels.run import Calls, Executable, area
from kernels.target import Target, host
from kernels.templates.bits import BitsProduct
from kernels.templates.bits_dots import BITS_DOTS, fits
from kernels.templates.bits_row import BITS_ROW

ISSUE = 25
SHAPES = ((4096, 32768), (4096, 11008), (11008, 4096))  # depth, columns
NEAR = (512, 1024)  # 0.3 MB
MEMORY = 256 << 20  # bytes that are read of memory
BLOCK = 32
ROUNDS, QUICK_ROUNDS = 11, 5
SHARE = 0.85  # of the lesser one of both rates


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each matrix, one thread."""
    rounds, target = QUICK_ROUNDS if quick else ROUNDS, with_core(host(), graphopt.machine())
    pin()
    rows, least = [], 1.0
    for depth, columns in SHAPES[: 1 if quick else None]:
        sides = {"ours": _ours(depth, columns, target), "near": _ours(*NEAR, target), "memory": _memory(target)}
        taken = readings(sides | {"peer": _peer(depth, columns)}, rounds)
        moved = {"ours": _bytes(depth, columns), "near": _bytes(*NEAR), "memory": MEMORY}
        bound = [max(taken[side][turn] / moved[side] for side in ("near", "memory")) for turn in range(rounds)]
        share = ratio(bound, [one / moved["ours"] for one in taken["ours"]])
        least = min(least, share.high)
        rates = [size / 1e9 / float(np.median(taken[side])) for side, size in moved.items()]
        beside = ratio(taken["peer"], taken["ours"]).median
        time = 1e3 * float(np.median(taken["ours"]))
        rows.append((f"1x{columns}x{depth}", time, beside, *rates, share.median, share.low, share.high))
    titles = (
        "rows x columns x depth", "ms", "ONNX Runtime / ours", "bytes/ns", "near", "memory", "of the lesser", "from",
        "to",
    )  # fmt: skip
    sheet.table("weights of four bits, one row, one thread", titles, rows)
    text = "weights of four bits, one row, beside min(memory, widening and multiplying)"
    return [Bar(ISSUE, 4, text, f">= {SHARE}", f"{least:.2f} at the most", least >= SHARE)]


def _memory(target: Target) -> Calls:
    """Loads of a buffer that no cache holds."""
    kernel = reading(target, "read", MEMORY, 1)
    buffer = area(MEMORY).view(np.float32)
    buffer[:] = 1
    return Executable([kernel]).calls([(kernel, {"x": buffer})])


def _bytes(depth: int, columns: int) -> float:
    """Of codes, scales and zero points, which take a byte here."""
    return depth * columns * (0.5 + 5 / BLOCK)


def _ours(depth: int, columns: int, target: Target) -> Calls:
    product = BitsProduct(1, columns, depth, 4, BLOCK, "codes")
    kernel = (BITS_DOTS if fits(product, target) else BITS_ROW).kernel(product, target)
    arrays = {}
    for operand in kernel.operands:
        arrays[operand.name] = area(operand.bytes).view(operand.dtype.numpy)
        arrays[operand.name][:] = 1
    return Executable([kernel]).calls([(kernel, arrays)])


def _peer(depth: int, columns: int) -> Peer:
    generator, blocks = np.random.default_rng(0), depth // BLOCK
    node = helper.make_node(
        "MatMulNBits", ["a", "b", "scales", "zeros"], ["y"], domain="com.microsoft", K=depth, N=columns, bits=4,
        block_size=BLOCK,
    )  # fmt: skip
    constants = {
        "b": generator.integers(0, 256, (columns, blocks, BLOCK // 2), np.uint8),
        "scales": generator.random(columns * blocks).astype(np.float32),
        "zeros": generator.integers(0, 256, columns * -(-blocks // 2), np.uint8),
    }
    a = generator.standard_normal((1, depth)).astype(np.float32)
    return Peer(model([node], {"a": a}, ["y"], constants), {"a": a})


if __name__ == "__main__":
    main(measure)
