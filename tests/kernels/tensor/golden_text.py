"""Compares a text with a file in golden/; GOLDEN_UPDATE=1 writes the files anew."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    path = FOLDER / f"{name}.txt"
    if os.environ.get("GOLDEN_UPDATE") == "1":
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs; GOLDEN_UPDATE=1 writes it anew"
