"""Bar 6 of the kernels: two threads beside ONNX Runtime's two, on an idle machine and with two busy processes beside.

Wall time, as seen by the caller. Idle, the medians are compared; beside busy processes the 25th percentiles, where a
pool that waits for a descheduled thread shows.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import helper

import graphopt
from bench.bar import Bar, Sheet
from bench.kernels.timing import Peer, model, unpin
from bench.peers import OURS
from bench.script import main

ISSUE = 4
SHAPES = ((128, 128, 128), (512, 512, 512), (128, 768, 768), (128, 3072, 768), (16, 1024, 1024))
THREADS = 2
SECONDS, QUICK_SECONDS = 2.0, 0.5
NOT_SLOWER = 0.95
PAUSE, WARM, STRETCH = 0.05, 5, 20  # seconds, calls, calls


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """ONNX Runtime / ours at p50 idle, at p25 beside two busy processes; float32 on both sides."""
    unpin()
    seconds = QUICK_SECONDS if quick else SECONDS
    rows, missed = [], []
    for shape in SHAPES:
        idle = _compare(shape, seconds, 50)
        with _Busy(THREADS):
            loaded = _compare(shape, seconds, 25)
        name = "x".join(map(str, shape))
        rows.append((name, idle, loaded))
        missed += [f"{name} {what}" for what, found in (("idle", idle), ("loaded", loaded)) if found < NOT_SLOWER]
    sheet.table("two threads, ONNX Runtime / ours", ("product", "idle, p50", "loaded, p25"), rows)
    figure = f"{2 * len(SHAPES) - len(missed)} of {2 * len(SHAPES)}" + (
        f" (not: {', '.join(missed)})" if missed else ""
    )
    return [Bar(ISSUE, 6, "two threads not slower", "idle p50, loaded p25", figure, not missed)]


def _compare(shape: tuple[int, int, int], seconds: float, percentile: int) -> float:
    rows, columns, depth = shape
    generator = np.random.default_rng(0)
    a = generator.standard_normal((rows, depth)).astype(np.float32)
    b = generator.standard_normal((depth, columns)).astype(np.float32)
    product = model([helper.make_node("MatMul", ["a", "b"], ["c"])], {"a": a}, ["c"], {"b": b})
    peer = Peer(product, {"a": a}, threads=THREADS)
    program = graphopt.compile(product, threads=THREADS).program
    theirs, ours = _by_turns(peer, program.bind({"a": a}), seconds)
    return float(np.percentile(theirs, percentile) / np.percentile(ours, percentile))


def _by_turns(
    first: Callable[[], object], second: Callable[[], object], seconds: float
) -> tuple[list[float], list[float]]:
    """Wall times of single calls, in stretches by turns.

    Before a stretch the other side's workers get the time to stop spinning, and its own are woken by a few calls.
    """
    found: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for call, times in zip((first, second), found, strict=True):
            time.sleep(PAUSE)
            for _ in range(WARM):
                call()
            for _ in range(STRETCH):
                started = time.perf_counter()
                call()
                times.append(time.perf_counter() - started)
    return found


class _Busy:
    """Processes that do nothing but run."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._others = [context.Process(target=_spin, daemon=True) for _ in range(count)]

    def __enter__(self) -> None:
        for other in self._others:
            other.start()
        time.sleep(1.0)  # until they have started

    def __exit__(self, *_: object) -> None:
        for other in self._others:
            other.kill()
            other.join()


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main(measure)
