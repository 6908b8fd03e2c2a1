"""How fast ONNX Runtime runs models of the zoo before and after: no bar yet, but nobody shall be slowed down.

Both at ONNX Runtime's full optimization, fp32, one thread, run by turns; the figure is the median of pairwise ratios
(original over optimized: above 1 is faster) with a 95 % bootstrap interval. To be pinned:
`taskset -c 1 python -m bench.latency`.
"""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
import onnx
import onnxruntime
import typer

import graphopt
import models
from bench.bar import Sheet, console
from bench.feeds import Feed, working_feeds

NAMES = (
    "swin_tiny",
    "bert_base",
    "vit_s16_legacy",
    "clip_text",
    "t5_small_encoder",
    "gpt2_kv_dyn",
    "resnet50",
    "convnext_tiny",
)
ROUNDS = 40
RESAMPLES = 400


def latency(
    names: Annotated[list[str] | None, typer.Argument(help="Models of the zoo.")] = None,
    level: Annotated[int, typer.Option(min=0, max=3, help="graphopt's level.")] = 2,
    skip: Annotated[list[str] | None, typer.Option(help="Passes to leave out.")] = None,
) -> None:
    """Print the ratio of latencies, original over optimized, for each model."""
    rows = []
    for name in names or NAMES:
        original = models.load(name)
        optimized = graphopt.optimize(original, verify=False, level=level, skip=skip or ()).to_proto()
        low, median, high = _ratio(original, optimized)
        rows.append((name, len(original.graph.node), len(optimized.graph.node), median, low, high))
    columns = ("model", "nodes", "after", "original / optimized", "from", "to")
    Sheet(console()).table(f"latency in ONNX Runtime, level {level}", columns, rows)


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _runs(session: onnxruntime.InferenceSession, feed: Feed) -> bool:
    try:
        session.run(None, feed)
    except Exception:  # ONNX Runtime's errors share no base class; another feed is tried
        return False
    return True


def _ratio(original: onnx.ModelProto, optimized: onnx.ModelProto) -> tuple[float, float, float]:
    """The median of the pairwise ratios between the ends of its interval."""
    first, second = _session(original), _session(optimized)
    feed = working_feeds(original, lambda feed: _runs(first, feed))[0]
    ratios = np.array([_seconds(first, feed) / _seconds(second, feed) for _ in range(ROUNDS + 2)][2:])
    generator = np.random.default_rng(0)
    medians = [np.median(generator.choice(ratios, ratios.size)) for _ in range(RESAMPLES)]
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(np.median(ratios)), float(high)


def _seconds(session: onnxruntime.InferenceSession, feed: Feed) -> float:
    started = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - started


if __name__ == "__main__":
    typer.run(latency)
