"""A budget of the whole process: `python -m bench.ram [--quick] [NAME ...]`.

Each model runs in a host in C, its files dropped from the page cache, with a budget of 60, 30 and 15 % of what it takes
without one (or of the least that is possible), on one and two workers, by itself and in a memory control group of that
size. Beside it, in the same group: ONNX Runtime on the file, by its usual options and by those that take the least, and
the bundle without a budget, which maps its weights. Times are medians of the runs behind the first. The optimum is that
of `bench.ram.pipeline` at the bandwidth that was measured right before and after, by turns. Needs a quiet machine, a C
compiler, and 10 GB of disk. Files are kept in build/ram.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.bar import Bar, Sheet, console
from bench.peers import OURS
from bench.ram.disk import Disk
from bench.ram.group import why_none
from bench.ram.host import Taken
from bench.ram.networks import NAMES
from bench.ram.programs import MIB
from bench.ram.rows import SLACK, Model, Row

ISSUE = 22
SHARES, WORKERS = (0.6, 0.3, 0.15), (1, 2)
RUNS, ROUNDS, QUICK_RUNS, QUICK_ROUNDS = 7, 9, 3, 3
RATIO = 1.15
SIDES = ("before", "alone", "inside", "runtime", "mapped")  # of a row


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS,
    names: Sequence[str] = NAMES, shares: Sequence[float] = SHARES, workers: Sequence[int] = WORKERS,
) -> list[Bar]:  # fmt: skip
    """Memory and time of programs with a budget of the whole process."""
    disk, why = Disk(), why_none()
    rows: list[Row] = []
    if quick:
        names, shares, workers = names[:1], shares[:1], workers[:1]
    for name in names:
        model = Model(name, disk, runs=QUICK_RUNS if quick else RUNS, grouped=why is None)
        model.prepare(shares, workers)
        for row in model.rows(shares, workers, QUICK_ROUNDS if quick else ROUNDS):
            rows.append(row)
            sheet.console.print(f"{row.model}, {row.workers} workers, {row.share:.0%}: {row.refused or _line(row)}")
    _tables(sheet, rows)
    if why is not None:
        sheet.console.print(why)
    return bars_of(rows, why)


def bars_of(rows: list[Row], why: str | None) -> list[Bar]:
    """The bars of rows; `why` there were no groups, None where there were."""
    texts = (
        (1, "peak of a process with a budget, same bits", f"budget + {SLACK // MIB} MiB, in a group too"),
        (2, "a run / the optimum of the pipeline", f"<= {RATIO}"),
        (3, "beside ONNX Runtime and the mapped bundle in that group", "faster than both"),
    )
    if not rows:
        return [Bar(ISSUE, number, text, target, "no models", None) for number, text, target in texts]
    kept = [row for row in rows if _keeps(row, why)]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    faster = [row for row in rows if row.faster]
    figures = (
        f"{len(kept)} of {len(rows)}{_but(rows, kept)}" + (f"; {why}" if why else ""),
        f"{max(ratios, default=0.0):.2f} at most, {sum(one <= RATIO for one in ratios)} of {len(rows)} keep it",
        why or f"{len(faster)} of {len(rows)}{_but(rows, faster)}",
    )
    met = (
        len(kept) == len(rows),
        len(ratios) == len(rows) and max(ratios) <= RATIO,
        None if why else len(faster) == len(rows),
    )
    return [
        Bar(ISSUE, number, text, target, figure, one)
        for (number, text, target), figure, one in zip(texts, figures, met, strict=True)
    ]


def _keeps(row: Row, why: str | None) -> bool:
    """Whether a process kept its budget with the right results, also in a group where one can be made."""
    inside = why is not None or (row.inside is not None and not row.inside.fault)
    return row.over is not None and row.over <= SLACK and bool(row.equal) and inside


def _but(rows: list[Row], fine: list[Row]) -> str:
    others = [f"{row.model} {row.share:.0%} x{row.workers}" for row in rows if row not in fine]
    return f" (not: {', '.join(others)})" if others else ""


def _tables(sheet: Sheet, rows: list[Row]) -> None:
    sheet.table(
        "a budget of the process: MiB",
        ("model", "workers", "share", "without", "budget", "peak", "in a group", "same bits"),
        [
            (row.model, row.workers, f"{row.share:.0%}", row.before.peak / MIB, row.budget / MIB, _peak(row.alone),
             row.refused[:40] or _peak(row.inside), row.equal)
            for row in rows
        ],
    )  # fmt: skip
    sheet.table(
        f"milliseconds of a run; others in a group of the budget + {SLACK // MIB} MiB",
        ("model", "workers", "budget", "without", "first", "a run", "optimum", "bound", "ratio", "GB/s", "in a group",
         "ONNX Runtime", "mapped"),
        [
            (row.model, row.workers, row.budget / MIB, _later(row.before), _first(row.alone), _later(row.alone),
             None if row.optimum is None else row.optimum.time / 1e6,
             None if row.optimum is None else row.optimum.bound / 1e6, row.ratio, row.bandwidth,
             _later(row.inside), _later(row.runtime), _later(row.mapped))
            for row in rows
        ],
    )  # fmt: skip
    sheet.tables["nanoseconds of each run"] = [
        {"model": row.model, "workers": row.workers, "budget": row.budget}
        | {side: taken.runs for side in SIDES if (taken := getattr(row, side)) is not None}
        for row in rows
    ]


def _line(row: Row) -> str:
    optimum = "-" if row.optimum is None else f"{row.optimum.bound / 1e6:.1f}"
    return (
        f"budget {row.budget / MIB:.0f} of {row.before.peak / MIB:.0f} MiB, peak {_text(_peak(row.alone))}; "
        f"a run {_text(_later(row.alone))} ms, optimum {optimum}; in the group {_text(_later(row.inside))}, "
        f"ONNX Runtime {_text(_later(row.runtime))}, mapped {_text(_later(row.mapped))}; same bits: {row.equal}"
    )


def _text(figure: float | str | None) -> str:
    return f"{figure:.1f}" if isinstance(figure, float) else str(figure or "-")


def _peak(taken: Taken | None) -> float | str | None:
    return None if taken is None else taken.fault or taken.peak / MIB


def _first(taken: Taken | None) -> float | str | None:
    return None if taken is None else taken.fault or (taken.created + taken.runs[0]) / 1e6


def _later(taken: Taken | None) -> float | str | None:
    return None if taken is None else taken.fault or taken.later / 1e6


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models; all four if none is named.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the tables to this file too.")] = None,
    share: Annotated[list[float] | None, typer.Option(help="Of what is needed without; repeatable.")] = None,
    workers: Annotated[list[int] | None, typer.Option(help="Computing workers; repeatable.")] = None,
    prepare: Annotated[bool, typer.Option(help="Only make the bundles that would be measured.")] = False,
    quick: Annotated[bool, typer.Option(help="The first model, share and number of workers, fewer runs.")] = False,
) -> None:
    """Measure, and print the tables and bars."""
    chosen, shares, counts = names or NAMES, share or SHARES, workers or WORKERS
    if prepare:
        for name in chosen:
            Model(name, Disk(), runs=RUNS, grouped=False).prepare(shares, counts)
        return
    sheet = Sheet(console())
    bars = measure(sheet, quick=quick, names=chosen, shares=shares, workers=counts)
    sheet.bars(bars)
    if json:
        sheet.write(json, bars)


if __name__ == "__main__":
    typer.run(main)
