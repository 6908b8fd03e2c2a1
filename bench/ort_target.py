"""Bar 14: `--target ort` must be as right as the standard target, on all that the standard target is measured on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench import node_tests, ort_models, random_models, zoo
from bench.bar import ISSUE, Bar, Sheet
from bench.peers import OURS, OURS_ORT
from bench.script import Measure, main

PARTS: tuple[Measure, ...] = (zoo.measure, ort_models.measure, node_tests.measure, random_models.measure)


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Outputs of `--target ort` that are judged right."""
    judged = OURS_ORT if optimizer == OURS else optimizer
    found = [bar for part in PARTS for bar in part(sheet, data=data, quick=quick, optimizer=judged)]
    right = [bar for bar in found if "right" in bar.text or "equal" in bar.text]
    return [replace(bar, issue=ISSUE, number=14, text=f"--target ort: {bar.text}") for bar in right]


if __name__ == "__main__":
    main(measure)
