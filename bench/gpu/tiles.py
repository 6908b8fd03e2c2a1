"""Every tile of the products and convolutions of some models, timed on a GPU beside what the estimate says.

Microseconds are of one launch among twenty in a graph: what a launch itself takes is in them, alike for all tiles.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import models
from bench.gpu.programs import lowered_for
from graphopt.program.deploy.cuda.runtime import Device, Timer
from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.ptx.emit import ptx
from kernels.ptx.program import program_module
from kernels.ptx.tasks.convolution import convolution
from kernels.ptx.tasks.convolution import tiled as tiled_convolution
from kernels.ptx.tasks.product import FEW_ROWS, product
from kernels.ptx.tasks.product import tiled as tiled_product
from kernels.ptx.tasks.threads import THREADS
from kernels.ptx.tasks.tile import TILES, TaskTile, TiledProduct, cycles
from kernels.target import Target, cuda
from kernels.templates.convolution.problem import Convolution
from kernels.templates.gemm_problem import Gemm

LAUNCHES, ROUNDS = 20, 5
JIT_THREADS = 8  # in which the driver's compiler works
_TURNS = threading.Lock()  # one problem is timed at a time


def tiled(problem: Convolution | Gemm) -> TiledProduct:
    """A problem as tiles see it."""
    return tiled_product(problem) if isinstance(problem, Gemm) else tiled_convolution(problem)


def problems_of(names: list[str], target: Target) -> list[tuple[str, Convolution | Gemm]]:
    """The different products and convolutions of models, and where each is from."""
    found: dict[Hashable, tuple[str, Convolution | Gemm]] = {}
    for name in names:
        for _, problem in lowered_for(name, target)[1].problems.values():
            in_tiles = isinstance(problem, Gemm) and problem.rows > FEW_ROWS
            in_tiles |= isinstance(problem, Convolution) and problem.depth * problem.width > 1
            if in_tiles:
                found.setdefault((tiled(problem), getattr(problem, "strides", ())), (name, problem))
    return list(found.values())


@dataclass(frozen=True, slots=True)
class WrittenTile:
    """A tile's kernel without its text."""

    tile: TaskTile
    name: str
    blocks: int
    shared: int  # bytes
    operands: tuple[tuple[bool, int, DType], ...]  # whether it is an output, elements, type


def written(problem: Convolution | Gemm, target: Target) -> tuple[str, list[WrittenTile]]:
    """The kernels of all tiles of a problem as PTX."""
    write: Any = convolution if isinstance(problem, Convolution) else product
    kernels: list[Kernel] = [write(problem, target, f"tile_{number}", tile) for number, tile in enumerate(TILES)]
    tiles = [
        WrittenTile(
            tile, one.name, one.blocks, one.scratch_bytes,
            tuple((operand.role == "output", operand.elements, operand.dtype) for operand in one.operands),
        )
        for tile, one in zip(TILES, kernels, strict=True)
    ]  # fmt: skip
    return ptx(program_module(kernels, target, persistent=False), target.cpu), tiles


def measured(problem: tuple[str, list[WrittenTile]], device: Device) -> dict[TaskTile, float]:
    """Microseconds by tile of what `written` gives."""
    text, tiles = problem
    module = device.load(text.encode() + b"\0")
    with _TURNS:
        return _timed(module, tiles, device)


def _timed(module: ctypes.c_void_p, tiles: Sequence[WrittenTile], device: Device) -> dict[TaskTile, float]:
    draw, found, stream = np.random.default_rng(0), dict[TaskTile, float](), device.stream()
    timer, operands = Timer(device, stream), tiles[0].operands
    places = [device.allocate(elements * dtype.bytes) for _, elements, dtype in operands]
    for (is_output, elements, dtype), place in zip(operands, places, strict=True):
        if not is_output:
            device.write(place, draw.standard_normal(elements, np.float32).astype(dtype.numpy))
    table = device.allocate(8 * len(operands))
    device.write(table, np.array(places, np.uint64))
    for one in tiles:
        function = device.function(module, f"launch_{one.name}", one.shared)

        def work(function: ctypes.c_void_p = function, one: WrittenTile = one) -> None:
            row = (ctypes.c_uint64(table),)
            for _ in range(LAUNCHES):
                device.launch(function, one.blocks, THREADS, row, shared=one.shared, stream=stream)

        graph = partial(device.captured(stream, work), stream)
        graph()
        found[one.tile] = float(np.median([timer.of(graph) for _ in range(ROUNDS)])) / LAUNCHES
    for place in (*places, table):
        device.free(place)
    return found


def main(names: list[str], out: Path | None) -> None:
    """Print a line for each problem: what is estimated to be best, and what is."""
    device = Device()
    target = cuda(f"sm_{device.capability[0]}{device.capability[1]}")
    problems = problems_of(names, target)
    rows: list[dict[str, Any]] = []
    others = get_context("spawn")  # a process that has a GPU does not fork
    with ProcessPoolExecutor(mp_context=others) as pool, ThreadPoolExecutor(JIT_THREADS) as loading:
        texts = [pool.submit(written, problem, target) for _, problem in problems]
        results = loading.map(lambda text: measured(text.result(), device), texts)
        for (name, problem), taken in zip(problems, results, strict=True):
            dims = tiled(problem)
            guess = min(TILES, key=lambda tile: cycles(tile, dims, target))
            best = min(taken, key=taken.__getitem__)
            print(f"{name} {dims}: {guess} {taken[guess]:.1f} us, best {best} {taken[best]:.1f} us", flush=True)
            rows.append(
                {
                    "model": name,
                    "kind": type(problem).__name__,
                    "dims": astuple(dims),
                    "taken": {str(one): us for one, us in taken.items()},
                }
            )
            if out is not None:
                out.write_text(json.dumps(rows))


if __name__ == "__main__":
    wanted = [one for one in sys.argv[1:] if one in models.names()]
    main(wanted, next((Path(one) for one in sys.argv[1:] if one.endswith(".json")), None))
