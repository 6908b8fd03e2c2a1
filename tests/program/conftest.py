"""What tests of programs share."""

from __future__ import annotations

import pytest

from graphopt.program.regions.routines.table import ROUTINES

LACKING = ("Hardmax", "LpNormalization", "Pad", "ReduceMean", "ReverseSequence")


@pytest.fixture
def some_lack_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some operators have no loops: what a program does about one without a kernel is the same when all have some."""
    for name in LACKING:
        monkeypatch.delitem(ROUTINES, ("", name))  # type: ignore[arg-type]
