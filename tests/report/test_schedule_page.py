"""The schedule report: its page in a real browser, its trace, its text, and the command."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt.flows.schedule import ScheduleReport
from graphopt.report.schedule.page import schedule_page
from graphopt.report.schedule.terminal import duration, print_schedule
from graphopt.report.schedule.trace import schedule_trace
from graphopt.report.screen import Screen
from tests import support
from tests.cli.shell import Shell
from tests.program.test_plan import TEXT
from tests.report.browser import opened


def model() -> bytes:
    draw = np.random.default_rng(0)
    weights = {name: draw.standard_normal((64, 64)).astype(np.float32) for name in ("w", "v")}
    return support.model(TEXT, **weights).SerializeToString()


@pytest.fixture(scope="module")
def report() -> ScheduleReport:
    return graphopt.schedule(model(), device="cpu:2", work=1_500_000)


def test_the_gantt_chart_is_drawn_and_read_by_pointing(report: ScheduleReport, tmp_path: Path) -> None:
    file = tmp_path / "schedule.html"
    file.write_bytes(schedule_page(report.record))
    with opened(file) as seen:
        page = seen.page
        page.wait_for_selector("#chart-gantt .bars path")
        bars = page.locator("#chart-gantt .bars path")
        assert bars.count() == len(report.record.spans)
        assert page.locator("#chart-utilisation .bars path").count() == len(report.record.utilisation)
        page.locator("#chart-gantt").scroll_into_view_if_needed()
        box = bars.first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#chart-gantt .hoverlayer .hovertext")
        card = page.locator("#chart-gantt .hoverlayer").text_content() or ""
        assert "blocks" in card and "worker" in card
        assert (seen.errors, seen.asked_for) == ([], [])


def test_the_record_adds_up(report: ScheduleReport) -> None:
    record = report.record
    assert record.makespan == min(line.makespan for line in record.policies)
    assert all(bound.time <= record.makespan * (1 + 1e-9) and bound.gap_percent >= -1e-6 for bound in record.bounds)
    assert sum(way.taken for way in record.ways) == 1 and all(0 <= share <= 1 for share in record.utilisation)
    spans = sorted(record.spans, key=lambda span: (span.multiprocessor, span.worker, span.start))
    for one, other in pairwise(spans):
        if (one.multiprocessor, one.worker) == (other.multiprocessor, other.worker):
            assert one.end <= other.start + 1e-6


def test_the_trace_has_a_slice_for_every_span(report: ScheduleReport) -> None:
    events = json.loads(schedule_trace(report.record))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(report.record.spans)


def test_the_terminal_says_that_it_is_simulated_and_safe(report: ScheduleReport) -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    print_schedule(screen, report.record)
    said = stream.getvalue()
    assert "on cpu:2, simulated" in said and "verified free of deadlock" in said
    assert "lower bound" in said and "schedule and memory" in said


def test_the_command_writes_what_it_is_asked_for(shell: Shell) -> None:
    (shell.folder / "m.onnx").write_bytes(model())
    answer = shell.run(
        "schedule", "m.onnx", "--device", "cpu:2", "--work", "1500000", "--json", "--html", "s.html",
        "--trace", "s.trace", "--program", "p.json",
    )  # fmt: skip
    assert answer.status == 0
    assert {"s.html", "s.trace", "p.json"} <= shell.files()
    assert answer.json["schema"] == "graphopt.schedule/1"


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--device", "cpu:0"], 1, "a CPU with 0 workers runs nothing"),
        (["--device", "h9000"], 1, "there is no device 'h9000'"),
        (["--device", "cpu:2", "--policy", "magic"], 2, "--policy: there is no policy 'magic'; there are best,"),
        (["--device", "cpu:2"], 1, "depends on the dim 'batch'"),
        (["--device", "cpu:2", "--program", "in.onnx"], 2, "--program: 'in.onnx' is the input itself; choose another"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(shell: Shell, options: list[str], status: int, said: str) -> None:
    source = "in.onnx" if "cpu:2" in options else "m.onnx"
    (shell.folder / "m.onnx").write_bytes(model())
    answer = shell.run("schedule", source, *options)
    lines = answer.err.splitlines()
    assert answer.status == status and len(lines) == 1 and said in lines[0], answer.err


@pytest.mark.parametrize(("time", "text"), [(0.0, "0 ns"), (742_000.0, "742 us"), (1.5e6, "1.5 ms"), (2e9, "2 s")])
def test_times_in_words(time: float, text: str) -> None:
    assert duration(time) == text
