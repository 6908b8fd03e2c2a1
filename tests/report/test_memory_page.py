"""The memory page in a real browser: it draws what the record says, and every click, choice and sort has its effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import graphopt
from graphopt.flows.records.alias_classes import AliasClass, alias_classes
from graphopt.flows.records.memory import BufferLine, MemoryRecord
from graphopt.model.text import binary_size
from graphopt.report.memory.page import memory_page
from tests.report.browser import Charted, Scheme, check_short_tables, check_sorting, opened, sideways
from tests.report.memory_models import exported, many

LIMIT = 5_000_000  # bytes of a page
CONTROLS = {
    "plan", "beside", "by", "step", "to-peak", "whole", "given", "scope", "left", "right", "search",
    "group-clear", "order", "tiles",
}  # fmt: skip


@pytest.fixture(scope="module")
def record() -> MemoryRecord:
    return graphopt.memory(exported(), tiers="sram+flash", points=3, what_if={"batch": [1, 2]}).record


@pytest.fixture(scope="module")
def file(record: MemoryRecord, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pages") / "memory.html"
    file.write_bytes(memory_page(record))
    return file


@pytest.fixture
def charted(file: Path) -> Iterator[Charted]:
    """The page, open; whatever a test does, it makes no error and fetches nothing."""
    with opened(file) as seen:
        yield Charted(seen.page)
        assert (seen.errors, seen.asked_for) == ([], [])


def live(record: MemoryRecord, step: int) -> list[AliasClass]:
    return [one for one in alias_classes(record.buffers) if one.begin <= step < one.end]


def names(charted: Charted) -> set[str]:
    return {row["name"] for row in charted.rows("list")}


def middle(one: AliasClass) -> tuple[float, float]:
    """A point inside a buffer's rectangle; of an arena of a few KiB, whose axis counts KiB."""
    return (one.begin + one.end) / 2, (one.root.offset + one.root.padded / 2) / 1024


def test_the_model_has_what_the_page_is_tried_with(record: MemoryRecord) -> None:
    order, tiles, larger = record.plans
    assert order.name == "the best order" and tiles.name.endswith(": 1 region in tiles")
    assert larger.name.endswith(": 1 region in tiles") and larger.arena > tiles.arena
    assert record.arena > record.plans[0].arena > record.plans[1].arena
    assert {line.kind for line in record.buffers} == {"activation", "output"}
    assert {line.kind for line in record.given} == {"input", "weight"}
    assert any(line.padded > line.bytes for line in record.buffers), "61 floats are no multiple of 64 bytes"


def test_the_layers_of_the_live_chart_add_up_to_the_live_bytes(charted: Charted, record: MemoryRecord) -> None:
    layers = [series for series in charted.series("chart-left") if series.get("stack") == "live"]
    assert len(layers) >= 3
    for step, line in enumerate(record.steps):
        total = sum(layer["data"][step][1] for layer in layers)
        assert total * 1024 == pytest.approx(line.live), "the axis counts KiB"
    arena = next(series for series in charted.series("chart-left") if series["name"] == "arena")
    shown = alias_classes(record.buffers)
    assert [bar[:2] for bar in arena["data"]] == [[one.begin, one.end] for one in shown]
    assert [bar[2] * 1024 for bar in arena["data"]] == [one.root.offset for one in shown]
    tiers = charted.series("chart-tiers")
    assert record.tiers is not None
    assert [series["name"].split(" ")[0] for series in tiers] == [tier.name for tier in record.tiers.tiers]


def test_pointing_at_a_buffer_says_what_it_is(charted: Charted, record: MemoryRecord) -> None:
    one = next(one for one in alias_classes(record.buffers) if one.root.name == "wide")
    charted.page.mouse.move(*charted.place("chart-left", *middle(one), grid=1))
    card = charted.page.locator("#chart-left .detail")
    card.wait_for()
    said = card.text_content() or ""
    assert "wide" in said and "node_1 (Concat)" in said and "also holdsb" in said and "net.py:11" in said
    assert "7.62 KiB" in said and "7,808 B with padding" not in said, "7808 bytes are 122 times 64"
    charted.page.mouse.move(*charted.place("chart-left", 0.5, 0.2))
    charted.page.wait_for_function("document.querySelector('#chart-left .detail')?.textContent.includes('step 0')")


