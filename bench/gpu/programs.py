"""Programs of the zoo on a GPU: equal to ONNX Runtime's, and beside one launch for each region with the same kernels.

Microseconds are of the device, by its events: medians of rounds in which all ways take turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort

import models
from bench.speed import ratio_interval
from graphopt.flows.asked import optimized
from graphopt.flows.source import read, resize
from graphopt.program.deploy.cuda.bundle import TaskProgram
from graphopt.program.deploy.cuda.runtime import Device, Program, Timer
from graphopt.program.gpu import link_tasks
from graphopt.program.make import _folded
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.target import Target, cuda
from models import randwire, treelstm

Array = npt.NDArray[Any]
ROUNDS, SLOWEST = 20, 4
FOLLOWING = 10  # runs that follow one another
OTHERS: Mapping[str, Callable[[], onnx.ModelProto]] = {"randwire": randwire.build, "treelstm": treelstm.build}
TOLERANCE = 1e-5  # of an output's largest element


@dataclass(frozen=True, slots=True)
class Built:
    """A model compiled for a device: a bundle's files, a feed, what ONNX Runtime makes of it, regions by their run."""

    model: str
    files: dict[str, bytes]
    feeds: dict[str, Array]
    expected: list[Array]
    regions: list[tuple[str, str, int, int]]  # kernel, candidate, blocks, flops
    estimate: float  # microseconds


@dataclass(frozen=True, slots=True)
class Line:
    """One model: items, the largest difference, microseconds of each way by rounds, the slowest regions."""

    items: int
    difference: float
    times: dict[str, list[float]]
    slowest: tuple[str, ...]  # regions, each with its kernel and microseconds


def lowered_for(name: str, target: Target) -> tuple[ir.Model, Lowered]:
    """A model of the zoo or one of `OTHERS`, as it is and in tasks for a GPU."""
    if name in OTHERS:
        return lowered_of(OTHERS[name](), target)
    return lowered_of(models.load(name), target, models.sizes(name))


def lowered_of(
    proto: onnx.ModelProto, target: Target, sizes: Mapping[str, int] | None = None
) -> tuple[ir.Model, Lowered]:  # fmt: skip
    """Any model, its free dims of the given sizes."""
    original, _ = read(proto, None, fix_defaults=True)
    if sizes:
        resize(original, {}, dict(sizes))
    return original, lower(_folded(optimized(original, checked=False)), target)


def built(name: str, processor: str) -> Built:
    """Compile a model, and let ONNX Runtime run it without its optimizations."""
    target = cuda(processor)
    original, lowered = lowered_for(name, target)
    linked = link_tasks(lowered, name)
    draw = np.random.default_rng(0)
    feeds = {
        one.name: (
            draw.standard_normal(one.shape).astype(one.dtype.numpy)
            if one.dtype.is_float
            else draw.integers(0, 2, one.shape).astype(one.dtype.numpy)
        )
        for one in lowered.inputs
    }
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(original).SerializeToString(), options)
    kernels = [region.kernel for region in lowered.regions]
    return Built(
        name, dict(TaskProgram.of(linked, target).files()), feeds, session.run(None, feeds),
        [(one.name, one.candidate, one.blocks, one.flops) for one in kernels], linked.estimate_ns / 1000,
    )  # fmt: skip


def line_of(model: Built, device: Device, rounds: int = ROUNDS) -> Line:
    """Compare a model on the device, and time it."""
    with tempfile.TemporaryDirectory() as folder:
        for file, content in model.files.items():
            (Path(folder) / file).write_bytes(content)
        program = Program(folder, device)
    found = list[Array]()
    for way in program._ways:
        program.way = way
        found += program.run(None, model.feeds)
    difference = max(
        float(np.abs(np.asarray(mine, np.float64) - theirs).max() / max(np.abs(theirs).max(), 1e-30))
        for mine, theirs in zip(found, model.expected * len(program._ways), strict=True)
    )
    slowest = tuple(
        f"{us:.1f} us: {kernel}, {candidate}, {blocks} blocks, {flops / us / 1e3:.0f} Gflop/s"
        for run, us in regions_of(program)[:SLOWEST]
        for kernel, candidate, blocks, flops in (model.regions[run],)
    )
    return Line(program._count, difference, _times(program, rounds), slowest)


def _times(program: Program, rounds: int) -> dict[str, list[float]]:
    """Microseconds by each way, by turns: of runs that follow one another, so that starting them takes no time."""
    stream = program._stream
    timer = Timer(program.device, stream)
    ways: dict[str, Callable[[], None]] = {name: partial(way, stream) for name, way in program._ways.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(timer.of(_following(way)) / FOLLOWING)
    program.check()
    return taken


def _following(way: Callable[[], None]) -> Callable[[], None]:
    def several() -> None:
        for _ in range(FOLLOWING):
            way()

    return several


def regions_of(program: Program, rounds: int = ROUNDS) -> list[tuple[int, float]]:
    """Microseconds of each region alone, the longest first: of one launch among ten in a graph."""
    stream, found = program._stream, list[tuple[int, float]]()
    timer = Timer(program.device, stream)
    for run in program._order:

        def work(run: int = run) -> None:
            for _ in range(10):
                program.alone(run, stream)

        graph = partial(program.device.captured(stream, work), stream)
        graph()
        found.append((run, float(np.median([timer.of(graph) for _ in range(rounds // 6)])) / 10))
    return sorted(found, key=lambda one: -one[1])


def started(pool: Executor, names: Sequence[str], device: Device) -> Mapping[str, Future[Built]]:
    """Begin to compile models for a device in other processes."""
    processor = f"sm_{device.capability[0]}{device.capability[1]}"
    return {name: pool.submit(built, name, processor) for name in names}


def compared(building: Mapping[str, Future[Built]], device: Device) -> bool:
    """Print a line for each model; whether all ran and gave what ONNX Runtime gives."""
    right = True
    for name, model in building.items():
        try:
            known = model.result()
            one = line_of(known, device)
        except Exception as error:  # the others are measured all the same, and the command fails
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
            right = False
            continue
        right &= one.difference <= TOLERANCE
        times = ", ".join(f"{way} {np.median(some):.1f}" for way, some in one.times.items())
        best = min((way for way in one.times if way != "launches"), key=lambda way: float(np.median(one.times[way])))
        low, middle, high = ratio_interval(one.times["launches"], one.times[best])
        print(
            f"{name}: {len(known.regions)} regions, {one.items} items, difference {one.difference:.1e}; "
            f"us: {times}; estimate {known.estimate:.0f}; launches / {best} {middle:.2f} ({low:.2f} to {high:.2f})"
            f"{'' if one.difference <= TOLERANCE else '; NOT EQUAL'}",
            *one.slowest, sep="\n    ", flush=True,
        )  # fmt: skip
    return right


def main(names: Sequence[str]) -> bool:
    """Compile models, and compare them."""
    device = Device()
    print(f"{device.name}: {device.multiprocessors} multiprocessors, capability {device.capability}", flush=True)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # a process that has a GPU does not fork
        return compared(started(pool, names, device), device)


if __name__ == "__main__":
    import sys

    sys.exit(0 if main(sys.argv[1:]) else 1)
