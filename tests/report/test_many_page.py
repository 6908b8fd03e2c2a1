"""The page of a folder's results in a real browser: what became of each model, found and sorted."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.flows.records.many import ManyRecord, Result
from graphopt.report.many_page import many_page
from tests.report.browser import Scheme, check_short_tables, opened, sideways

RECORD = ManyRecord(
    "optimize", "models",
    (
        Result("deep/b.onnx", "done", None, 1, 2.5,
               {"schema": "graphopt.optimize/1", "nodes_before": 1017, "nodes_after": 7}, ""),
        Result("<i>.onnx", "refused", "'models/<i>.onnx' is not an ONNX protobuf; export the model again.", 1, 0.25,
               None, ""),
        Result("long.onnx", "crashed", "its process ended by signal 9", 3, 12.0, None, ""),
    ),
    taken_over=1,
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "results.html").write_bytes(many_page(RECORD))
    return tmp_path / "results.html"


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_says_what_became_of_each_model(file: Path, width: int, scheme: Scheme) -> None:
    with opened(file, width=width, scheme=scheme) as seen:
        text = seen.page.locator("body").inner_text()
        assert "3 models, 1 of them by an earlier run" in text
        assert "1,017 -> 7 nodes" in text and "'models/<i>.onnx' is not an ONNX protobuf" in text
        cards = {card.inner_text() for card in seen.page.locator(".card").all()}
        assert cards == {"done\n\n1", "refused\n\n1", "crashed\n\n1"}
        assert (seen.errors, seen.asked_for, sideways(seen.page)) == ([], [], [])


def test_models_are_found_and_sorted(file: Path) -> None:
    with opened(file) as seen:
        rows = seen.page.locator("#models tbody tr")
        seen.page.locator(".filter input").fill("REFUSED")
        assert [row.is_visible() for row in rows.all()] == [False, True, False]
        assert seen.page.locator(".filter [role=status]").inner_text() == "1 of 3 models"
        seen.page.locator(".filter input").fill("")
        assert all(row.is_visible() for row in rows.all())
        assert check_short_tables(seen.page) == 5


def test_it_says_everything_without_scripts(file: Path) -> None:
    with opened(file, scripts=False) as seen:
        assert seen.page.locator("#models tbody tr").count() == 3
        assert seen.page.locator(".filter").is_hidden()
