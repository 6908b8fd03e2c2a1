"""Programs of the zoo on a GPU: equal to ONNX Runtime's, and beside one launch for each region with the same kernels.

Microseconds are of the device, by its events: medians of rounds in which all ways take turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

import models
from graphopt.flows.asked import optimized
from graphopt.flows.source import read, resize
from graphopt.program.deploy.cuda.bundle import TaskProgram
from graphopt.program.deploy.cuda.runtime import Device, Program, Timer
from graphopt.program.gpu import link_tasks
from graphopt.program.make import _folded
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.target import Target, cuda

ROUNDS, SLOWEST = 20, 6
FOLLOWING = 10  # runs that follow one another
TOLERANCE = 1e-5  # of an output's largest element


@dataclass(frozen=True, slots=True)
class Line:
    """One model: regions, items, the largest difference, microseconds of each way."""

    model: str
    regions: int
    items: int
    difference: float
    times: dict[str, float]
    slowest: tuple[str, ...]  # regions, each with its kernel and microseconds


def lowered_for(name: str, target: Target) -> tuple[ir.Model, Lowered]:
    """A model of the zoo, as it is and in tasks for a GPU."""
    return lowered_of(models.load(name), target, models.sizes(name))


def lowered_of(
    proto: onnx.ModelProto, target: Target, sizes: Mapping[str, int] | None = None
) -> tuple[ir.Model, Lowered]:  # fmt: skip
    """Any model, its free dims of the given sizes."""
    original, _ = read(proto, None, fix_defaults=True)
    if sizes:
        resize(original, {}, dict(sizes))
    return original, lower(_folded(optimized(original, checked=False)), target)


def line_of(name: str, device: Device, rounds: int = ROUNDS) -> Line:
    """Compile a model for the device, compare it, and time it."""
    target = cuda(f"sm_{device.capability[0]}{device.capability[1]}")
    original, lowered = lowered_for(name, target)
    linked = link_tasks(lowered, name)
    made = TaskProgram.of(linked, target)
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
    expected = session.run(None, feeds)
    with tempfile.TemporaryDirectory() as folder:
        for file, content in made.files().items():
            (Path(folder) / file).write_bytes(content)
        program = Program(folder, device)
    found = program.run(None, feeds)
    difference = max(
        float(np.abs(np.asarray(mine, np.float64) - theirs).max() / max(np.abs(theirs).max(), 1e-30))
        for mine, theirs in zip(found, expected, strict=True)
    )
    slowest = tuple(
        f"{us:.1f} us: {lowered.regions[run].kernel.name}, {lowered.regions[run].kernel.candidate}, "
        f"{lowered.regions[run].kernel.blocks} blocks, {lowered.regions[run].kernel.flops / us / 1e3:.0f} Gflop/s"
        for run, us in regions_of(program)[:SLOWEST]
    )
    times = {"estimate": linked.estimate_ns / 1000, **_times(program, rounds)}
    return Line(name, len(lowered.regions), program._count, difference, times, slowest)


def _times(program: Program, rounds: int) -> dict[str, float]:
    """Microseconds of a run by each way: of runs that follow one another, so that starting them takes no time."""
    stream = program._stream
    timer = Timer(program.device, stream)
    ways: dict[str, Callable[[], None]] = {
        "pinned": lambda: program.pinned(stream),
        "ticketed": lambda: program.ticketed(stream),
        "launches": lambda: program.launches(stream),
        "graph": partial(program.device.captured(stream, lambda: program.launches(stream)), stream),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(timer.of(_following(way)) / FOLLOWING)
    program.check()
    return {name: float(np.median(some)) for name, some in taken.items()}


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


def main(names: list[str]) -> bool:
    """Print a line for each model; whether all ran and gave what ONNX Runtime gives."""
    device, right = Device(), True
    print(f"{device.name}: {device.multiprocessors} multiprocessors, capability {device.capability}", flush=True)
    for name in names:
        begun = time.monotonic()
        try:
            one = line_of(name, device)
        except Exception as error:  # the others are measured all the same, and the command fails
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
            right = False
            continue
        right &= one.difference <= TOLERANCE
        times = ", ".join(f"{way} {value:.1f}" for way, value in one.times.items())
        print(
            f"{name}: {one.regions} regions, {one.items} items, difference {one.difference:.1e}; us: {times}; "
            f"{time.monotonic() - begun:.1f} s{'' if one.difference <= TOLERANCE else '; NOT EQUAL'}",
            *one.slowest, sep="\n    ", flush=True,
        )  # fmt: skip
    return right


if __name__ == "__main__":
    import sys

    sys.exit(0 if main(sys.argv[1:]) else 1)
