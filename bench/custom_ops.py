"""Custom operators beside the models that they were made of, both in stock sessions of ONNX Runtime.

Ten named models, and one with a region that stays ONNX Runtime's own, as the command line compiles them: by this
machine's record, kernels measured for 3 s. One thread in CPU time, pinned, inputs and outputs bound, all optimizations
of ONNX Runtime on both sides. A ratio is the median of pairs with its 95 % bootstrap interval. Then eight threads run
one session, whose results are compared, and a session runs `RUNS` times, of which memory in use is read.
"""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.judge import difference
from bench.kernels.timing import Array, Peer, Ratio, pin, ratio, readings, unpin
from bench.native import feed_of
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.program.deploy.custom.operators import opened

ISSUE = 21
NAMES = (
    "resnet18", "resnet50", "mobilenet_v2", "densenet121", "swin_tiny", "bert_base", "vit_s16_legacy", "gpt2_dyn",
    "lstm_bi_op", "unet_own",
)  # fmt: skip
LEFT = "resnet18, a region left"
TUNE = 3.0  # seconds
ROUNDS, QUICK_ROUNDS = 15, 5
THREADS, RUNS = 8, 10_000
LEAST, MEAN = 0.98, 1.15  # of ONNX Runtime's time over that with custom operators: everywhere, geometric mean
SAME = 1e-3  # the largest difference as bench.judge reads it: float32 sums in another order
LEAK = 1 << 20  # bytes that memory may move in RUNS


@dataclass(frozen=True, slots=True)
class Line:
    """One model: milliseconds with custom operators, ONNX Runtime's time over that, the largest difference."""

    model: str
    left: tuple[str, ...]
    ms: float
    ratio: Ratio
    difference: float


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model."""
    names = (*NAMES[::3], LEFT) if quick else (*NAMES, LEFT)
    lines = [line_of(name, QUICK_ROUNDS if quick else ROUNDS) for name in names]
    sheet.table(
        "custom operators, batch 1, float32, one thread",
        ("model", "left to ONNX Runtime", "ms", "ONNX Runtime / ours", "from", "to", "difference"),
        [
            (one.model, ", ".join(one.left) or "nothing", one.ms, one.ratio.median, one.ratio.low, one.ratio.high,
             f"{one.difference:.0e}") for one in lines
        ],
    )  # fmt: skip
    return [*bars_of(lines), *held(sheet, "lstm_bi_op", RUNS // 10 if quick else RUNS)]


def bars_of(lines: Sequence[Line]) -> list[Bar]:
    """Speed and equality of all models."""
    mean = math.exp(sum(math.log(one.ratio.median) for one in lines) / len(lines))
    slow = [one.model for one in lines if one.ratio.high < LEAST]
    wrong = [one.model for one in lines if not one.difference <= SAME]
    wanted = f"{LEAST} everywhere, {MEAN} on the geometric mean"
    figure = f"{mean:.2f}; below {LEAST}: {', '.join(slow) or 'none'}"
    return [
        Bar(ISSUE, 5, "custom operators beside ONNX Runtime", wanted, figure, mean >= MEAN and not slow),
        Bar(ISSUE, 5, "the same results", "all", f"others: {', '.join(wrong) or 'none'}", not wrong),
    ]


def line_of(name: str, rounds: int) -> Line:
    """A model, compiled and measured."""
    unpin()
    source, model = (model_file("resnet18"), "resnet18") if name == LEFT else (model_file(name), name)
    feed = feed_of(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "source.onnx"
        onnx.save(with_a_sequence(onnx.load(source)) if name == LEFT else onnx.load(source), path)
        compiled = graphopt.compile(
            path, dims=models.sizes(model), form="onnxruntime", name="model", machine=graphopt.machine(), tune=TUNE,
            threads=1,
        )  # fmt: skip
        compiled.save(Path(folder) / "out")
        plain = Peer(str(path), feed)
        ours = Peer(f"{folder}/out/model.onnx", feed, library=f"{folder}/out/libmodel.so")
        away = max(difference(one, other) for one, other in zip(plain.outputs, ours.outputs, strict=True))
        pin()
        taken = readings({"plain": plain, "ours": ours}, rounds)
    ms = 1e3 * float(np.median(taken["ours"]))
    return Line(name, compiled.fallback, ms, ratio(taken["plain"], taken["ours"]), away)


def with_a_sequence(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a value in its middle cut into a sequence and put together again, which no kernel does."""
    nodes = model.graph.node
    middle = next(number for number, node in enumerate(nodes) if number >= len(nodes) // 2 and node.op_type == "Relu")
    value = nodes[middle].output[0]
    for node in nodes[middle + 1 :]:
        for place, read in enumerate(node.input):
            if read == value:
                node.input[place] = f"{value}.again"
    dims = [
        dim.dim_value for one in model.graph.value_info if one.name == value for dim in one.type.tensor_type.shape.dim
    ]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(dims, np.int64), f"{value}.dims"))
    added = (
        helper.make_node("SplitToSequence", [value], [f"{value}.parts"], axis=1),
        helper.make_node("ConcatFromSequence", [f"{value}.parts"], [f"{value}.joined"], axis=1),
        helper.make_node("Reshape", [f"{value}.joined", f"{value}.dims"], [f"{value}.again"]),
    )
    for number, node in enumerate(added, middle + 1):
        nodes.insert(number, node)
    return model


def held(sheet: Sheet, name: str, runs: int) -> list[Bar]:
    """Eight threads on one session, and memory: of a session, over many runs, and over many sessions."""
    unpin()
    feed = feed_of(name)
    with tempfile.TemporaryDirectory() as folder:
        compiled = graphopt.compile(
            model_file(name), dims=models.sizes(name), form="onnxruntime", name="model", threads=1
        )
        compiled.save(Path(folder) / "out")
        (linked,) = compiled.programs
        listing = linked.listing
        del compiled  # and its session
        gc.collect()
        before = resident()
        session = opened(Path(folder) / "out", "model")
        alone = session.run(None, feed)
        sheet.table(
            "what a session holds, in bytes", ("model", "weights", "arena", "scratch", "resident"),
            [(name, listing.weights_bytes, listing.arena_bytes, listing.scratch_bytes, resident() - before)],
        )  # fmt: skip

        def same(_: int) -> bool:
            return all(_equal(session.run(None, feed), alone) for _ in range(runs // THREADS // 10))

        with ThreadPoolExecutor(THREADS) as threads:
            equal = all(threads.map(same, range(THREADS)))
        before = own()
        for _ in range(runs):
            session.run(None, feed)
        grown = own() - before
        before = own()
        for _ in range(runs // 100):
            opened(Path(folder) / "out", "model").run(None, feed)
        sessions = own() - before
    leak = f"{grown:,} bytes; {sessions:,} over {runs // 100} sessions"
    return [
        Bar(ISSUE, 5, f"{THREADS} threads on one session", "equal", "equal" if equal else "not", equal),
        Bar(ISSUE, 5, f"memory over {runs:,} runs", f"{LEAK:,} bytes", leak, max(grown, sessions) <= LEAK),
    ]


def _equal(found: Sequence[Array], wanted: Sequence[Array]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def own() -> int:
    """Bytes of this process in memory that no file has: pages of the weights' file come and go."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main(measure)
