"""A shell in a fresh folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.report import screen
from tests.cli.shell import Shell


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(screen, "FIRST_WORD", 1e9)  # what a slow machine would hear besides
    return Shell(tmp_path, capsys)
