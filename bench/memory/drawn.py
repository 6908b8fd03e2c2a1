"""Packings of many thousand buffers that are drawn anew: the arena beside the live peak and the plainest greedies.

    python -m bench.memory.drawn

The plainest greedies are other people's: by falling size, by start and by falling lifetime, equal ones as they are
given, each in the tightest and in the lowest hole.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.bar import Bar, Sheet
from bench.memory.instances import layered, structured, training, uniform
from bench.peers import OURS
from bench.script import main
from memplan.bounds import live_peak
from memplan.compiling import Stopwatch
from memplan.packing.greedy import PLAIN, greedy
from memplan.packing.reduced import reduce
from memplan.packing.solve import solve
from memplan.problem import MemoryProblem
from memplan.verify.packing import verify

ISSUE = 6
COUNT, SEEDS, QUICK_SEEDS = 20_000, 5, 1
MOST = 1.01  # times the live peak
KINDS: Mapping[str, Callable[[int, int], MemoryProblem]] = {
    "structured": structured,
    "training": training,
    "layered": layered,
    "uniform": uniform,
}


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per instance; seeds are drawn anew each time and printed."""
    rows, ratios, missed = [], [], []
    for kind, make in KINDS.items():
        for _ in range(QUICK_SEEDS if quick else SEEDS):
            seed = random.SystemRandom().randrange(10**6)
            problem = make(COUNT, seed)
            peak = live_peak(problem)
            watch = Stopwatch()
            with watch.running():
                packing = solve(problem)
                seconds = watch.seconds()
            verify(problem, packing)
            reduced = reduce(problem)
            plain = min(placed.height for placed in greedy(reduced, PLAIN)) * reduced.unit
            ratio = packing.arena_size / peak
            rows.append((kind, seed, len(problem.buffers), peak, plain, packing.arena_size, f"{plain / peak:.4f}",
                         f"{ratio:.4f}", packing.solver, packing.limited or "", seconds))  # fmt: skip
            ratios.append(ratio)
            if packing.arena_size > min(plain, MOST * peak):
                missed.append(f"{kind} {seed}")
    columns = ("kind", "seed", "buffers", "live peak", "plain greedy", "arena", "plain", "ratio", "by", "ended by", "s")
    sheet.table("packings drawn anew", columns, rows)
    figure = f"worst {max(ratios):.4f}, {len(ratios) - len(missed)} of {len(ratios)}"
    figure += f" (not: {', '.join(missed)})" if missed else ""
    target = f"at most {MOST} x the live peak and the plainest greedy"
    return [Bar(ISSUE, 10, "packing: graphs of 20,000 buffers drawn anew", target, figure, not missed)]


if __name__ == "__main__":
    main(measure)
