"""What tests of programs share."""

from __future__ import annotations

import pytest

from graphopt.program.regions.routines import table


@pytest.fixture
def no_hardmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the kernels of Hardmax and LpNormalization away: parts beside ONNX Runtime need an operator without one."""
    left = {key: one for key, one in table.ROUTINES.items() if key[1] not in ("Hardmax", "LpNormalization")}
    monkeypatch.setattr(table, "ROUTINES", left)
