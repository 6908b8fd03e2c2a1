"""The table of newcomers has every row once, and says `worse` where a check finds what it does not demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.newcomer import by_hand, place
from bench.newcomer.__main__ import ROWS, look
from bench.newcomer.place import Place
from bench.newcomer.row import Row, Seen, level, require

QUICK = (1, 6, 11, 18, 22, 51, 52)  # that need no more than a command or two


def test_every_row_is_there_once() -> None:
    numbers = [*(row.number for row in ROWS), *(row.number for row in by_hand.ROWS)]
    assert sorted(numbers) == list(range(1, 55))
    assert all(row.check.__doc__ for row in ROWS) and all(row.why for row in by_hand.ROWS)


@pytest.mark.parametrize("number", QUICK)
def test_a_row_is_level_or_better(number: int, tmp_path: Path) -> None:
    (row,) = (row for row in ROWS if row.number == number)
    seen = look(row, Place(tmp_path))
    assert seen.verdict in ("level", "better"), seen.text


def test_what_is_not_as_demanded_is_worse(tmp_path: Path) -> None:
    def refused(place: Place) -> Seen:
        """A condition that does not hold."""
        require(False, "nothing was written")
        return level("never said")

    def broken(place: Place) -> Seen:
        """A check that fails in its own way."""
        raise ZeroDivisionError("division by zero")

    there = Place(tmp_path)
    assert look(Row(0, "", "", refused), there) == Seen("worse", "nothing was written")
    assert look(Row(0, "", "", broken), there).text == "the check failed: ZeroDivisionError: division by zero"


def test_a_command_that_fails_is_seen(tmp_path: Path) -> None:
    done = Place(tmp_path).graphopt("absent.onnx")
    assert done.status == 1 and done.err == "error: 'absent.onnx' does not exist; check the path.\n"
    assert place.PROJECT["name"] == "graphopt"
