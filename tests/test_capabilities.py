"""Every row of the capability matrix is reached, and correct."""

from __future__ import annotations

import pytest

import graphopt
from tests.capability_rows import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_is_reached(row: Row) -> None:
    result = graphopt.optimize(row.model())
    assert result.verification.passed, result.verification.reason
    assert not result.rolled_back
    assert row.reached(result.to_proto())


def test_the_rows_are_those_that_were_measured() -> None:
    assert len(ROWS) == 71  # the best other optimizer reaches 38
