"""Bar 13: latency in ONNX Runtime: what `--target ort` writes against the original file.

Both at ONNX Runtime's full optimization with one thread, in one process, run by turns; each side goes first in every
other pair. The figure of a model is the median of the pairwise ratios (original over optimized: above 1 is faster)
with a 95 % bootstrap interval; small models are run several times per reading, and every model in several sessions.
Time is that of the one thread that computes, so that other work on the machine is not counted. Both sides compute in
the precision of the file, which the table names. The process keeps to one core where the system lets it.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import TensorProto

import graphopt
import models
from bench.bar import ISSUE, Bar, Sheet, console
from bench.feeds import Feed, taken, working_feeds
from bench.peers import OURS
from graphopt.passes.pipeline import Target

MEAN_WANTED = 1.05  # geometric mean over the zoo
LEAST_WANTED = 0.97  # of every model
SECONDS = 6.0  # per model
QUICK_SECONDS = 1.5
SESSIONS = 6  # of each side; where a session's weights come to lie in memory can make one of two equal ones faster
FEWEST, MOST = 3, 500  # pairs for each pair of sessions
READING = 1e-3  # seconds that one reading shall at least take
RESAMPLES = 400
SHORT = {
    TensorProto.FLOAT: "fp32",
    TensorProto.FLOAT16: "fp16",
    TensorProto.DOUBLE: "fp64",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
}

COLUMNS = (
    "model", "precision", "precision after", "nodes", "after", "ms", "original / optimized", "from", "to", "pairs",
)  # fmt: skip

Row = tuple[str, str, str, int, int, float, float, float, float, int]
Session: TypeAlias = onnxruntime.InferenceSession
Ratio = tuple[float, float, float]  # the median between the ends of its interval


def ort_latency(
    names: Annotated[list[str] | None, typer.Argument(help="Models of the zoo; all, if none is named.")] = None,
    target: Annotated[Target, typer.Option(help="graphopt's target.")] = "ort",
    level: Annotated[int, typer.Option(min=0, max=3, help="graphopt's level.")] = 2,
    skip: Annotated[list[str] | None, typer.Option(help="Passes and rules to leave out.")] = None,
    against_skip: Annotated[
        list[str] | None, typer.Option(help="Compare with graphopt's own output without these, not with the original.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time for the readings of one model.")] = SECONDS,
    json: Annotated[Path | None, typer.Option(help="Write the table to this file too.")] = None,
) -> None:
    """Print the ratio of latencies, original over optimized, for each model, and the bars."""
    rows = measured(names or models.names(), seconds, target, level, skip or (), against_skip)
    sheet = Sheet(console())
    title = f"latency in ONNX Runtime {onnxruntime.__version__}, one thread, target {target}, level {level}"
    sheet.table(title, COLUMNS, rows)
    bars = _bars({row[0]: row[6] for row in rows})
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Latency of what `--target ort` writes against the original file, over the zoo."""
    rows = measured(models.names(), QUICK_SECONDS if quick else SECONDS)
    sheet.table(f"latency in ONNX Runtime {onnxruntime.__version__}, one thread, target ort", COLUMNS, rows)
    return _bars({row[0]: row[6] for row in rows})


