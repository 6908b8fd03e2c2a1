"""Bar 10: the unrolled GRU of the zoo becomes operators, and ONNX Runtime runs it faster.

Both at ONNX Runtime's full optimization, one thread, fp32 on both sides, run by turns; the gain counts when the lower
end of the interval reaches the target.
"""

from __future__ import annotations

from pathlib import Path

import graphopt
import models
from bench.bar import ISSUE, Bar, Sheet
from bench.ort_latency import ratio
from bench.peers import OURS
from bench.script import main

MODEL = "gru_unrolled"
MOST_NODES = 120
LEAST_GAIN = 1.5
SECONDS = 6.0
QUICK_SECONDS = 2.0


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Nodes, and the ratio of latencies, of the unrolled GRU."""
    original = models.load(MODEL)
    result = graphopt.optimize(original)
    (low, median, high), pairs, _ = ratio(original, original, result.to_proto(), QUICK_SECONDS if quick else SECONDS)
    sheet.table(
        "the unrolled GRU",
        ("model", "nodes", "after", "verification", "original / optimized", "from", "to", "pairs"),
        [(MODEL, result.before.nodes, result.after.nodes, result.verification.status, median, low, high, pairs)],
    )
    right = result.verification.passed and not result.rolled_back
    return [
        Bar(ISSUE, 10, f"{MODEL}: nodes", f"<= {MOST_NODES}", f"{result.after.nodes}",
            right and result.after.nodes <= MOST_NODES),
        Bar(ISSUE, 10, f"{MODEL}: faster in ONNX Runtime, fp32", f">= {LEAST_GAIN}", f"{low:.2f} to {high:.2f}",
            low >= LEAST_GAIN),
    ]  # fmt: skip


if __name__ == "__main__":
    main(measure)