def test_a_click_on_a_rectangle_marks_the_buffer_everywhere(charted: Charted, record: MemoryRecord) -> None:
    one = next(one for one in live(record, record.peak_step) if one.root.name == "wide")
    charted.click("chart-left", *middle(one), grid=1)
    page = charted.page
    assert page.locator("#list .tabulator-row.chosen").count() == 1
    assert "wide" in (page.locator("#list .tabulator-row.chosen").text_content() or "")
    assert "net.1" in (page.locator("#chosen").text_content() or "")
    outline = next(series for series in charted.series("chart-left") if series["name"] == "chosen")
    assert (outline["data"][0][0], outline["data"][-1][0]) == (one.begin, one.end)
    page.locator("#chosen button").click()
    assert page.locator("#list .tabulator-row.chosen").count() == 0 and page.locator("#chosen").is_hidden()


def test_a_click_on_a_rectangle_that_is_not_listed_lists_it(charted: Charted, record: MemoryRecord) -> None:
    one = next(one for one in alias_classes(record.buffers) if one.root.name == "z")
    assert one.begin > record.peak_step and "z" not in names(charted)
    charted.click("chart-left", *middle(one), grid=1)
    assert "z" in names(charted) and charted.page.locator("#step").input_value() == str(one.begin)
    assert charted.page.locator("#list .tabulator-row.chosen .pick").all_text_contents() == ["z"]
    charted.page.locator("#chosen button").click()
    charted.page.locator("#groups").get_by_role("button", name="Sin", exact=True).click()
    charted.click("chart-left", *middle(one), grid=1)
    assert charted.page.locator("#list .tabulator-row.chosen .pick").all_text_contents() == ["z"], "of another group"


def test_a_click_on_a_row_marks_the_buffer_and_another_click_takes_it_back(charted: Charted) -> None:
    row = charted.page.locator("#list .tabulator-row", has_text="wide").locator("button")
    row.click()
    assert charted.page.locator("#list .tabulator-row.chosen").count() == 1
    assert any(series["name"] == "chosen" for series in charted.series("chart-left"))
    row.click()
    assert not any(series["name"] == "chosen" for series in charted.series("chart-left"))


def test_a_click_on_a_step_lists_what_is_live_there(charted: Charted, record: MemoryRecord) -> None:
    assert names(charted) == {one.root.name for one in live(record, record.peak_step)}, "first, the peak"
    for step in (0, len(record.steps) - 1):
        charted.click("chart-left", step + 0.5, record.arena / 1024 * 0.9)
        assert names(charted) == {one.root.name for one in live(record, step)}
        assert charted.page.locator("#step").input_value() == str(step)
        assert f"live at step {step}" in (charted.page.locator("#buffers-said").text_content() or "")
    charted.page.locator("#to-peak").click()
    assert charted.page.locator("#step").input_value() == str(record.peak_step)
    charted.page.locator("#step").fill("1")
    charted.page.locator("#step").press("Enter")
    assert names(charted) == {one.root.name for one in live(record, 1)}
    charted.page.locator("#step").fill("999")
    charted.page.locator("#step").press("Enter")
    assert charted.page.locator("#step").input_value() == str(len(record.steps) - 1), "the last step there is"


def test_every_column_sorts_both_ways(charted: Charted) -> None:
    charted.page.select_option("#scope", "all")
    assert list(charted.fields("list")) == [
        "buffer", "bytes", "padded, B", "kind", "shape", "from", "to", "offset", "made by", "module", "source line",
    ]  # fmt: skip
    check_sorting(charted, "list")
    charted.page.select_option("#beside", index=1)
    assert list(charted.fields("groups")) == ["group", "live bytes", "right plan", "share", "buffers"]
    check_sorting(charted, "groups")
    assert check_short_tables(charted.page) == 4 + 5 + 3, "kinds, levers and other dims"


