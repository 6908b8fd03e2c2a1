"""`profile`: its record is what the stamps say, its page draws every block, its trace and its text tell the same."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

import graphopt
from graphopt.errors import BundleError, OptionError
from graphopt.flows.profile import Profiled, open_profiled, profile_record, summarized
from graphopt.flows.records.profile import ProfileRecord
from graphopt.flows.run import drawn_inputs
from graphopt.program.deploy import runtime
from graphopt.program.deploy.compiled import Compiled
from graphopt.program.deploy.manifest import MANIFEST, read_manifest
from graphopt.report.profile.page import profile_page
from graphopt.report.profile.terminal import nodes_of, print_profile
from graphopt.report.profile.trace import profile_trace
from graphopt.report.screen import Screen
from tests import support
from tests.cli.shell import Shell
from tests.report.browser import TWO_FRAMES, Charted, check_short_tables, check_sorting, opened, sideways

# Two chains side by side, large enough that two workers share them.
TEXT = """g (float[256,256] x) => (float[256,256] y) {
    a = MatMul(x, w) b = Relu(a) c = MatMul(b, w)
    d = MatMul(x, v) e = Softmax(d) f = MatMul(e, v)
    y = Add(c, f)
}"""


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    draw = np.random.default_rng(0)
    weights = {name: draw.standard_normal((256, 256)).astype(np.float32) / 16 for name in ("w", "v")}
    return graphopt.compile(support.model(TEXT, **weights), threads=2)


@pytest.fixture(scope="module")
def bundle(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "chains"
    compiled.save(folder)
    return folder


@pytest.fixture(scope="module")
def record(bundle: Path) -> ProfileRecord:
    return graphopt.profile(bundle, threads=2, rounds=3).record


def check_blocks(record: ProfileRecord) -> None:
    """Every block of every step once, on one worker that runs nothing else meanwhile."""
    kept = record.blocks
    assert sorted(zip(kept.step, kept.block, strict=True)) == [
        (line.step, block) for line in record.steps for block in range(line.blocks)
    ]
    for worker in range(record.workers):
        own = [(begin, end) for one, begin, end in zip(kept.worker, kept.begin, kept.end, strict=True) if one == worker]
        assert all(begin <= end for begin, end in own)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(own))


def test_two_workers_run_every_block_once_and_wait_for_what_they_need(
    compiled: Compiled, record: ProfileRecord
) -> None:
    check_blocks(record)
    assert record.workers == 2 and [line.worker for line in record.by_worker] == [0, 1]
    ticketed, kept = compiled.linked.listing.ticketed, record.blocks
    assert ticketed is not None, "the model is large enough for two"
    step, begin, end = (np.array(column) for column in (kept.step, kept.begin, kept.end))
    waited = [(run, needed) for run, before in ticketed.waits for needed in before]
    assert waited
    for run, needed in waited:
        assert end[step == needed].max() <= begin[step == run].min()


def test_one_worker_runs_the_steps_in_their_order(bundle: Path) -> None:
    record = graphopt.profile(bundle, threads=1, rounds=2).record
    check_blocks(record)
    assert record.workers == 1 and list(record.blocks.step) == sorted(record.blocks.step)
    assert all(begin >= end for end, begin in zip(record.blocks.end, record.blocks.begin[1:], strict=False))


def test_a_program_compiled_for_one_thread_is_profiled_from_its_model() -> None:
    record = graphopt.profile(support.model(TEXT, w=np.eye(256, dtype=np.float32), v=np.eye(256, dtype=np.float32)),
                              threads=1, rounds=1).record  # fmt: skip
    check_blocks(record)
    assert record.program == "model" and record.workers == 1


def test_steps_say_what_they_compute(compiled: Compiled, bundle: Path, record: ProfileRecord) -> None:
    regions, steps = compiled.lowered.regions, read_manifest(bundle).runs
    assert [line.operators for line in record.steps] == [
        tuple(node.operator for node in region.nodes) for region in regions
    ]
    assert sum(line.constants for line in record.steps) == 4 * 256 * 256 * 4, "each product reads its weights"
    assert [line.flops for line in record.steps] == [step.flops for step in steps]
    listing = compiled.linked.listing
    blocks = {kernel.name: kernel.blocks for kernel in listing.kernels}
    assert listing.ticketed is not None
    assert [line.blocks for line in record.steps] == [blocks[run.kernel] for run in listing.ticketed.runs]
    assert all(line.peak_share == pytest.approx(line.rate / record.peak) for line in record.steps)


def stamps(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    return np.sort(np.array(list(rows), runtime.STAMP), order="begin")


def test_figures_are_those_of_the_stamps(bundle: Path) -> None:
    """Two workers and two steps: step 1 is claimed first, and worker 1 waits 30 ns for it to end."""
    opened = open_profiled(bundle, threads=2)
    found = Profiled("two", opened.program, opened.steps[:2], (1, 0), opened.forms)
    call = stamps((0, 0, 0, 100, 200), (0, 1, 1, 110, 150), (1, 1, 0, 180, 220), (1, 0, 1, 205, 300))
    slow = call.copy()
    slow["end"] += 1000 * (slow["end"] == 300)
    record = summarized(found, np.array([1, 0]), [slow, call, call], 2, 2.0)
    assert (record.wall, record.rounds) == (200, 3)
    first, second = record.steps
    assert (second.wall, second.work, second.waited) == (100, 140, 10)
    assert (first.wall, first.work, first.waited) == (120, 135, 35)
    assert first.rate == first.flops / 135 and first.peak_share == first.rate / 2
    assert [(line.blocks, line.busy, line.waiting) for line in record.by_worker] == [(2, 195, 5), (2, 80, 120)]
    assert record.blocks.step == (1, 1, 0, 0) and record.blocks.begin == (0, 10, 80, 105)


def test_busy_and_waiting_are_all_of_a_workers_time(bundle: Path) -> None:
    record = graphopt.profile(bundle, threads=2, rounds=1).record
    for line in record.by_worker:
        assert line.busy + line.waiting == record.wall
    assert sum(line.work for line in record.steps) == sum(line.busy for line in record.by_worker)
    assert record.wall == max(record.blocks.end)


def test_the_record_is_read_back(record: ProfileRecord) -> None:
    report = graphopt.ProfileReport(record)
    assert msgspec.json.decode(report.json(), type=ProfileRecord) == record
    assert json.loads(report.json())["schema"] == "graphopt.profile/1"
    assert repr(report).startswith("<ProfileReport chains: ") and "\n" not in repr(report)
    assert report._repr_html_().startswith("<table>")


def test_a_manifest_of_an_earlier_version_is_read(compiled: Compiled, tmp_path: Path) -> None:
    compiled.save(tmp_path / "old")
    path = tmp_path / "old" / MANIFEST
    known = json.loads(path.read_text())
    known.pop("claims")
    known.pop("shared")
    for run in known["runs"]:
        for field in ("node", "operators", "constants"):
            run.pop(field, None)
    path.write_text(json.dumps(known))
    lines = graphopt.profile(tmp_path / "old", threads=1, rounds=1).record.steps
    assert [nodes_of(line) for line in lines] == [line.kernel for line in lines]


def test_more_blocks_than_were_expected_are_noted_in_a_second_call(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_ROOM", 2)
    program = open_profiled(bundle, threads=2).program
    found = program.profile(drawn_inputs(program))
    assert len(found) > 2 and len(program.profile(drawn_inputs(program))) == len(found)
    assert (np.diff(found["begin"]) >= 0).all()


def test_a_profile_leaves_the_program_as_it_was(bundle: Path) -> None:
    program = open_profiled(bundle, threads=2).program
    feeds = drawn_inputs(program)
    before = program.run(None, feeds)[0]
    program.profile(feeds)
    assert np.array_equal(program.run(None, feeds)[0], before)


def test_a_library_of_an_earlier_version_is_refused_by_name(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = open_profiled(bundle, threads=2).program
    later = program._interface.later
    monkeypatch.setattr(program._interface, "later", lambda name, *given: later(f"{name}d", *given))
    with pytest.raises(BundleError, match="has no function 'model_profiled'; compile the model again"):
        program.profile(drawn_inputs(program))
    program.run(None, drawn_inputs(program))


def test_a_bundle_of_ranges_is_profiled_at_any_of_their_sizes(tmp_path: Path) -> None:
    """Its steps run the blocks that the sizes leave; operations are told at the greatest sizes alone."""
    model = support.model("g (float[n,8,64] x) => (float[n,8,64] y) { y = Softmax(x) }")
    graphopt.compile(model, dims={"n": (1, 500)}, threads=1).save(tmp_path / "ranged")
    most, few = (graphopt.profile(tmp_path / "ranged", dims=dims).record for dims in (None, {"n": 1}))
    assert most.steps[0].flops == 12 * 500 * 8 * 64 and few.steps[0].flops == 0 == few.steps[0].rate
    assert sum(line.blocks for line in few.by_worker) < sum(line.blocks for line in most.by_worker)
    with pytest.raises(OptionError, match="dim 'n' is 501; 'ranged' was made for 1 to 500"):
        graphopt.profile(tmp_path / "ranged", dims={"n": 501})


def test_requests_that_do_not_fit_are_refused(bundle: Path) -> None:
    with pytest.raises(OptionError, match="0 rounds give no median"):
        graphopt.profile(bundle, rounds=0)
    with pytest.raises(OptionError, match="there is no input 'z'"):
        graphopt.profile(bundle, feeds={"z": np.zeros(1)})
    with pytest.raises(OptionError, match="is a bundle, whose shapes are fixed"):
        graphopt.profile(bundle, shapes={"x": [2]})
    with pytest.raises(OptionError, match="has no free dim 'n': it has none; profile its model"):
        graphopt.profile(bundle, dims={"n": 2})
    mixed = support.model("g (float[4] x, int64[2] e) => (float[m,n] y) { a = Relu(x) b = Exp(a) y = Expand(b, e) }",
                          z=np.array([0]))  # fmt: skip
    with pytest.raises(BundleError, match="this model is no program of its own"):
        graphopt.profile(mixed)


def test_the_text_has_a_line_for_each_step(record: ProfileRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = {}
    for in_order in (False, True):
        stream = io.StringIO()
        print_profile(Screen(stream), record, in_order=in_order)
        said[in_order] = stream.getvalue().splitlines()
    for lines in said.values():
        begin = next(number for number, line in enumerate(lines) if line.startswith(("─", "-")))
        end = lines.index("", begin)
        assert end - begin - 1 == len(record.steps)
        assert sum(line.split()[:1] == [str(worker.worker)] for worker in record.by_worker for line in lines) == 2
    assert sorted(said[False]) == sorted(said[True])


def test_the_trace_has_a_bar_for_each_block(record: ProfileRecord) -> None:
    events = json.loads(profile_trace(record))["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    kept = record.blocks
    assert [(bar["tid"], bar["args"]["step"], bar["args"]["block"]) for bar in bars] == list(
        zip(kept.worker, kept.step, kept.block, strict=True)
    )
    assert [round(1000 * bar["ts"]) for bar in bars] == list(kept.begin)
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == ["worker 0", "worker 1"]


@pytest.fixture(scope="module")
def file(record: ProfileRecord, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pages") / "profile.html"
    file.write_bytes(profile_page(record))
    return file


@pytest.fixture
def charted(file: Path) -> Iterator[Charted]:
    """The page, open; whatever a test does, it makes no error and fetches nothing."""
    with opened(file) as seen:
        yield Charted(seen.page)
        assert (seen.errors, seen.asked_for) == ([], [])


def test_every_block_has_its_bar(charted: Charted, record: ProfileRecord) -> None:
    bars = charted.series("chart-gantt")[0]["data"]
    unit = 1e3 if max(record.blocks.end) < 1e6 else 1e6
    assert [round(bar[0] * unit) for bar in bars] == list(record.blocks.begin)
    assert [round(bar[1] * unit) for bar in bars] == list(record.blocks.end)
    assert [bar[2] for bar in bars] == list(record.blocks.worker)


def test_a_click_on_a_row_marks_its_step(charted: Charted, record: ProfileRecord) -> None:
    page = charted.page
    row = page.locator("#list .tabulator-row button").first
    name = row.text_content() or ""
    row.click()
    assert name in (page.locator("#chosen").text_content() or "")
    assert page.locator("#list .tabulator-row.chosen").count() == 1
    page.locator("#chosen button").click()
    assert page.locator("#chosen").is_hidden() and page.locator("#list .chosen").count() == 0


def test_a_click_counts_on_a_table_that_just_came_into_sight(charted: Charted) -> None:
    page = charted.page
    page.set_viewport_size({"width": 1200, "height": 240})
    page.evaluate(TWO_FRAMES)
    button = page.locator("#list .tabulator-row button").first
    x, y = button.evaluate(
        """button => {
            button.scrollIntoView({ block: "center", behavior: "instant" });
            const box = button.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2];
        }"""
    )
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(TWO_FRAMES)
    page.mouse.up()
    assert page.locator("#list .tabulator-row.chosen").count() == 1


def test_an_operator_and_the_search_choose_steps(charted: Charted, record: ProfileRecord) -> None:
    page = charted.page
    page.locator("#groups").get_by_role("button", name="Softmax", exact=True).click()
    wanted = {nodes_of(line) for line in record.steps if line.operators[:1] == ("Softmax",)}
    assert {row["name"] for row in charted.rows("list")} == wanted != set()
    page.locator("#group-clear").click()
    assert len(charted.rows("list")) == len(record.steps)
    page.locator("#search").fill("softmax")
    assert {row["name"] for row in charted.rows("list")} == wanted


def test_tables_sort_by_every_column(charted: Charted) -> None:
    check_sorting(charted, "list")
    assert check_short_tables(charted.page) == 4


@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_fits_its_window(file: Path, width: int) -> None:
    with opened(file, width=width) as seen:
        Charted(seen.page)
        assert sideways(seen.page) == []
        assert (seen.errors, seen.asked_for) == ([], [])


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def test_the_command(bundle: Path, shell: Shell) -> None:
    missing = shell.run("profile", str(bundle))
    assert missing.status == 2 and "'x' is missing: give --input x=FILE.npy, or --random" in missing.err
    page, trace = shell.folder / "page.html", shell.folder / "trace.json"
    answer = shell.run(
        "profile", str(bundle), "--random", "--rounds", "2", "--threads", "2", "--json", "--html", str(page),
        "--trace", str(trace),
    )  # fmt: skip
    assert answer.status == 0
    found = msgspec.convert(answer.json, ProfileRecord)
    check_blocks(found)
    assert found.rounds == 2 and page.read_bytes().startswith(b"<!DOCTYPE html>")
    assert len(json.loads(trace.read_bytes())["traceEvents"]) == len(found.blocks.step) + 3
    np.save(shell.folder / "x.npy", np.zeros((256, 256), np.float32))
    given = shell.run("profile", str(bundle), "--input", str(shell.folder / "x.npy"), "--rounds", "1", "--in-order")
    assert given.status == 0 and "1 call, medians" in given.out


def test_inputs_reach_the_program(bundle: Path) -> None:
    found = open_profiled(bundle, threads=1)
    with pytest.raises(BundleError, match="input 'x' has the shape"):
        profile_record(found, {"x": np.zeros((2, 2), np.float32)}, 1, 1)
