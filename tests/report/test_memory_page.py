"""The memory page in a real browser, and the record behind it as a trace and in a terminal."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

import graphopt
from graphopt.flows.memory import MemoryReport
from graphopt.flows.records.memory import BufferLine, MemoryRecord, StepLine
from graphopt.model.text import binary_size, steps
from graphopt.report.memory.page import memory_page
from graphopt.report.memory.terminal import print_memory
from graphopt.report.memory.trace import memory_trace
from graphopt.report.screen import Screen
from tests import support
from tests.report.browser import opened

TEXT = """g (float[1,8,64] x) => (float[1,16,64] y) {
    a = Exp(x) b = Sqrt(a) c = Sin(b) d = Cos(a) y = Concat<axis = 1>(c, d)
}"""


@pytest.fixture(scope="module")
def report() -> MemoryReport:
    return graphopt.memory(support.model(TEXT), tiers="sram+flash", points=2)


def test_charts_are_drawn_hover_works_and_nothing_is_fetched(report: MemoryReport, tmp_path: Path) -> None:
    file = tmp_path / "memory.html"
    file.write_bytes(memory_page(report.record))
    with opened(file) as seen:
        page = seen.page
        page.wait_for_selector("#chart-arena .bars path")
        assert page.locator("#chart-live .scatterlayer .trace").count() >= 2, "live bytes and the peak"
        assert page.locator("#chart-tiers .scatterlayer .trace").count() == 2
        bars = page.locator("#chart-arena .bars path")
        shown = {line.name for line in report.record.buffers if line.inside is None}
        assert bars.count() == len(shown)
        page.locator("#chart-arena").scroll_into_view_if_needed()
        box = bars.first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#chart-arena .hoverlayer .hovertext")
        card = page.locator("#chart-arena .hoverlayer").text_content() or ""
        assert any(name in card for name in shown) and "made by" in card and "float32" in card
        assert (seen.errors, seen.asked_for) == ([], [])


def many(count: int) -> MemoryRecord:
    """A record as large as a model of `count` operators gives."""
    buffers = tuple(
        BufferLine(
            f"value_{n}", 4096, 4096 * (n % 7), n, n + 6, "float32", (1, 1024), f"node_{n} (Add)", (), None, None
        )
        for n in range(count)
    )
    plan = tuple(StepLine(f"node_{n}", "Add", 7 * 4096, 1000.0, False) for n in range(count))
    return MemoryRecord(
        "large.onnx", {}, "given", 7 * 4096, 7 * 4096, 0, 7 * 4096, 0, True, "greedy", 0, 0, 6, "node_6 (Add)",
        buffers[:7], (), buffers, plan, (), None, (), None, None, 0.0, (),
    )  # fmt: skip


def test_five_thousand_operators_stay_readable(tmp_path: Path) -> None:
    file = tmp_path / "large.html"
    file.write_bytes(memory_page(many(5000)))
    with opened(file) as seen:
        page = seen.page
        page.wait_for_selector("#chart-arena .bars path", timeout=600_000)
        assert page.locator("#chart-arena .bars path").count() == 5000
        assert page.locator("#buffers tbody tr").count() == 100, "the table is cut, the chart is not"
        width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert (width, seen.errors) == (0, []), "nothing sticks out to the side"


def test_names_are_text_wherever_they_stand(report: MemoryReport) -> None:
    evil = "<script>alert(1)</script>"
    lines = tuple(msgspec.structs.replace(line, name=line.name + evil, inside=None) for line in report.record.buffers)
    page = memory_page(msgspec.structs.replace(report.record, model=evil, buffers=lines)).decode()
    assert evil not in page


def test_the_trace_holds_operators_buffers_and_the_live_bytes(report: MemoryReport) -> None:
    events = json.loads(memory_trace(report.record))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in slices if event["pid"] == 1} == {step.operator for step in report.record.steps}
    counted = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert counted == [step.live for step in report.record.steps] and max(counted) == report.record.peak
    rows: dict[int, list[tuple[float, float]]] = {}
    for event in slices:
        if event["pid"] == 2:
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        row.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(row)), "a row holds one at a time"


def test_the_terminal_says_what_the_record_says(report: MemoryReport) -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    print_memory(screen, report.record)
    said = stream.getvalue()
    assert f"peak           {binary_size(report.record.peak)} at step" in said
    assert "the least there is" in said and "simulated" in said and "live at the peak" in said


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1000, "1000 B"), (1024, "1 KiB"), (7_225_344, "6.89 MiB"), (1 << 40, "1 TiB")]
)
def test_bytes_in_words(count: int, text: str) -> None:
    assert binary_size(count) == text


def test_steps_in_words() -> None:
    assert steps(3, 8) == "3 to 7" and steps(4, 5) == "4"