def measured(
    names: Sequence[str],
    seconds: float,
    target: Target = "ort",
    level: int = 2,
    skip: Sequence[str] = (),
    against_skip: Sequence[str] | None = None,
) -> list[Row]:
    """One row for each model, measured on one core."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    if cores:
        os.sched_setaffinity(0, {max(cores)})
    try:
        return list(_rows(names, seconds, target, level, skip, against_skip))
    finally:
        if cores:
            os.sched_setaffinity(0, cores)


def _rows(
    names: Sequence[str],
    seconds: float,
    target: Target,
    level: int,
    skip: Sequence[str],
    against_skip: Sequence[str] | None,
) -> Iterator[Row]:
    for name in names:
        original = models.load(name)
        optimized = _optimize(original, target, level, skip)
        base = original if against_skip is None else _optimize(original, target, level, (*skip, *against_skip))
        (low, median, high), pairs, milliseconds = ratio(original, base, optimized, seconds)
        before, after = len(base.graph.node), len(optimized.graph.node)
        yield (name, _precision(base), _precision(optimized), before, after, milliseconds, median, low, high, pairs)


def _optimize(model: onnx.ModelProto, target: Target, level: int, skip: Sequence[str]) -> onnx.ModelProto:
    # Unverified: bench/judge.py checks the same outputs elsewhere, and here only time is measured.
    return graphopt.optimize(model, verify=False, level=level, skip=skip, target=target).to_proto()


def _bars(ratios: dict[str, float]) -> list[Bar]:
    mean = math.exp(float(np.mean(np.log(list(ratios.values())))))
    slow = [f"{name} {ratio:.3f}" for name, ratio in ratios.items() if ratio < LEAST_WANTED]
    least = min(ratios, key=lambda name: ratios[name])
    text = ", ".join(slow) if slow else f"{least} {ratios[least]:.3f}"
    return [
        Bar(
            ISSUE, 13, "latency: geometric mean of the ratios", f">= {MEAN_WANTED}", f"{mean:.3f}", mean >= MEAN_WANTED
        ),
        Bar(ISSUE, 13, "latency: no model is slower", f">= {LEAST_WANTED}", text, not slow),
    ]


def _precision(model: onnx.ModelProto) -> str:
    """The element types of most of the weights, by elements."""
    counted: Counter[str] = Counter()
    for tensor in model.graph.initializer:
        if tensor.data_type in SHORT:
            counted[SHORT[tensor.data_type]] += math.prod(tensor.dims)
    total = sum(counted.values())
    return "+".join(sorted(kind for kind, count in counted.items() if count > total / 100)) or "fp32"


def _session(file: bytes) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def ratio(
    described: onnx.ModelProto, base: onnx.ModelProto, optimized: onnx.ModelProto, seconds: float
) -> tuple[Ratio, int, float]:
    """The ratio of base over optimized, the number of pairs, and the milliseconds that the base takes."""
    files = base.SerializeToString(), optimized.SerializeToString()
    feed: Feed | None = None
    pairs: list[tuple[float, float]] = []
    for turn in range(SESSIONS):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        both = {place: _session(files[place]) for place in order}
        if feed is None:
            feed = _feed(described, both[0])
        pairs += _pairs(both[0], both[1], feed, seconds / SESSIONS)
    readings = np.array(pairs)
    ratios = readings[:, 0] / readings[:, 1]
    generator = np.random.default_rng(0)
    medians = np.median(generator.choice(ratios, (RESAMPLES, ratios.size)), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return (float(low), float(np.median(ratios)), float(high)), len(pairs), float(np.median(readings[:, 0])) * 1e3


def _feed(described: onnx.ModelProto, session: Session) -> Feed:
    return working_feeds(described, lambda feed: taken(session, feed))[0]


def _pairs(first: Session, second: Session, feed: Feed, seconds: float) -> list[tuple[float, float]]:
    """Seconds of one run of each, by turns; a reading of a small model is the mean of several runs."""
    for session in (first, second):
        _seconds(session, feed, 2)
    repeats = max(1, math.ceil(READING / min(_seconds(first, feed, 1) for _ in range(5))))
    pairs: list[tuple[float, float]] = []
    deadline = time.perf_counter() + seconds
    while len(pairs) < FEWEST or (time.perf_counter() < deadline and len(pairs) < MOST):
        if len(pairs) % 2:
            after = _seconds(second, feed, repeats)
            pairs.append((_seconds(first, feed, repeats), after))
        else:
            before = _seconds(first, feed, repeats)
            pairs.append((before, _seconds(second, feed, repeats)))
    return pairs


def _seconds(session: Session, feed: Feed, repeats: int) -> float:
    """What the thread that computes takes: on an idle machine that is the latency, on a busy one it still is."""
    started = time.thread_time()
    for _ in range(repeats):
        session.run(None, feed)
    return (time.thread_time() - started) / repeats


if __name__ == "__main__":
    typer.run(ort_latency)
