"""All measurements of memory plans, one after the other, each with its tables: `make bench-memory`."""

from __future__ import annotations

from pathlib import Path

from bench.bar import Bar, Sheet
from bench.memory import budgets, drawn, mutations, ordering, packing, page, programs, real_budgets, remat, tiers, zoo
from bench.peers import OURS
from bench.script import Measure, main

MEASURES: dict[str, Measure] = {
    "m1": packing.measure,
    "m2": zoo.measure,
    "m4": ordering.measure,
    "m5": budgets.measure,
    "m6": mutations.measure,
    "m7": page.measure,
    "m8": remat.measure,
    "m9": tiers.measure,
    "m10": drawn.measure,
    "u3": real_budgets.measure,
    "r4": programs.measure,
}


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Memory plans against their bounds and against ONNX Runtime. Needs a quiet machine."""
    return [bar for one in MEASURES.values() for bar in one(sheet, data=data, quick=quick)]


if __name__ == "__main__":
    main(measure)
