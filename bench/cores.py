"""Bars of programs on several cores: beside themselves on one, and beside ONNX Runtime on as many.

Wall-clock, all sides by turns, not pinned: one call after another, and the last of some is read. Speed-ups are medians
of pairwise ratios; the results of one thread and of several are compared in bits. Models below `SHORT` milliseconds
have a line of their own. OpenVINO in float32 is printed beside, where it is installed, and has no bar.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import graphopt
from bench.bar import Bar, Sheet
from bench.kernels.timing import Call, Peer, ratio, unpin
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.program.deploy.benchmark import openvino_side, paired

ISSUE = 18
NAMES = (
    "gru_unrolled", "squeezenet1_1", "mobilenet_v2", "nasnet_a_mobile", "resnet18", "densenet121", "resnet50",
    "vit_s16_legacy", "inception_v3", "unet_own", "swin_tiny", "bert_base",
)  # fmt: skip
THREADS = 2
ROUNDS, QUICK_ROUNDS = 25, 7
SHORT = 2.0  # milliseconds of one thread
SPEEDUP, LEAST, OF_PEERS, BESIDE = 1.75, 1.4, 0.97, 1.3  # what two threads must give
SHORT_LOSS = 1.03


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model."""
    unpin()
    threads = min(THREADS, len(os.sched_getaffinity(0)))
    rows, unequal = [], []
    for name in NAMES[:4] if quick else NAMES:
        compiled = graphopt.compile(model_file(name), threads=threads)
        several, linked = compiled.program, compiled.linked
        alone = several.another(threads=1)
        feed = {
            key: np.asarray(value)
            for key, value in make_feed(inputs_of(graphopt.load(model_file(name))), {}, "normal").items()
        }
        pairs = zip(several.run(None, feed), alone.run(None, feed), strict=True)
        if any(one.tobytes() != other.tobytes() for one, other in pairs):
            unequal.append(name)
        source = model_file(name).read_bytes()
        sides: dict[str, Call] = {
            "one": alone.bind(feed), "several": several.bind(feed), "peer": Peer(source, feed),
            "peers": Peer(source, feed, threads=threads),
        }  # fmt: skip
        if find_spec("openvino") is not None:
            sides["openvino"] = openvino_side(source, feed, threads).call
        taken = by_name(sides, QUICK_ROUNDS if quick else ROUNDS)
        own, theirs = ratio(taken["one"], taken["several"]), ratio(taken["peer"], taken["peers"])
        beside = ratio(taken["peers"], taken["several"])
        other = ratio(taken["openvino"], taken["several"]).median if "openvino" in taken else "not installed"
        arena, shared = linked.listing.arena_bytes, linked.listing.ticketed
        rows.append((
            name, 1e3 * float(np.median(taken["one"])), own.median, own.low, own.high, theirs.median, beside.median,
            beside.low, beside.high, arena, "one worker" if shared is None else shared.arena_bytes, other,
        ))  # fmt: skip
    columns = ("model", "ms, 1 thread", "speed-up", "from", "to", "ORT's own", "ORT / ours", "from", "to", "arena",
               "arena of several", "OpenVINO / ours")  # fmt: skip
    sheet.table(f"{threads} threads, batch 1, float32 on both sides, wall-clock", columns, rows)
    long = [row for row in rows if row[1] >= SHORT]
    short = [row for row in rows if row[1] < SHORT]
    speedup, peers, beside_peers = (_mean([float(row[place]) for row in long]) for place in (2, 5, 6))
    least = min(row[4] for row in long)
    slow = [row[0] for row in short if row[4] < 1 / SHORT_LOSS]
    met = speedup >= SPEEDUP and speedup >= OF_PEERS * peers and least >= LEAST and beside_peers >= BESIDE
    figure = f"{speedup:.2f} (ONNX Runtime's own {peers:.2f}), least {least:.2f}, beside it {beside_peers:.2f}"
    wanted = f"{SPEEDUP}, {OF_PEERS} of ONNX Runtime's own, none below {LEAST}, beside it {BESIDE}"
    return [
        Bar(ISSUE, 2, f"{threads} threads, models above {SHORT:g} ms", wanted, figure, met),
        Bar(ISSUE, 3, f"{threads} threads, models below", "none slower by 3 %", f"slower: {slow or 'none'}", not slow),
        Bar(ISSUE, 4, "the same bits on any number of threads", "all", f"other bits: {unequal or 'none'}", not unequal),
    ]  # fmt: skip


def by_name(sides: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of wall-clock of a call of each side, by turns, behind others that warm it."""
    return dict(zip(sides, paired(list(sides.values()), rounds), strict=True))


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


if __name__ == "__main__":
    main(measure)
