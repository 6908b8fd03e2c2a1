"""A bar: a promise with a figure, today's figure, and whether it is met; and the sheet a script fills in."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ISSUE = 1  # the bars of the optimizer; a later part of the project brings its own
# What stands before a number: optimizer, kernels, programs, memory, scheduler, endurance, users, cores, native speed,
# operators, deployment, budgets of the process, gradients, GPUs, low precision.
PARTS = {
    1: "", 4: "k", 5: "p", 6: "m", 7: "s", 14: "e", 15: "e", 17: "u", 18: "c", 19: "n", 20: "o", 21: "d", 22: "r",
    23: "g", 24: "x", 25: "l",
}  # fmt: skip
PIPE_WIDTH = 160  # characters
NEEDS_DATA = "not measured: pass DATA=..."


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of the table of bars."""

    issue: int
    number: int
    text: str
    target: str
    figure: str
    met: bool | None  # None: not measured, and the figure says why

    @property
    def label(self) -> str:
        """The number, with the part of the project that it belongs to."""
        return f"{PARTS[self.issue]}{self.number}"


@dataclass
class Sheet:
    """Collects the tables of a script: shown on the console as they come, and written as JSON at the end."""

    console: Console
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Show and keep one table. A column of numbers is set flush right."""
        shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for position, column in enumerate(columns):
            numbers = any(isinstance(row[position], int | float) for row in rows)
            shown.add_column(column, justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            shown.add_row(*(_cell(value) for value in row))
        self.console.print(shown)
        self.tables[title] = [dict(zip(columns, row, strict=True)) for row in rows]

    def bars(self, bars: Sequence[Bar]) -> None:
        """Show the bars."""
        words = {True: "met", False: "NOT MET", None: "not measured"}
        rows = [(bar.label, bar.text, bar.target, bar.figure, words[bar.met]) for bar in bars]
        self.table("bars", ("bar", "what", "target", "today", ""), rows)

    def write(self, file: Path, bars: Sequence[Bar]) -> None:
        """Write everything shown as JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"bars": [asdict(bar) for bar in bars], "tables": self.tables}
        file.write_text(json.dumps(content, indent=1) + "\n")


def console() -> Console:
    """The console of a script: as wide as the terminal, and wide enough for our tables in a file or a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def not_measured(number: int, text: str, target: str, why: str = NEEDS_DATA) -> Bar:
    """A bar that could not be measured here."""
    return Bar(ISSUE, number, text, target, why, None)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