def test_the_search_finds_names_operators_modules_lines_and_what_lies_inside(charted: Charted) -> None:
    charted.page.select_option("#scope", "all")
    for wanted, expected in (("wid", {"wide"}), ("b", {"wide"}), ("reducemax", {"c", "z"}), ("net.py:16", {"z"})):
        charted.page.locator("#search").fill(wanted)
        assert expected <= names(charted) and len(names(charted)) < 5, wanted
    charted.page.locator("#search").fill("nowhere")
    assert names(charted) == set() and charted.page.locator("#list").get_by_text("no rows").is_visible()
    charted.page.locator("#search").fill("")
    assert {"a", "wide", "c", "y", "z"} <= names(charted)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("kind", {"activation", "output"}),
        ("operator", {"Exp", "Concat", "ReduceMax", "Sin"}),
        ("type", {"float32"}),
        ("module", {"not told", "net.0", "net.1"}),
        ("outer", {"not told", "net.0", "net.1"}),
        ("source", {"not told", "net.py:11", "net.py:13", "net.py:15", "net.py:16"}),
    ],
)
def test_colours_are_those_of_the_groups_in_the_legend(charted: Charted, by: str, expected: set[str]) -> None:
    charted.page.select_option("#by", by)
    rows = {row["name"]: row for row in charted.rows("groups")}
    assert set(rows) == expected
    layers = {series["name"] for series in charted.series("chart-left") if series.get("stack") == "live"}
    assert layers == expected
    style = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
    colours = {name: charted.page.evaluate(style, row["swatch"]) for name, row in rows.items()}
    assert len(set(colours.values())) == len(rows), "each group has a colour of its own"
    # 0.9 opaque on white: what is seen most of is among the legend's colours
    drawn = charted.colours("chart-left")
    largest = max(rows.values(), key=lambda row: row["left"])["name"]
    shade = tuple(int(colours[largest][at : at + 2], 16) for at in (1, 3, 5))
    assert any(max(abs(one - other) for one, other in zip(shade, seen, strict=True)) <= 32 for seen in drawn)


def test_a_click_on_a_group_shows_it_alone(charted: Charted) -> None:
    page = charted.page
    page.select_option("#scope", "all")
    everything = names(charted)
    row = page.locator("#groups .tabulator-row", has_text="ReduceMax").locator("button")
    row.click()
    assert names(charted) == {"c", "z"} and page.locator("#groups .tabulator-row.chosen").count() == 1
    page.locator("#group-clear").click()
    assert names(charted) == everything and page.locator("#group-clear").is_hidden()
    row.click()
    row.click()
    assert names(charted) == everything


def test_weights_and_inputs_join_on_request(charted: Charted, record: MemoryRecord) -> None:
    before = charted.drawn
    charted.page.select_option("#by", "kind")
    charted.settle(before)  # or a click below may meet a row that is just being replaced
    before = charted.drawn
    charted.page.locator("#given").check()
    charted.settle(before)
    rows = {row["name"]: row["left"] for row in charted.rows("groups")}
    assert (rows["weight"], rows["input"]) == (record.weights, record.inputs)
    assert {"x", "w"} <= names(charted)
    charted.page.locator("#list").get_by_role("button", name="w", exact=True).click()
    charted.page.locator("#chosen").get_by_text("outside the arena").first.wait_for()
    charted.page.locator("#given").uncheck()
    assert not {"x", "w"} & names(charted)


def test_the_first_table_has_every_kind_with_its_bytes(charted: Charted, record: MemoryRecord) -> None:
    rows = charted.page.locator("#kinds tbody tr").all()
    said = {row.locator("td").nth(0).text_content(): row.locator("td").nth(1).text_content() for row in rows}
    at_peak = {"activations": 0, "outputs": 0}
    for line in record.at_peak:
        at_peak[f"{line.kind}s"] += line.padded
    assert sum(at_peak.values()) == record.peak
    expected = {**at_peak, "inputs": record.inputs, "weights": record.weights}
    assert said == {kind: binary_size(size) for kind, size in expected.items() if size}


