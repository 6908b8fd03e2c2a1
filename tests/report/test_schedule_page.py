"""The schedule report: its page in a real browser, its trace, its text, and the command."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt.flows.records.schedule import RegionLine, ScheduleRecord, SpanLine
from graphopt.flows.schedule import ScheduleReport
from graphopt.report.schedule.page import schedule_page
from graphopt.report.schedule.terminal import duration, print_schedule
from graphopt.report.schedule.trace import schedule_trace
from graphopt.report.screen import Screen
from tests import support
from tests.cli.shell import Shell
from tests.program.test_plan import TEXT
from tests.report.browser import Charted, Scheme, check_short_tables, check_sorting, opened, sideways


def model() -> bytes:
    draw = np.random.default_rng(0)
    weights = {name: draw.standard_normal((64, 64)).astype(np.float32) for name in ("w", "v")}
    return support.model(TEXT, **weights).SerializeToString()


@pytest.fixture(scope="module")
def report() -> ScheduleReport:
    return graphopt.schedule(model(), device="cpu:2", work=1_500_000)


@pytest.fixture(scope="module")
def file(report: ScheduleReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pages") / "schedule.html"
    file.write_bytes(schedule_page(report.record))
    return file


@pytest.fixture
def charted(file: Path) -> Iterator[Charted]:
    """The page, open; whatever a test does, it makes no error and fetches nothing."""
    with opened(file) as seen:
        yield Charted(seen.page)
        assert (seen.errors, seen.asked_for) == ([], [])


def unit(record: ScheduleRecord) -> float:
    """Nanoseconds of one unit of the time axis."""
    return 1e3 if record.makespan < 1e6 else 1e6


def middle(record: ScheduleRecord, span: SpanLine) -> tuple[float, float]:
    """A point inside a bar; on a CPU rows are workers in their order."""
    rows = sorted({(one.multiprocessor, one.worker) for one in record.spans})
    return (span.start + span.end) / 2 / unit(record), rows.index((span.multiprocessor, span.worker))


def test_every_run_has_its_bar_on_its_worker(charted: Charted, report: ScheduleReport) -> None:
    record = report.record
    bars = charted.series("chart-gantt")[0]["data"]
    assert len(bars) == len(record.spans)
    for bar, span in zip(bars, record.spans, strict=True):
        # the page counts whole nanoseconds
        assert bar[0] * unit(record) == pytest.approx(span.start, abs=0.5 + 1e-6)
        assert bar[1] * unit(record) == pytest.approx(span.end, abs=1 + 1e-6)
        assert bar[2] == span.worker
    shares = charted.series("chart-utilisation")[0]["data"]
    assert shares == pytest.approx([100 * share for share in record.utilisation], abs=1e-3)


def test_a_cpu_has_workers_and_no_multiprocessors(charted: Charted) -> None:
    assert "multiprocessor" not in (charted.page.locator("body").inner_text()).lower()
    labels = charted.page.evaluate(
        """() => ["chart-gantt", "chart-utilisation"].flatMap(id => {
            const option = echarts.getInstanceByDom(document.getElementById(id)).getOption();
            return [...(option.yAxis[0].data ?? []), ...(option.xAxis[0].data ?? [])]; })"""
    )
    assert labels == ["worker 0", "worker 1", "0", "1"], "one label for each, none between them"


def test_pointing_at_a_bar_says_what_runs_there(charted: Charted, report: ScheduleReport) -> None:
    span = max(report.record.spans, key=lambda one: one.end - one.start)
    charted.page.mouse.move(*charted.place("chart-gantt", *middle(report.record, span)))
    card = charted.page.locator("#chart-gantt .detail")
    card.wait_for()
    said = card.text_content() or ""
    assert span.region in said and f"{span.blocks} blocks in {duration(span.end - span.start)}" in said
    assert f"worker {span.worker}" in said


def test_a_click_on_a_bar_marks_its_region_everywhere(charted: Charted, report: ScheduleReport) -> None:
    span = max(report.record.spans, key=lambda one: one.end - one.start)
    charted.click("chart-gantt", *middle(report.record, span))
    page = charted.page
    assert page.locator("#list .tabulator-row.chosen .pick").all_text_contents() == [span.region]
    assert span.region in (page.locator("#chosen").text_content() or "")
    page.locator("#chosen button").click()
    assert page.locator("#chosen").is_hidden() and page.locator("#list .chosen").count() == 0


def test_a_click_on_a_row_fades_the_bars_of_other_regions(charted: Charted) -> None:
    before = charted.colours("chart-gantt")
    row = charted.page.locator("#list .tabulator-row button").first
    row.click()
    assert charted.page.locator("#list .tabulator-row.chosen").count() == 1
    assert charted.colours("chart-gantt") != before
    row.click()
    assert charted.colours("chart-gantt") == before


def test_a_click_on_an_operator_lists_its_regions_alone(charted: Charted, report: ScheduleReport) -> None:
    page, ran = charted.page, report.record.ran
    assert {row["name"]: row["blocks"] for row in charted.rows("groups")} == {
        operator: sum(line.blocks for line in ran if line.operator == operator)
        for operator in {line.operator for line in ran}
    }
    page.locator("#groups").get_by_role("button", name="MatMul", exact=True).click()
    assert {row["name"] for row in charted.rows("list")} == {line.region for line in ran if line.operator == "MatMul"}
    page.locator("#group-clear").click()
    assert len(charted.rows("list")) == len(ran) and page.locator("#group-clear").is_hidden()


def test_the_search_finds_regions_and_operators(charted: Charted, report: ScheduleReport) -> None:
    ran = report.record.ran
    charted.page.locator("#search").fill("matmul")
    assert {row["operator"] for row in charted.rows("list")} == {"MatMul"}
    assert f"of {len(ran)} regions" in (charted.page.locator("#regions-said").text_content() or "")
    charted.page.locator("#search").fill(ran[0].region)
    assert ran[0].region in {row["name"] for row in charted.rows("list")}
    charted.page.locator("#search").fill("")
    assert len(charted.rows("list")) == len(ran)


def test_every_column_sorts_both_ways(charted: Charted) -> None:
    check_sorting(charted, "list")
    check_sorting(charted, "groups")
    assert check_short_tables(charted.page) == 3 + 3 + 3 + 5, "time, policies, bounds, schedule and memory"


def test_the_parts_of_the_time_add_up_to_all_of_it(charted: Charted) -> None:
    widths = charted.page.evaluate(
        "[...document.querySelectorAll('.parts span')].map(one => one.getBoundingClientRect().width)"
    )
    whole = charted.page.evaluate("document.querySelector('.parts').getBoundingClientRect().width")
    assert sum(widths) == pytest.approx(whole, abs=1), "pixels"
    shares = charted.page.locator("#time td:nth-child(3)")
    values = [float(cell.get_attribute("data-value") or "") for cell in shares.all()]
    assert len(values) == 7 and sum(values) == pytest.approx(100)


def test_a_bar_of_utilisation_leads_to_its_worker(charted: Charted) -> None:
    charted.place("chart-utilisation", 0, 1)
    charted.page.mouse.click(*charted.place("chart-utilisation", 0, 1))
    charted.page.wait_for_function("Math.abs(document.getElementById('gantt').getBoundingClientRect().top) < 40")


def test_the_bar_below_zooms_and_a_button_shows_everything(charted: Charted) -> None:
    page = charted.page
    page.locator("#chart-gantt").scroll_into_view_if_needed()
    x, _ = charted.place("chart-gantt", 0, 0)
    chart = page.locator("#chart-gantt").bounding_box()
    assert chart is not None
    down = chart["y"] + chart["height"] - 15  # the middle of the bar
    page.mouse.move(x, down)
    page.mouse.down()
    page.mouse.move(x + 300, down, steps=4)
    page.mouse.up()
    start, end = charted.zoomed("chart-gantt")
    assert start > 10 and end == 100
    page.locator("#whole").click()
    assert charted.zoomed("chart-gantt") == (0, 100)


def test_the_program_is_searched_and_saved_whole(charted: Charted, report: ScheduleReport) -> None:
    page, program = charted.page, report.record.program
    assert page.locator("#program-lines").text_content() == program
    page.locator("#program-search").fill("launch 0")
    assert page.locator("#program-lines").text_content() == program.splitlines()[1]
    assert "1 of" in (page.locator("#program-said").text_content() or "")
    with page.expect_download() as download:
        page.locator("#program-save").click()
    assert Path(download.value.path()).read_text() == program


def test_no_control_is_left_without_a_test(charted: Charted) -> None:
    assert charted.controls() == {"whole", "search", "group-clear", "program-search", "program-save"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_at_400_pixels(file: Path, scheme: Scheme) -> None:
    with opened(file, width=400, scheme=scheme) as seen:
        charted = Charted(seen.page)
        assert sideways(charted.page) == [] and seen.errors == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 400


def large(spans: int) -> ScheduleRecord:
    """A record of a GPU with 264 workers that run so many regions' blocks and wait for each other as often."""
    workers = 264
    ran = tuple(
        RegionLine(f"/cells.{n}/Conv", "Conv" if n % 3 else "Relu", 100, 1000.0, float(n), n + 9.0) for n in range(500)
    )
    lines = tuple(
        SpanLine(
            n % workers % 132, n % workers, ran[n % 500].region, 1, n // workers * 10.0, n // workers * 10.0 + 7.25
        )
        for n in range(spans)
    )
    waits = "; ".join(f"{n}-{n + 3} >= {n}" for n in range(0, workers, 5))
    program = "\n".join(f"  worker {n}: " + f"wait({waits})  " * 20 for n in range(workers))
    makespan = max(line.end for line in lines)
    return ScheduleRecord(
        "large.onnx", "h200", 500, False, "blocks", makespan, (), (), 1, 10**6, True, workers, 1e6, (0.5,) * 132,
        (), (), ran, lines, program, (),
    )  # fmt: skip


