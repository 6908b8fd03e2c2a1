"""Every row of the capability matrix is reached, but for those that a later release brings, and stays correct."""

from __future__ import annotations

import pytest

import graphopt
from tests.capability_rows import ROWS, Row

REACHED = [row for row in ROWS if not row.later]


@pytest.mark.parametrize("row", REACHED, ids=lambda row: row.name)
def test_row_is_reached(row: Row) -> None:
    result = graphopt.optimize(row.model())
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    assert row.reached(result.to_proto())


@pytest.mark.parametrize("row", [row for row in ROWS if row.later], ids=lambda row: row.name)
def test_row_of_a_later_release_stays_correct(row: Row) -> None:
    result = graphopt.optimize(row.model())
    assert result.verification.passed, result.verification.reason


def test_most_rows_are_reached() -> None:
    assert len(REACHED) == 70  # of 71; the best other optimizer reaches 38
