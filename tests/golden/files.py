"""Where golden files lie, and how a text is compared with one."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "zoo"


def compare(file: Path, text: str, request: pytest.FixtureRequest) -> None:
    """Fail with the difference unless `file` holds `text`; write it where an update was asked for."""
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return
    assert text.splitlines() == file.read_text().splitlines(), f"{file.name} differs; see tests/golden/__init__.py"
