"""A real browser for pages: Chromium without a window, and what a page said and asked for while it was open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
TWO_FRAMES = "() => new Promise(seen => requestAnimationFrame(() => requestAnimationFrame(seen)))"  # all has its size
Scheme = Literal["light", "dark"]


@dataclass
class Opened:
    """A page, the errors on its console, and the addresses it asked for beside itself."""

    page: Page
    errors: list[str] = field(default_factory=list)
    asked_for: list[str] = field(default_factory=list)


@contextmanager
def opened(
    file: Path, *, width: int = 1200, scheme: Scheme = "light", scripts: bool = True, at: str | None = None
) -> Iterator[Opened]:
    """The file in a browser, or what is served `at` an address.

    Skips the test where there is no browser, unless every check has to run.
    """
    address = at or file.as_uri()
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        assert not os.environ.get("GRAPHOPT_ALL_CHECKS"), "a Chromium must be installed here"
        pytest.skip("there is no Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=scripts
        )
        seen = Opened(page)
        page.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("request", lambda request: seen.asked_for.append(request.url))
        page.goto(address)
        seen.asked_for.remove(address)
        yield seen
        browser.close()


class Charted:
    """A page with charts: what is drawn, clicks on places of a chart, rows and columns of its tables."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.wait_for_selector("html[data-drawn]", state="attached")
        page.evaluate(TWO_FRAMES)

    def option(self, chart: str, name: str) -> list[dict[str, Any]]:
        """What the library has of a chart under a name; what is no JSON is left out."""
        found: list[dict[str, Any]] = self.page.evaluate(
            """([id, name]) => JSON.parse(JSON.stringify(
                echarts.getInstanceByDom(document.getElementById(id)).getOption()[name],
                (key, value) => (key === "silent" || typeof value === "function" ? undefined : value)))""",
            [chart, name],
        )
        return found

    def series(self, chart: str) -> list[dict[str, Any]]:
        """The series of a chart, with names and data."""
        return self.option(chart, "series")

    def zoomed(self, chart: str) -> tuple[float, float]:
        """The part of the axis across that is shown, in percent."""
        zoom = self.option(chart, "dataZoom")[0]
        return zoom["start"], zoom["end"]

    def place(self, chart: str, x: float, y: float, grid: int = 0) -> tuple[float, float]:
        """Where a point of a chart's axes is in the window, once the chart is in sight."""
        self.page.locator(f"#{chart}").scroll_into_view_if_needed()
        across, down = self.page.evaluate(
            """([id, grid, x, y]) => {
                const holder = document.getElementById(id), box = holder.getBoundingClientRect();
                const at = echarts.getInstanceByDom(holder).convertToPixel({ gridIndex: grid }, [x, y]);
                const down = box.top + at[1] - innerHeight / 2;
                window.scrollBy({ top: down, behavior: "instant" });
                const moved = holder.getBoundingClientRect();
                return [moved.left + at[0], moved.top + at[1]];
            }""",
            [chart, grid, x, y],
        )
        return across, down

    def click(self, chart: str, x: float, y: float, grid: int = 0) -> None:
        """Click a point of a chart and wait until the page has drawn what follows."""
        across, down = self.place(chart, x, y, grid)
        before = self.drawn
        self.page.mouse.move(across, down)
        self.page.mouse.click(across, down)
        self.settle(before)

    @property
    def drawn(self) -> int:
        """How often the page has drawn its state."""
        return int(self.page.evaluate("document.documentElement.dataset.drawn"))

    def settle(self, before: int) -> None:
        """Wait until the page has drawn again."""
        self.page.wait_for_function("before => Number(document.documentElement.dataset.drawn) > before", arg=before)

    def colours(self, chart: str) -> set[tuple[int, int, int]]:
        """The colours on a chart's canvas that fill more than a thousandth of it."""
        found = self.page.evaluate(
            """id => {
                const canvas = document.querySelector(`#${id} canvas`), counts = new Map();
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                for (let at = 0; at < data.length; at += 4) {
                    const key = `${data[at]},${data[at + 1]},${data[at + 2]}`;
                    if (data[at + 3]) counts.set(key, (counts.get(key) ?? 0) + 1);
                }
                return [...counts].filter(([, count]) => count > data.length / 4000).map(([key]) => key);
            }""",
            chart,
        )
        return {(int(r), int(g), int(b)) for r, g, b in (key.split(",") for key in found)}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a long table in the order in which they stand, as data."""
        found: list[dict[str, Any]] = self.page.evaluate(
            "id => Tabulator.findTable(`#${id}`)[0].getRows('active').map(row => row.getData())", table
        )
        return found

    def fields(self, table: str) -> dict[str, str]:
        """The visible columns of a long table: title and field."""
        found: dict[str, str] = self.page.evaluate(
            """id => Object.fromEntries(Tabulator.findTable(`#${id}`)[0].getColumns()
                .filter(column => column.isVisible())
                .map(column => [column.getDefinition().title, column.getField()]))""",
            table,
        )
        return found

    def sort(self, table: str, title: str) -> None:
        """Click the head of a column."""
        self.page.locator(f"#{table} .tabulator-col-title", has_text=title).and_(
            self.page.get_by_text(title, exact=True)
        ).first.click()

    def controls(self) -> set[str]:
        """What can be worked outside charts and tables, by id or by what it says."""
        found: list[str] = self.page.evaluate(
            """() => [...document.querySelectorAll("main button, main select, main input, main a")]
                .filter(one => !one.closest(".tabulator") && !one.closest("thead"))
                .map(one => one.id || one.value || one.textContent)"""
        )
        return set(found)


def check_sorting(charted: Charted, table: str) -> None:
    """Every column of a long table sorts both ways, by the value behind what is written."""
    for title, name in charted.fields(table).items():
        seen = []
        for _ in range(2):
            charted.sort(table, title)
            seen.append([row[name] for row in charted.rows(table)])
        numbers = all(isinstance(value, (int, float)) for value in seen[0])
        low, high = (sorted(seen[0], key=None if numbers else str.lower, reverse=down) for down in (False, True))
        assert sorted(map(str, seen)) == sorted(map(str, (low, high))), (title, seen)


def check_short_tables(page: Page) -> int:
    """Every column of the tables that are plain HTML sorts both ways; how many columns there were."""
    count = 0
    for table in page.locator("table.sortable").all():
        for column, head in enumerate(table.locator("thead th[scope=col]").all()):
            count += 1
            is_number = "num" in (head.get_attribute("class") or "")
            orders = []
            for direction in ("descending", "ascending"):
                head.locator("button").click()
                assert head.get_attribute("aria-sort") == direction
                cells = table.locator(f"tbody tr > :nth-child({column + 1})").all()
                texts = [cell.get_attribute("data-value") or (cell.text_content() or "").strip() for cell in cells]
                keys = [float(text.replace(",", "") or 0) for text in texts] if is_number else texts
                orders.append(keys)
            assert sorted(orders[0], key=str) == sorted(orders[1], key=str)
            if is_number:
                assert orders[1] == sorted(orders[1]) and orders[0] == sorted(orders[0], reverse=True)
            else:
                assert orders[0] == orders[1][::-1]
    return count


def sideways(page: Page) -> list[str]:
    """What sticks out of the window at its right without a container of its own that scrolls."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter(one => {
            const box = one.getBoundingClientRect();
            if (box.width === 0 || box.right <= document.documentElement.clientWidth + 1) return false;
            for (let up = one.parentElement; up; up = up.parentElement) {
                if (["auto", "scroll", "hidden"].includes(getComputedStyle(up).overflowX)) return false;
            }
            return getComputedStyle(one).position !== "absolute";
        }).map(one => `${one.tagName}.${one.className}`)"""
    )
    return found
