"""Bar 7 of the kernels: whether the estimate chooses well without measuring, on matrix products drawn at random.

Every shape's likeliest candidates are measured with cold weights, by turns. Two figures: how often the chosen one is
within 10 % of the best one, and the rank correlation of predicted and measured times over all of them.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from bench.bar import Bar, Sheet
from bench.kernels.cold import measure_candidates
from bench.kernels.timing import pin
from bench.peers import OURS
from bench.script import main
from kernels.target import host
from kernels.templates.gemm import GEMM, Gemm, estimate

ISSUE = 4
DRAWN, QUICK_DRAWN = 200, 25
TRIED = 6
NEAR, OFTEN, RANKS = 1.1, 0.9, 0.8
ROUNDS = 7


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Shapes with dims from 1 to 1,448, 20 thousand to 200 million operations."""
    pin()
    target, generator = host(), random.Random(0)
    near, within, predicted, taken, rows = 0, [], [], [], []
    count = QUICK_DRAWN if quick else DRAWN
    for _ in range(count):
        problem = _drawn(generator)
        tried = GEMM.candidates(problem, target)[:TRIED]
        seconds = measure_candidates(GEMM, problem, tried, target, rounds=ROUNDS)
        guesses = [estimate(problem, one, target) for one in tried]
        share = seconds[0] / min(seconds)
        near += share <= NEAR
        predicted += guesses
        taken += seconds
        if len(tried) > 2:
            within.append(_ranks(guesses, seconds))
        best = tried[int(np.argmin(seconds))]
        rows.append((f"{problem.rows}x{problem.columns}x{problem.depth}", str(tried[0]), share, str(best)))
    rows.sort(key=lambda row: -row[2])
    sheet.table(
        f"the {len(rows) // 10} worst choices", ("product", "chosen", "chosen / best", "best"), rows[: count // 10]
    )
    ranks = _ranks(predicted, taken)
    sheet.table(
        "rank correlation of predicted and measured", ("over", "Spearman"),
        [("all candidates of all shapes", ranks), ("the candidates of one shape, mean", float(np.mean(within)))],
    )  # fmt: skip
    figure = f"{near} of {count}, Spearman {ranks:.2f}"
    met = near >= OFTEN * count and ranks >= RANKS
    return [Bar(ISSUE, 7, "chosen within 10 % of the best", f"{OFTEN:.0%}, Spearman {RANKS}", figure, met)]


def _drawn(generator: random.Random) -> Gemm:
    while True:
        rows, columns, depth = (int(2 ** generator.uniform(0, 10.5)) for _ in range(3))
        if 2e4 <= 2 * rows * columns * depth <= 2e8:
            return Gemm(rows, columns, depth)


def _ranks(left: list[float], right: list[float]) -> float:
    """Spearman's coefficient; there are no ties among measured times."""
    first, second = (np.argsort(np.argsort(one)) for one in (left, right))
    return float(np.corrcoef(first, second)[0, 1])


if __name__ == "__main__":
    main(measure)