def test_two_plans_stand_side_by_side(charted: Charted, record: MemoryRecord) -> None:
    page, other = charted.page, record.plans[1]
    assert page.locator("#side-right").is_hidden() and page.locator("#comparison").is_hidden()
    page.select_option("#beside", label=other.name)
    assert page.locator("#side-right").is_visible()
    arena = next(series for series in charted.series("chart-right") if series["name"] == "arena")
    assert len(arena["data"]) == len(alias_classes(other.buffers))
    row = page.locator("#comparison tbody tr", has_text="arena").locator("td")
    change = f"−{binary_size(record.arena - other.arena)}"
    assert row.all_text_contents() == [binary_size(record.arena), binary_size(other.arena), change]
    page.locator("button[value=right]").click()
    assert "right plan" in (page.locator("#buffers-said").text_content() or "")
    assert {name.split("#")[0] for name in names(charted)} <= {line.name for line in other.buffers}
    page.locator("button[value=left]").click()
    page.select_option("#plan", index=1)
    assert page.locator("#name-left").text_content() == record.plans[0].name
    page.select_option("#beside", "-1")
    assert page.locator("#side-right").is_hidden()


def test_a_step_of_the_right_plan_is_chosen_there(charted: Charted, record: MemoryRecord) -> None:
    charted.page.select_option("#beside", label=record.plans[0].name)
    charted.click("chart-right", 0.5, record.plans[0].arena / 1024 * 0.9)
    first = {one.root.name for one in alias_classes(record.plans[0].buffers) if one.begin <= 0 < one.end}
    assert names(charted) == first
    assert charted.page.locator("button[value=right]").get_attribute("aria-pressed") == "true"


def test_a_buffer_is_marked_in_both_plans_and_fades_none_that_lacks_it(charted: Charted, record: MemoryRecord) -> None:
    order, tiles, _ = record.plans
    assert "wide" in {line.name for line in order.buffers} - {line.name for line in tiles.buffers}
    row = charted.page.locator("#list").get_by_role("button", name="wide", exact=True)
    charted.page.select_option("#beside", label=order.name)
    row.click()
    for chart in ("chart-left", "chart-right"):
        assert any(series["name"] == "chosen" for series in charted.series(chart))
    assert charted.page.locator("#chosen .detail").count() == 2
    row.click()
    charted.page.select_option("#beside", label=tiles.name)
    before = charted.colours("chart-right")
    row.click()
    assert charted.colours("chart-right") == before and charted.page.locator("#chosen .detail").count() == 1


def test_levers_and_points_of_the_curve_lead_to_their_plans(charted: Charted, record: MemoryRecord) -> None:
    page = charted.page
    for number, plan in enumerate((record.plans[2], record.plans[1])):  # by arena, the largest first
        page.locator("#levers tr[data-plan] button", has_text="tiles").nth(number).click()
        assert page.locator("#name-right").text_content() == plan.name
    page.locator("#levers tr[data-plan] button", has_text="order").first.click()
    assert page.locator("#name-right").text_content() == record.plans[0].name
    least = min(record.curve, key=lambda point: point.arena)
    charted.click("chart-curve", least.arena / 1024, least.extra_time_percent)
    assert page.locator("#name-right").text_content() == least.plan


def test_the_bar_below_the_charts_zooms_and_a_button_shows_all_steps(charted: Charted) -> None:
    page = charted.page
    assert charted.zoomed("chart-left") == (0, 100)
    x, _ = charted.place("chart-left", 0, 0, grid=1)
    chart = page.locator("#chart-left").bounding_box()
    assert chart is not None
    down = chart["y"] + chart["height"] - 13  # the middle of the bar
    page.mouse.move(x, down)
    page.mouse.down()
    page.mouse.move(x + 300, down, steps=4)
    page.mouse.up()
    start, end = charted.zoomed("chart-left")
    assert start > 10 and end == 100
    page.locator("#whole").click()
    assert charted.zoomed("chart-left") == (0, 100)


def test_no_control_is_left_without_a_test(charted: Charted) -> None:
    assert charted.controls() == CONTROLS


