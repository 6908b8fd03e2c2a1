"""Results by processor: what each bar was when it was last measured on one, kept in `bench/results/`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from bench.bar import Bar, Sheet, console
from graphopt.machine.kept import own_key

RESULTS = Path(__file__).parent / "results"


def processor() -> str:
    """This machine's: LLVM's name of the core, and how many of them a process may use."""
    return f"{own_key().core}-{len(os.sched_getaffinity(0))}"


def keep(bars: Sequence[Bar], *, folder: Path = RESULTS, name: str | None = None) -> Path:
    """Write the bars that were measured into the file of a processor, this one's if none is named; others stay.

    What several promise of one number has letters behind it; one is the same promise as before if its text is.
    """
    name = name or processor()
    place = folder / f"{name}.json"
    known: dict[str, Any] = json.loads(place.read_text())["bars"] if place.exists() else {}
    lines = [(_place(label)[:2], line) for label, line in known.items()]
    for bar in bars:
        if bar.met is None:
            continue
        number = _place(bar.label)[:2]
        found = {key: value for key, value in asdict(bar).items() if key not in ("issue", "number")}
        at = next((at for at, one in enumerate(lines) if one[0] == number and one[1]["text"] == bar.text), None)
        if at is None:
            lines.append((number, found))
        else:
            lines[at] = (number, found)
    named: dict[str, Any] = {}
    for (part, number), several in groupby(sorted(lines, key=itemgetter(0)), itemgetter(0)):
        group = [line for _, line in several]
        letters = ascii_lowercase if len(group) > 1 else [""]
        named |= {f"{part}{number or ''}{letter}": line for letter, line in zip(letters, group, strict=False)}
    folder.mkdir(exist_ok=True)
    content = {"processor": name, "bars": named}
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


def _place(label: str) -> tuple[str, int, str]:
    """Part of the project, number, letter."""
    found = re.fullmatch(r"(\D*)(\d*)(\D*)", label)
    assert found is not None, "labels are letters around a number"
    return found[1], int(found[2] or 0), found[3]


if __name__ == "__main__":
    show(Sheet(console()))
