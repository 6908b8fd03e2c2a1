"""The page of what does not compile whole: each node test that it names still ends as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.node_programs import outcome

PAGE = Path(__file__).parents[2] / "docs" / "whole.md"
ROWS = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line.startswith("| ") and "`test_" in line]
NAMED = [(name, row[1].strip()) for row in ROWS for name in re.findall(r"`(test_\w+)`", row[3])]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the reference, for rows that are shut out
@pytest.mark.parametrize(("name", "kind"), NAMED)
def test_a_node_test_is_not_whole_as_the_page_says(name: str, kind: str) -> None:
    assert outcome(name).startswith(f"{kind}:")


def test_no_node_test_is_named_twice() -> None:
    assert len(NAMED) == len(dict(NAMED)) > 0
