"""Bar 12: how fast the passes are: our optimizer without verification beside the peers that are written in Python.

Each has its own worker process; they run by turns on models of the zoo with more than 300 nodes, from a model in memory
(as the optimizer takes it) to a model in memory, so that no disk is timed. The figure is the median of the pairwise
ratios (peer over ours: above 1 is faster) with a 95 % bootstrap interval.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

import models
from bench.bar import ISSUE, Bar, Sheet
from bench.judge import node_count
from bench.peers import OURS
from bench.script import main
from bench.workers import Worker
from bench.zoo import model_file

PEERS = ("onnxslim", "onnxscript")
LEAST_NODES = 300
ROUNDS = 9
QUICK_ROUNDS = 3
RESAMPLES = 400
NOT_SLOWER = 0.95  # the lower end of an interval that counts as not slower
LIMIT = 300.0  # seconds for one run
FAR_BEHIND = 4.0  # times our seconds

_loaded: dict[str, onnx.ModelProto] = {}


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Ratios of seconds on the zoo's models of more than 300 nodes."""
    names = [name for name in models.names() if node_count(onnx.load(models.path(name))) > LEAST_NODES]
    rows, slower = [], []
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in (OURS, *PEERS)}
        for model in names:
            seconds = _seconds(workers, model, QUICK_ROUNDS if quick else ROUNDS)
            fastest = min(PEERS, key=lambda peer: float(np.median(seconds[peer])))
            pairs = len(seconds[fastest])
            low, middle, high = ratio_interval(seconds[fastest], seconds[OURS][:pairs])
            rows.append((model, *(float(np.median(seconds[name])) for name in workers), fastest, middle, low, high))
            if low < NOT_SLOWER:
                slower.append(model)
    columns = ("model", *(f"{name} s" for name in (OURS, *PEERS)), "fastest peer", "peer / ours", "from", "to")
    sheet.table("speed of the passes, verification apart", columns, rows)
    figure = f"{len(names) - len(slower)} of {len(names)}" + (f" (not: {', '.join(slower)})" if slower else "")
    return [Bar(ISSUE, 12, "passes: not slower than the fastest Python peer", f"{len(names)}", figure, not slower)]


def ratio_interval(first: list[float], second: list[float]) -> tuple[float, float, float]:
    """The median of first / second, pair by pair, between the ends of its interval."""
    ratios = np.array(first) / np.array(second)
    generator = np.random.default_rng(0)
    medians = [np.median(generator.choice(ratios, ratios.size)) for _ in range(RESAMPLES)]
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(np.median(ratios)), float(high)


def _seconds(workers: Mapping[str, Worker], model: str, rounds: int) -> dict[str, list[float]]:
    """The seconds of each optimizer in each round; the first round of all is not counted.

    A peer that takes several times as long as ours in the first counted round is not run again.
    """
    found: dict[str, list[float]] = {name: [] for name in workers}
    left_out: set[str] = set()
    for turn in range(rounds + 1):
        for name, worker in workers.items():
            if name in left_out:
                continue
            reply = worker.call("bench.speed:run", name, str(model_file(model)), limit=LIMIT)
            if reply.kind != "value":
                raise RuntimeError(f"{name} failed on {model}: {reply.text}")
            found[name].append(float(reply.value))
        if turn == 1:
            left_out = {name for name in PEERS if found[name][1] > FAR_BEHIND * found[OURS][1]}
    return {name: seconds[1:] for name, seconds in found.items()}


def run(name: str, source: str) -> float:
    """Inside a worker: the seconds of one run."""
    if source not in _loaded:
        _loaded.clear()
        _loaded[source] = onnx.load(source)
    fresh = onnx.ModelProto()
    fresh.CopyFrom(_loaded[source])
    started = time.perf_counter()
    _RUNNERS[name](fresh)
    return time.perf_counter() - started


def _graphopt(proto: onnx.ModelProto) -> None:
    import graphopt

    graphopt.optimize(proto, verify=False)


def _onnxslim(proto: onnx.ModelProto) -> None:
    import onnxslim

    onnxslim.slim(proto)


def _onnxscript(proto: onnx.ModelProto) -> None:
    import onnx_ir
    import onnxscript.optimizer

    onnxscript.optimizer.optimize(onnx_ir.from_proto(proto))


_RUNNERS = {OURS: _graphopt, "onnxslim": _onnxslim, "onnxscript": _onnxscript}


if __name__ == "__main__":
    main(measure)
