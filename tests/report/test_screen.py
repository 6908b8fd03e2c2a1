"""Tables in a terminal: whatever texts are in them, and however narrow it is."""

from __future__ import annotations

import io

import pytest

from graphopt.report.screen import Screen, Table


def _lines(table: Table) -> list[str]:
    stream = io.StringIO()
    Screen(stream).table(table)
    return [line for line in stream.getvalue().splitlines() if line]


@pytest.mark.parametrize("text", ["1,017", "-1,017", "1,017.5", "True", "False", "1e3", "nan", "1_000", "+5", "x" * 30])
def test_a_cell_is_shown_as_it_is(text: str) -> None:
    """A count of a thousand and more, a tensor that is called False."""
    table = Table("name", "number")
    table.add(text, text)
    assert _lines(table)[-1].split() == [text, text]


def test_a_narrow_terminal_breaks_the_widest_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table = Table("name", "number")
    table.add("a name of several words", "1,017")
    lines = _lines(table)
    assert max(map(len, lines)) <= 20
    assert [line.split() for line in lines[2:]] == [["a", "name", "of", "1,017"], ["several"], ["words"]]


def test_blanks_before_a_name_are_kept() -> None:
    table = Table("", "before")
    table.add("  Constant", "128")
    assert _lines(table)[-1] == "  Constant       128"
