"""Recomputation: Chen's network of a thousand layers, layered graphs, Checkmate's, the front of peak against time.

Everything is planned by `memplan.remat` and checked by `memplan.verify.sequence`; compiling the loops is not counted.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.bar import Bar, Sheet
from bench.memory.checkmate import NETWORKS, checkmate_graph
from bench.memory.layered import layered_graph
from bench.peers import OURS
from bench.script import main
from memplan.graph import Graph
from memplan.remat import BudgetTooSmall, Recomputed, pareto, recompute
from memplan.verify.sequence import verify_sequence
from models.training import resnet

ISSUE = 6
GIB = 2**30
CHEN_BUDGET, CHEN_EXTRA, CHEN_SECONDS = 7 * GIB - 1, 30.0, 10.0
CHEN_WORK = 6_000_000_000  # steps that the planner is given
# Operators, mean width of a layer: about as many edges as in Moccasin's graphs of these sizes.
LAYERED = ((250, 14.0), (1_000, 23.0))
SEEDS, QUICK_SEEDS = 3, 1
MOST_EXTRA = {0.9: 1.0, 0.8: 6.0}  # percent
SMALL, MOST_SMALL, MOST_LARGE = 400, 0.2, 1.0  # operators; percent of both kinds of graphs at both budgets
LAYERED_WORK, QUICK_WORK = 120_000_000_000, 30_000_000_000

Extra = tuple[str, int, float | None]  # what it is, operators, percent of time; None where the budget was not kept


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Peaks, extra time and planning time."""
    small = resnet([1, 1], 1, 32).training()
    recompute(small, int(0.8 * verify_sequence(small, _given(small))))  # compiles
    layered, extras = _layered(sheet, quick)
    return [_chen(sheet, quick), layered, _both(extras + _checkmate(sheet, quick))]


def _given(graph: Graph) -> list[str]:
    return [operator.name for operator in graph.operators]


def _chen(sheet: Sheet, quick: bool) -> Bar:
    graph = resnet([83] * 4, 32).training()
    before = verify_sequence(graph, _given(graph))
    begun = time.perf_counter()
    found = recompute(graph, CHEN_BUDGET, work=CHEN_WORK)
    seconds = time.perf_counter() - begun
    peak = verify_sequence(graph, found.order, CHEN_BUDGET)
    rows = [("[83, 83, 83, 83]", len(graph.operators), before / GIB, peak / GIB, found.extra_percent, seconds)]
    columns = ("blocks", "operators", "GiB without", "GiB planned", "extra time %", "seconds")
    sheet.table("Chen's network: batch 32, 3 x 224 x 224, feature maps of the training graph", columns, rows)
    front = pareto(graph, 4 if quick else 8, work=20_000_000_000 if quick else 80_000_000_000)
    shown = [(plan.peak / GIB, plan.extra_percent, plan.solver) for plan in front]
    sheet.table("the same network: peak against extra time", ("GiB", "extra time %", "found by"), shown)
    met = peak <= CHEN_BUDGET and found.extra_percent <= CHEN_EXTRA and seconds < CHEN_SECONDS
    figure = f"{before / GIB:.1f} to {peak / GIB:.2f} GiB, {found.extra_percent:.1f} % in {seconds:.1f} s"
    return Bar(ISSUE, 5, "recomputation: Chen's ResNet", "under 7 GiB, 30 %, 10 s", figure, met)


def _layered(sheet: Sheet, quick: bool) -> tuple[Bar, list[Extra]]:
    rows, missed = [], 0
    for count, width in LAYERED:
        for seed in range(QUICK_SEEDS if quick else SEEDS):
            graph = layered_graph(count, width, seed)
            before = verify_sequence(graph, _given(graph))
            for share, most in MOST_EXTRA.items():
                begun = time.perf_counter()
                found = _planned(graph, int(share * before), QUICK_WORK if quick else LAYERED_WORK)
                seconds = time.perf_counter() - begun
                extra = found.extra_percent if found is not None else None
                missed += extra is None or extra > most
                edges = sum(len(operator.inputs) for operator in graph.operators)
                rows.append((count, edges, seed, before, f"{share:.0%}", extra, most, seconds))
    columns = ("operators", "edges", "seed", "peak", "budget", "extra time %", "wanted", "seconds")
    sheet.table("random layered graphs, all times equal; budgets are of the given order's peak", columns, rows)
    worst = {
        share: max((row[5] or 0.0 for row in rows if row[4] == f"{share:.0%}"), default=0.0) for share in MOST_EXTRA
    }
    figure = ", ".join(f"{extra:.2f} % at {share:.0%}" for share, extra in worst.items())
    if missed:
        figure += f" ({missed} of {len(rows)} missed)"
    bar = Bar(ISSUE, 8, "recomputation: layered graphs", "1 % at 90 %, 6 % at 80 %, 300 s", figure, missed == 0)
    return bar, [(f"layered {row[0]}, seed {row[2]}, {row[4]}", row[0], row[5]) for row in rows]


def _checkmate(sheet: Sheet, quick: bool) -> list[Extra]:
    """Each network at both budgets; one below what any plan needs is told, and is nobody's to keep."""
    rows: list[tuple[object, ...]] = []
    extras: list[Extra] = []
    for name in ("fcn8", "unet") if quick else NETWORKS:
        graph = checkmate_graph(name)
        before = verify_sequence(graph, _given(graph))
        count = len(graph.operators)
        for share in MOST_EXTRA:
            begun = time.process_time()
            try:
                found = recompute(graph, int(share * before), work=QUICK_WORK if quick else LAYERED_WORK)
            except BudgetTooSmall as error:
                rows.append(
                    (name, count, before / GIB, f"{share:.0%}", "impossible" if error.proved else "not kept", "")
                )
                extras += [] if error.proved else [(f"{name}, {share:.0%}", count, None)]
                continue
            verify_sequence(graph, found.order, int(share * before))
            rows.append((
                name, count, before / GIB, f"{share:.0%}", found.extra_percent, time.process_time() - begun
            ))  # fmt: skip
            extras.append((f"{name}, {share:.0%}", count, found.extra_percent))
    columns = ("network", "operators", "GiB", "budget", "extra time %", "CPU s")
    sheet.table("training graphs as Checkmate has them; budgets are of the given order's peak", columns, rows)
    return extras


def _both(extras: list[Extra]) -> Bar:
    small = [extra for _, count, extra in extras if count <= SMALL]
    large = [extra for _, count, extra in extras if count > SMALL]
    missed = [
        name for name, count, extra in extras if extra is None or extra > (MOST_SMALL if count <= SMALL else MOST_LARGE)
    ]
    worst = [max((extra for extra in group if extra is not None), default=0.0) for group in (small, large)]
    figure = f"at most {worst[0]:.2f} % and {worst[1]:.2f} %"
    if missed:
        figure += f"; missed: {'; '.join(missed)} ({len(missed)} of {len(extras)})"
    wanted = "0.2 % on small graphs, 1 % on 1,000 nodes"
    return Bar(22, 6, "recomputation: Checkmate-like and layered graphs", wanted, figure, not missed)


def _planned(graph: Graph, budget: int, work: int) -> Recomputed | None:
    try:
        found = recompute(graph, budget, work=work)
    except BudgetTooSmall:
        return None
    verify_sequence(graph, found.order, budget)
    return found


if __name__ == "__main__":
    main(measure)
