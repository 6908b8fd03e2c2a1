"""A terminal, or a stream in its place: lines in a colour, tables that fit, and a line that says what is waited for."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

import click

from graphopt.model.text import Progress, shown

STYLES: dict[str, dict[str, object]] = {
    "": {}, "bold": {"bold": True}, "dim": {"dim": True}, "red": {"fg": "red"}, "green": {"fg": "green"},
    "yellow": {"fg": "yellow"},
}  # fmt: skip
GAP = 2  # blanks between columns
AIR = 2  # blanks that the name of a column has beside it where there is room
NARROWEST = 8  # characters that a column keeps when a table is made to fit
TURN = 0.1  # seconds between two turns of the wheel on a terminal
WHEEL = ("-", "\\", "|", "/")
# A stream that is no terminal hears what is waited for after so many seconds, then after twice as many, and so on.
FIRST_WORD = 10.0


class Table:
    """Rows of texts under a heading; the first column names things, the others are numbers unless told otherwise."""

    def __init__(self, *columns: str, left: tuple[int, ...] = (0,)) -> None:
        self.columns = columns
        self.left = left
        self.rows: list[tuple[str, ...]] = []
        self.styles: dict[int, str] = {}  # of the first cell of a row
        self.total = False  # whether the last row stands below a rule

    def add(self, *cells: str, style: str = "") -> None:
        """One more row; `style` is that of its first cell."""
        self.styles[len(self.rows)] = style
        self.rows.append(tuple(map(shown, cells)))

    def add_total(self, *cells: str) -> None:
        """The last row, below a rule."""
        self.add(*cells)
        self.total = True

    def widths(self, most: int) -> list[int]:
        """Characters that each column may take so that the table is at most `most` wide; the widest give way."""
        heads = [len(name) + AIR for name in self.columns]
        widths = [max([head, *(len(row[place]) for row in self.rows)]) for place, head in enumerate(heads)]
        while sum(widths) + GAP * (len(widths) - 1) > most and max(widths) > NARROWEST:
            widths[widths.index(max(widths))] -= 1
        return widths


class Screen:
    """Where a command's text goes. Of names from strangers control characters are shown, not sent."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_terminal = stream.isatty()
        self._coloured = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        """Characters in a line of the terminal, or of a file."""
        return shutil.get_terminal_size((100, 24)).columns

    def line(self, text: str, style: str = "", label: str = "") -> None:
        """A text as it is after its `label`, left to the terminal to wrap; `style` is that of the text."""
        for part in text.split("\n"):
            self._write(label + self._styled(shown(part), style))

    def small(self, text: str) -> None:
        """A line of small print."""
        self.line(text, "dim")

    def table(self, table: Table) -> None:
        """A table with a blank line on either side."""
        widths = table.widths(self.width)
        rule = "─" if self._can_write("─") else "-"
        self._write("")
        for line in _laid_out(table.columns, widths, table.left):
            self._write("".join(line).rstrip())
        self._write(rule * (sum(widths) + GAP * (len(widths) - 1)))
        for number, row in enumerate(table.rows):
            if table.total and number == len(table.rows) - 1:
                self._write(rule * (sum(widths) + GAP * (len(widths) - 1)))
            for first, *rest in _laid_out(row, widths, table.left):
                self._write((self._styled(first, table.styles.get(number, "")) + "".join(rest)).rstrip())
        self._write("")

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[Progress]:
        """While the body runs, say what it does and for how long: on a terminal in a moving line, else now and then."""
        said = [what]
        ended = threading.Event()
        watch = self._turn if self.is_terminal else self._speak
        thread = threading.Thread(target=watch, args=(said, ended), daemon=True)
        thread.start()

        def progress(text: str) -> None:
            said[0] = f"{what}: {text}"

        try:
            yield progress
        finally:
            ended.set()
            thread.join()

    def _turn(self, said: list[str], ended: threading.Event) -> None:
        begun = time.monotonic()
        turns = 0
        while not ended.wait(TURN):
            turns += 1
            text = f"{WHEEL[turns % len(WHEEL)]} {said[0]}, {time.monotonic() - begun:.0f} s"
            self._send(f"\r\x1b[2K{shown(text)[: self.width - 1]}")
        if turns:
            self._send("\r\x1b[2K")

    def _speak(self, said: list[str], ended: threading.Event) -> None:
        pause = FIRST_WORD
        passed = 0.0
        while not ended.wait(pause - passed):
            passed = pause
            pause *= 2
            self.line(f"{said[0]}, {passed:.0f} s so far")

    def _styled(self, text: str, style: str) -> str:
        if not self._coloured or not style:
            return text
        return click.style(text, **STYLES[style])  # type: ignore[arg-type]  # the table's values are click's own

    def _can_write(self, text: str) -> bool:
        try:
            text.encode(self.stream.encoding or "ascii")
        except UnicodeEncodeError:
            return False
        return True

    def _write(self, text: str) -> None:
        if not self._can_write(text):
            encoding = self.stream.encoding or "ascii"
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        self._send(f"{text}\n")

    def _send(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _laid_out(row: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> Iterator[list[str]]:
    """The lines of a row, each as its cells with the blanks before and after them; long cells go on below."""
    broken = [textwrap.wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, broken))):
        line = []
        for place, (texts, width) in enumerate(zip(broken, widths, strict=True)):
            text = texts[number] if number < len(texts) else ""
            gap = " " * GAP if place else ""
            line.append(gap + (text.ljust(width) if place in left else text.rjust(width)))
        yield line


def screen(for_errors: bool = False) -> Screen:
    """Of stdout, or of stderr when stdout belongs to a JSON object."""
    return Screen(sys.stderr if for_errors else sys.stdout)