def test_twenty_thousand_bars_are_all_there_in_five_megabytes(tmp_path: Path) -> None:
    file, record = tmp_path / "large.html", large(20_000)
    file.write_bytes(schedule_page(record))
    assert file.stat().st_size < 5_000_000
    with opened(file) as seen:
        charted = Charted(seen.page)
        assert len(charted.series("chart-gantt")[0]["data"]) == 20_000
        assert len(charted.colours("chart-gantt")) >= 2, "both operators are seen"
        charted.page.mouse.click(*charted.place("chart-utilisation", 5, 10))
        rows = charted.option("chart-gantt", "dataZoom")[2]
        assert (rows["startValue"], rows["endValue"]) == (10, 11), "the two workers of the sixth multiprocessor"
        charted.page.locator("#program-search").fill("worker 263:")
        assert charted.page.locator("#program-lines").text_content() == record.program.splitlines()[263]
        assert (sideways(seen.page), seen.errors) == ([], [])


def test_the_record_adds_up(report: ScheduleReport) -> None:
    record = report.record
    assert record.makespan == min(line.makespan for line in record.policies)
    assert all(bound.time <= record.makespan * (1 + 1e-9) and bound.gap_percent >= -1e-6 for bound in record.bounds)
    assert sum(way.taken for way in record.ways) == 1 and all(0 <= share <= 1 for share in record.utilisation)
    spans = sorted(record.spans, key=lambda span: (span.multiprocessor, span.worker, span.start))
    for one, other in pairwise(spans):
        if (one.multiprocessor, one.worker) == (other.multiprocessor, other.worker):
            assert one.end <= other.start + 1e-6


