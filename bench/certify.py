"""Bars of bundles for several workers: each of the zoo is certified, and little larger than the one for one worker.

`python -m bench.certify [NAME ...]` for some of them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import typer

import graphopt
import models
from bench.bar import Bar, Sheet, console
from bench.peers import OURS
from bench.zoo import model_file
from graphopt.errors import GraphoptError, NotLowered

ISSUE = 18
MORE = 64_000  # bytes of a bundle for several workers beside the one for one
QUICK = ("mlp_tiny", "gru_unrolled", "squeezenet1_1")


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Every model of the zoo, or a few small ones."""
    return certified(sheet, QUICK if quick else models.names())


def certified(sheet: Sheet, names: Sequence[str]) -> list[Bar]:
    """One row per model; one that is no whole program is listed and not counted."""
    rows, refused, whole, most = [], [], 0, (0, "")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                compiled = graphopt.compile(model_file(name), tune=0)
                if compiled.fallback:
                    rows.append((name, 0, 0, 0, 0, 0.0, 0.0, "no whole program"))
                    continue
                compiled.save(Path(folder) / "bundle")
            except NotLowered:
                rows.append((name, 0, 0, 0, 0, 0.0, 0.0, "no whole program"))
                continue
            whole += 1
            graphopt.compile(model_file(name), tune=0, threads=1).save(Path(folder) / "alone")
            more = _size(Path(folder) / "bundle") - _size(Path(folder) / "alone")
            most = max(most, (more, name))
            started = time.perf_counter()
            try:
                certificate = graphopt.certify(Path(folder) / "bundle", model=model_file(name))
            except GraphoptError as error:
                refused.append(name)
                rows.append((name, len(compiled.linked.listing.runs), 0, 0, 0, 0.0, more / 1e3, str(error)))
                continue
            rows.append((
                name, certificate.runs, certificate.values, certificate.waits, certificate.pairs,
                time.perf_counter() - started, more / 1e3, "certified",
            ))  # fmt: skip
    columns = ("model", "runs", "values", "waits", "pairs", "seconds", "kB more than alone", "verdict")
    sheet.table("certified bundles", columns, rows)
    missed = f" (not: {', '.join(refused)})" if refused else ""
    wanted, figure = f"{MORE / 1e3:g} kB at most", f"{most[0] / 1e3:.1f} kB at most ({most[1]})"
    return [
        Bar(ISSUE, 1, "a bundle for several workers beside one", wanted, figure, most[0] <= MORE),
        Bar(ISSUE, 7, "certified", f"{whole}", f"{whole - len(refused)}{missed}", not refused),
    ]


def _size(bundle: Path) -> int:
    return sum(file.stat().st_size for file in bundle.rglob("*") if file.is_file())


def command(names: list[str] = typer.Argument(None)) -> None:  # noqa: B008  (typer's form)
    """Certify bundles of the zoo, all or those named, each with its model beside it."""
    sheet = Sheet(console())
    sheet.bars(certified(sheet, names or models.names()))


if __name__ == "__main__":
    typer.run(command)
