"""The optimizer's page in a real browser: columns sort, rules are filtered and opened, nothing is cut or fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.report.browser import Scheme, check_short_tables, opened, sideways


@pytest.fixture
def file(shell: Shell) -> Path:
    """The page of an Identity, a Constant, a MatMul and an Add."""
    assert shell.run("optimize", "in.onnx", "out.onnx", "--report", "report.html").status == 0
    return (shell.folder / "report.html").resolve()


def test_every_column_sorts_both_ways(file: Path) -> None:
    with opened(file) as seen:
        assert check_short_tables(seen.page) == 4 + 5, "operators and passes"
        assert (seen.errors, seen.asked_for) == ([], [])


def test_rules_are_filtered_and_opened(file: Path) -> None:
    with opened(file) as seen:
        page = seen.page
        rules = page.locator("#rewrites details.rule")
        every = rules.count()
        first = rules.first.locator(".name").text_content() or ""
        page.locator(".filter input").fill(first)
        shown = [rule for rule in rules.all() if rule.is_visible()]
        assert 1 <= len(shown) < every and first in (shown[0].text_content() or "")
        assert page.locator(".filter [role=status]").text_content() == f"{len(shown)} of {every} rules"
        assert not shown[0].locator(".inside").is_visible()
        shown[0].locator("summary").click()
        assert shown[0].locator(".inside figure svg").first.is_visible()
        page.locator(".filter input").fill("")
        assert all(rule.is_visible() for rule in rules.all())
        assert (seen.errors, seen.asked_for) == ([], [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_at_400_pixels(file: Path, scheme: Scheme) -> None:
    with opened(file, width=400, scheme=scheme) as seen:
        for summary in seen.page.locator("details > summary").all():
            if summary.is_visible():
                summary.click()
        assert sideways(seen.page) == [] and seen.errors == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 400
