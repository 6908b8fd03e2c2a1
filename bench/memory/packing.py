"""Bars of packing: instances that greedy cannot pack under their capacity, and large ones against the live peak.

    python -m bench.memory.packing --data FOLDER

takes from FOLDER the CSV files of MiniMalloc's challenging set, whose names carry the capacity: `A.1048576.csv`. Every
packing passes the independent verifier.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.bar import Bar, Sheet
from bench.memory.instances import cut, structured, uniform
from bench.peers import OURS
from bench.script import main
from memplan.bounds import live_peak
from memplan.compiling import Stopwatch
from memplan.packing.csv_file import read_csv
from memplan.packing.greedy import pack
from memplan.packing.reduced import CannotFit
from memplan.packing.solve import solve
from memplan.problem import MemoryProblem
from memplan.verify.packing import verify

ISSUE = 6
MOST_SECONDS = 10.0  # for one of MiniMalloc's instances
LARGE_WORK, QUICK_WORK = 30_000_000_000, 10_000_000_000  # steps, for a large one
MOST_MEMORY = 2048  # MiB
Kind = Callable[[int, int], MemoryProblem]
KINDS: Mapping[str, tuple[Kind, float]] = {"structured": (structured, 1.01), "uniform": (uniform, 1.05)}
COUNTS, SEEDS = (20_000, 60_000), (1, 2)


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row per instance."""
    return [_hard(sheet, data), _large(sheet, quick=quick)]


def _hard(sheet: Sheet, data: Path | None) -> Bar:
    text, target = "packing: MiniMalloc's challenging instances", f"each in {MOST_SECONDS:.0f} s"
    files = sorted(data.glob("*.csv")) if data is not None else []
    named = [(file, file.stem.rpartition(".")[2]) for file in files]
    problems = [(file.name, read_csv(file).with_capacity(int(last))) for file, last in named if last.isdecimal()]
    own = [(f"cut {seed}", cut(200, seed, dropped=0.2)) for seed in range(6)]
    rows, late = [], []
    for name, problem in [*problems, *own]:
        watch = Stopwatch()
        with watch.running():
            try:
                packing = solve(problem)
            except CannotFit:
                packing = None
            seconds = watch.seconds()
        if packing is not None:
            verify(problem, packing)
        elif (name, problem) in problems:
            late.append(name)
        greedy = pack(problem.with_capacity(None)).arena_size
        rows.append((
            name, len(problem.buffers), problem.capacity, live_peak(problem), greedy,
            packing.arena_size if packing else None, packing.solver if packing else "not found", seconds,
        ))  # fmt: skip
    columns = ("instance", "buffers", "capacity", "live peak", "greedy", "ours", "by", "seconds")
    sheet.table("packing under a capacity", columns, rows)
    if not problems:
        return Bar(ISSUE, 1, text, target, "not measured: pass --data FOLDER with its CSV files", None)
    slowest = max(row[-1] for row in rows[: len(problems)])
    figure = f"{len(problems) - len(late)} of {len(problems)}, {slowest:.2f} s at most"
    return Bar(ISSUE, 1, text, target, figure + (f" (not: {', '.join(late)})" if late else ""), not late)


def _large(sheet: Sheet, *, quick: bool) -> Bar:
    rows, missed = [], []
    worst = dict.fromkeys(KINDS, 0.0)
    for kind, (make, most) in KINDS.items():
        for count in COUNTS[:1] if quick else COUNTS:
            for seed in SEEDS[:1] if quick else SEEDS:
                problem = make(count, seed)
                watch = Stopwatch()
                with watch.running():
                    packing = solve(problem, work=QUICK_WORK if quick else LARGE_WORK)
                    seconds = watch.seconds()
                verify(problem, packing)
                ratio = packing.arena_size / live_peak(problem)
                worst[kind] = max(worst[kind], ratio)
                if ratio > most:
                    missed.append(f"{kind} {count} {seed}")
                rows.append((kind, count, seed, live_peak(problem), packing.arena_size, f"{ratio:.4f}", most,
                             packing.solver, seconds))  # fmt: skip
    columns = ("kind", "buffers", "seed", "live peak", "arena", "ratio", "at most", "by", "seconds")
    sheet.table("large packings, least arena", columns, rows)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    figure = ", ".join(f"{kind} {ratio:.4f}" for kind, ratio in worst.items()) + f", {memory} MiB"
    target = ", ".join(f"{kind} {most}" for kind, (_, most) in KINDS.items()) + ", 60 s, 2 GiB"
    met = not missed and memory <= MOST_MEMORY and max(row[-1] for row in rows) <= 60
    return Bar(ISSUE, 3, "packing: arena by live peak, 20,000 and 60,000 buffers", target, figure, met)


if __name__ == "__main__":
    main(measure)