def test_results_of_other_runs_can_be_chosen_beside(record: MemoryRecord, tmp_path: Path) -> None:
    budget = graphopt.memory(exported(), budget=6000).record
    file = tmp_path / "both.html"
    file.write_bytes(memory_page(record, (budget, msgspec.structs.replace(budget, model="after.onnx"))))
    with opened(file) as seen:
        charted = Charted(seen.page)
        listed = charted.page.locator("#beside option").all_text_contents()
        named = f"{record.model} (1): this plan: in tiles"
        assert listed == [
            "nothing", "this plan: the file's order", *(plan.name for plan in record.plans), named,
            "after.onnx: this plan: in tiles",
        ]  # fmt: skip
        charted.page.select_option("#beside", label=named)
        row = charted.page.locator("#comparison tbody tr", has_text="arena").locator("td").nth(1)
        assert row.text_content() == binary_size(budget.arena)
        assert (seen.errors, seen.asked_for) == ([], [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_at_400_pixels(file: Path, scheme: Scheme) -> None:
    with opened(file, width=400, scheme=scheme) as seen:
        charted = Charted(seen.page)
        charted.page.select_option("#beside", index=2)
        assert sideways(seen.page) == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 400
        holder = seen.page.locator("#list .tabulator-tableholder")
        last = seen.page.locator("#list .tabulator-col-title").last
        assert not last.is_visible() or holder.evaluate("one => one.scrollWidth > one.clientWidth")
        holder.evaluate("one => one.scrollTo(one.scrollWidth, 0)")
        cell = seen.page.locator("#list .tabulator-row").first.locator(".tabulator-cell").last.bounding_box()
        assert cell is not None and cell["x"] + cell["width"] <= 400, "the last column can be reached"
        assert seen.errors == []


def test_colours_follow_light_and_dark(file: Path) -> None:
    with opened(file) as seen:
        charted = Charted(seen.page)
        light = charted.colours("chart-left")
        before = charted.drawn
        seen.page.emulate_media(color_scheme="dark")
        charted.settle(before)
        assert charted.colours("chart-left") != light
        assert seen.errors == []


def test_without_scripts_figures_levers_and_the_peak_are_read(record: MemoryRecord, file: Path) -> None:
    with opened(file, scripts=False) as seen:
        said = seen.page.locator("main").text_content() or ""
        assert all(line.name in said for line in record.at_peak) and record.levers[-1].note in said


def test_names_are_text_wherever_they_stand(record: MemoryRecord, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)></script><script>alert(2)</script>{{ 7 * 7 }}"

    def renamed(line: BufferLine) -> BufferLine:
        return msgspec.structs.replace(
            line, name=line.name + evil, inside=None, producer=evil, module=evil, source=evil, users=(evil,), dtype=evil
        )

    lines = tuple(renamed(line) for line in record.buffers)
    bad = msgspec.structs.replace(record, model=evil, buffers=lines, at_peak=lines[:2], notes=(evil,))
    file = tmp_path / "evil.html"
    file.write_bytes(memory_page(bad))
    assert evil not in file.read_text()
    with opened(file) as seen:
        charted, shown = Charted(seen.page), []
        seen.page.on("dialog", lambda dialog: (shown.append(dialog.message), dialog.dismiss()))
        for by in ("kind", "operator", "module", "source", "type"):
            seen.page.select_option("#by", by)
        seen.page.select_option("#scope", "all")
        seen.page.locator("#list .tabulator-row button").first.click()
        charted.page.mouse.move(*charted.place("chart-left", 0.5, 0.2))
        assert seen.page.locator("main img").count() == 0
        assert (shown, seen.errors, seen.asked_for) == ([], [], [])


def test_five_thousand_operators_stay_readable(tmp_path: Path) -> None:
    file = tmp_path / "large.html"
    file.write_bytes(memory_page(many(5000)))
    assert file.stat().st_size < LIMIT
    with opened(file) as seen:
        charted = Charted(seen.page)
        arena = next(series for series in charted.series("chart-left") if series["name"] == "arena")
        assert len(arena["data"]) == 5000
        charted.page.select_option("#scope", "all")
        assert len(charted.rows("list")) == 5000 > seen.page.locator("#list .tabulator-row").count()
        charted.page.locator("#search").fill("value_4321")
        assert names(charted) == {"value_4321"}
        assert (sideways(seen.page), seen.errors) == ([], [])
