"""Bars of the native programs: which models of the zoo compile whole, how fast they run, how long compiling takes.

Latency is that of the program alone against ONNX Runtime with everything bound: batch 1, float32, one thread, by turns,
in CPU time. Every model is compared with ONNX Runtime without optimizations when it is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import graphopt
from bench.bar import Bar, Sheet
from bench.kernels.timing import Peer, Ratio, pin, ratio, readings
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.program.deploy.compiled import Compiled

ISSUE = 5
ROUNDS, QUICK_ROUNDS = 15, 5
# By model of the zoo: how many times faster than ONNX Runtime it must be.
WANTED: Mapping[str, float] = {
    "mlp_tiny": 2.3, "dscnn_kws": 0.98, "squeezenet1_1": 0.98, "resnet18": 1.4, "resnet50": 1.08, "mobilenet_v2": 1.08,
    "unet_own": 1.4, "bert_base": 1.15, "vit_s16_legacy": 0.98, "gru_op": 0.98, "lstm_bi_op": 0.98,
}  # fmt: skip
MOST_SECONDS: Mapping[str, float] = {"resnet50": 10.0, "bert_base": 15.0}


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per model."""
    pin()
    rows, slow, late = [], [], []
    for name, wanted in WANTED.items():
        program = graphopt.compile(model_file(name))
        found = _latency(name, program, QUICK_ROUNDS if quick else ROUNDS)
        if found.high < wanted:
            slow.append(name)
        if program.seconds > MOST_SECONDS.get(name, float("inf")):
            late.append(name)
        plan = program.linked.plan
        rows.append((
            name, len(program.lowered.regions), found.median, found.low, found.high, wanted, program.seconds,
            plan.arena_size, plan.lower_bound, f"{program.max_rel:.1e}",
        ))  # fmt: skip
    columns = ("model", "regions", "ORT / ours", "from", "to", "wanted", "compile s", "arena", "bound", "max rel")
    sheet.table("native programs, batch 1, float32 on both sides, one thread", columns, rows)
    total = len(WANTED)
    missed = f" (not: {', '.join(slow)})" if slow else ""
    times = ", ".join(f"{name} {row[6]:.1f} s" for name in MOST_SECONDS for row in rows if row[0] == name)
    return [
        Bar(ISSUE, 1, "programs: compiled whole and equal", f"{total}", f"{len(rows)}", len(rows) == total),
        Bar(ISSUE, 2, "programs: latency", "each as listed", f"{total - len(slow)} of {total}{missed}", not slow),
        Bar(ISSUE, 4, "programs: compile time", "10 s, 15 s", times, not late),
    ]  # fmt: skip


def _latency(name: str, program: Compiled, rounds: int) -> Ratio:
    """Both sides on the same feed, Python outside of the loop on neither: one call each."""
    original = graphopt.load(model_file(name))
    feed = {key: np.asarray(value) for key, value in make_feed(inputs_of(original), {}, "normal").items()}
    peer = Peer(model_file(name).read_bytes(), feed)
    taken = readings({"peer": peer, "ours": program.program.bind(feed)}, rounds)
    return ratio(taken["peer"], taken["ours"])


if __name__ == "__main__":
    main(measure)
