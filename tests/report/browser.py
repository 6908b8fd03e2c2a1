"""A real browser for pages: Chromium without a window, and what a page said and asked for while it was open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Opened:
    """A page, the errors on its console, and the addresses it asked for beside itself."""

    page: Page
    errors: list[str] = field(default_factory=list)
    asked_for: list[str] = field(default_factory=list)


@contextmanager
def opened(file: Path) -> Iterator[Opened]:
    """The file in a browser; skips the test where there is none, unless every check has to run."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        assert not os.environ.get("GRAPHOPT_ALL_CHECKS"), "a Chromium must be installed here"
        pytest.skip("there is no Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        seen = Opened(page)
        page.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("request", lambda request: seen.asked_for.append(request.url))
        page.goto(file.as_uri())
        seen.asked_for.remove(file.as_uri())
        yield seen
        browser.close()
