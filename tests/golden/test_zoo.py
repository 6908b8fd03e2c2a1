"""The listings of each model of the zoo beside their golden files; `tests/passes/test_zoo.py` has the operators'."""

from __future__ import annotations

import pytest

import models
from tests.golden.files import FOLDER, compare
from tests.golden.texts import TARGETS, listing_text, ready_to_lower


@pytest.mark.parametrize("name", models.names())
def test_listings_for_named_targets(name: str, request: pytest.FixtureRequest) -> None:
    model = ready_to_lower(name)
    for target in TARGETS:
        compare(FOLDER / f"{name}.{target}.txt", listing_text(model, target), request)


def test_no_golden_file_is_left_over() -> None:
    kinds = ("optimized", *TARGETS)
    wanted = {f"{name}.{kind}.txt" for name in models.names() for kind in kinds}
    assert {file.name for file in FOLDER.iterdir()} == wanted