@pytest.mark.parametrize("device", ["cpu:1", "cpu:2", "cpu:5", "h200"])
def test_work_and_the_causes_of_none_are_all_the_time_of_the_workers(device: str) -> None:
    record = graphopt.schedule(model(), device=device, work=100_000).record
    whole = record.workers * record.makespan
    # relative 1e-9: times are sums of floats, each exact to 2e-16 of the whole, of at most some thousand runs
    assert record.busy + sum(line.time for line in record.stalls) == pytest.approx(whole, rel=1e-9)
    assert 100 * record.busy / whole + sum(line.share_percent for line in record.stalls) == pytest.approx(100, rel=1e-9)
    assert all(line.time >= -1e-6 * whole for line in record.stalls), "no cause takes time away"


def test_regions_have_the_time_and_the_blocks_of_their_spans(report: ScheduleReport) -> None:
    record = report.record
    for line in record.ran:
        spans = [span for span in record.spans if span.region == line.region]
        assert sum(span.blocks for span in spans) == line.blocks
        assert (min(span.start for span in spans), max(span.end for span in spans)) == (line.start, line.end)
    assert {line.operator for line in record.ran} >= {"MatMul"}
    assert sum(line.time for line in record.ran) == pytest.approx(record.busy)


def test_the_trace_has_a_slice_for_every_span(report: ScheduleReport) -> None:
    events = json.loads(schedule_trace(report.record))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(report.record.spans)
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names <= {"worker 0", "worker 1"}, "a CPU has workers, no multiprocessors"


def test_the_terminal_says_that_it_is_simulated_and_safe(report: ScheduleReport) -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    print_schedule(screen, report.record)
    said = stream.getvalue()
    assert "on cpu:2, simulated" in said and "verified free of deadlock" in said
    assert "of the workers' time" in said and "multiprocessor" not in said
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
