"""Bar of the proofs: every bundle of the zoo is certified. `python -m bench.certify [NAME ...]` for some of them."""

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
QUICK = ("mlp_tiny", "gru_unrolled", "squeezenet1_1")


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Every model of the zoo, or a few small ones."""
    return certified(sheet, QUICK if quick else models.names())


def certified(sheet: Sheet, names: Sequence[str]) -> list[Bar]:
    """One row per model; one that is no whole program is listed and not counted."""
    rows, refused, whole = [], [], 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                compiled = graphopt.compile(model_file(name))
                if compiled.fallback:
                    rows.append((name, 0, 0, 0, 0, 0.0, "no whole program"))
                    continue
                compiled.save(Path(folder) / "bundle")
            except NotLowered:
                rows.append((name, 0, 0, 0, 0, 0.0, "no whole program"))
                continue
            whole += 1
            started = time.perf_counter()
            try:
                certificate = graphopt.certify(Path(folder) / "bundle", model=model_file(name))
            except GraphoptError as error:
                refused.append(name)
                rows.append((name, len(compiled.linked.listing.runs), 0, 0, 0, 0.0, str(error)))
                continue
            rows.append((
                name, certificate.runs, certificate.values, certificate.waits, certificate.pairs,
                time.perf_counter() - started, "certified",
            ))  # fmt: skip
    sheet.table("certified bundles", ("model", "runs", "values", "waits", "pairs", "seconds", "verdict"), rows)
    missed = f" (not: {', '.join(refused)})" if refused else ""
    return [Bar(ISSUE, 7, "certified", f"{whole}", f"{whole - len(refused)}{missed}", not refused)]


def command(names: list[str] = typer.Argument(None)) -> None:  # noqa: B008  (typer's form)
    """Certify bundles of the zoo, all or those named, each with its model beside it."""
    sheet = Sheet(console())
    sheet.bars(certified(sheet, names or models.names()))


if __name__ == "__main__":
    typer.run(command)
