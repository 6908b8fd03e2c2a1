"""Results by processor: what each bar was when it was last measured on one, kept in `bench/results/`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.bar import Bar, Sheet, console
from graphopt.machine.kept import own_key

RESULTS = Path(__file__).parent / "results"


def processor() -> str:
    """This machine's: LLVM's name of the core, and how many of them a process may use."""
    return f"{own_key().core}-{len(os.sched_getaffinity(0))}"


def keep(bars: Sequence[Bar], *, folder: Path = RESULTS, name: str | None = None) -> Path:
    """Write the bars that were measured into the file of a processor, this one's if none is named; others stay."""
    name = name or processor()
    place = folder / f"{name}.json"
    known: dict[str, Any] = json.loads(place.read_text())["bars"] if place.exists() else {}
    for bar in bars:
        if bar.met is not None:
            known[bar.label] = {key: value for key, value in asdict(bar).items() if key not in ("issue", "number")}
    folder.mkdir(exist_ok=True)
    content = {"processor": name, "bars": dict(sorted(known.items(), key=lambda item: _place(item[0])))}
    place.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return place


def show(sheet: Sheet, *, folder: Path = RESULTS) -> None:
    """One table for each processor."""
    words = {True: "met", False: "NOT MET"}
    for place in sorted(folder.glob("*.json")):
        content = json.loads(place.read_text())
        rows = [
            (label, bar["text"], bar["target"], bar["figure"], words[bar["met"]])
            for label, bar in content["bars"].items()
        ]
        sheet.table(f"bars on {content['processor']}", ("bar", "what", "target", "measured", ""), rows)


def _place(label: str) -> tuple[str, int]:
    """Parts of the project by letter, their bars by number."""
    digits = "".join(one for one in label if one.isdigit())
    return label[: -len(digits)] if digits else label, int(digits or 0)


if __name__ == "__main__":
    show(Sheet(console()))
