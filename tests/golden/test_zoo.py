"""Each model of the zoo beside its golden files."""

from __future__ import annotations

from pathlib import Path

import pytest

import models
from tests.golden.texts import TARGETS, listing_text, optimized_text, ready_to_lower

FOLDER = Path(__file__).parent / "zoo"


def compare(file: Path, text: str, request: pytest.FixtureRequest) -> None:
    """Fail with the difference unless `file` holds `text`; write it where an update was asked for."""
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return
    assert text.splitlines() == file.read_text().splitlines(), f"{file.name} differs; see tests/golden/__init__.py"


@pytest.mark.parametrize("name", models.names())
def test_operators_after_optimization(name: str, request: pytest.FixtureRequest) -> None:
    compare(FOLDER / f"{name}.optimized.txt", optimized_text(name), request)


@pytest.mark.parametrize("name", models.names())
def test_listings_for_named_targets(name: str, request: pytest.FixtureRequest) -> None:
    model = ready_to_lower(name)
    for target in TARGETS:
        compare(FOLDER / f"{name}.{target}.txt", listing_text(model, target), request)


def test_no_golden_file_is_left_over() -> None:
    kinds = ("optimized", *TARGETS)
    wanted = {f"{name}.{kind}.txt" for name in models.names() for kind in kinds}
    assert {file.name for file in FOLDER.iterdir()} == wanted
