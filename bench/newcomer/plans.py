"""Rows of memory and schedules: the pages in a browser, and figures that stay the same and add up."""

from __future__ import annotations

import math
from pathlib import Path

import graphopt
from bench.newcomer.place import Place
from bench.newcomer.row import Row, Seen, better, level, require
from graphopt.flows.records.alias_classes import alias_classes
from tests.report.browser import Charted, opened, sideways

PHONE = 400  # pixels across


def memory_page(place: Place) -> Seen:
    """A click on a buffer chooses it in the list, the list is searched, kinds have colours, two runs stand together."""
    report = graphopt.memory(place / "image.onnx", points=2)
    report.write(place / "memory.html", beside=[report])
    one = max(alias_classes(report.record.buffers), key=lambda one: one.root.padded)
    with opened(place / "memory.html", width=1400) as seen:
        charted = Charted(seen.page)
        middle = (one.begin + one.end) / 2, (one.root.offset + one.root.padded / 2) / 1024  # the axis counts KiB
        charted.click("chart-left", *middle, grid=1)
        chosen = seen.page.locator("#list .tabulator-row.chosen")
        require(chosen.count() == 1 and one.root.name in (chosen.text_content() or ""), "the click chose nothing")
        require({"search", "beside", "by"} <= charted.controls(), charted.controls())
        require(not seen.errors and not seen.asked_for, (seen.errors, seen.asked_for))
    return better("linked by click, searched, sorted, coloured by kind, beside another run; XProf shows one run")


def phone(place: Place) -> Seen:
    """No page sticks out of a phone's width: memory, schedule, rewrites, results of a folder."""
    graphopt.memory(place / "image.onnx", levers=()).write(place / "m.html")
    graphopt.schedule(place / "image.onnx", device="cpu:2", work=1000).write(place / "s.html")
    graphopt.optimize(place / "image.onnx", details=True).write(place / "o.html")
    models = place / "models"
    models.mkdir()
    for name in ("image", "layers", "chain"):
        (models / f"{name}.onnx").write_bytes((place / f"{name}.onnx").read_bytes())
    (models / "damaged.onnx").write_bytes(b"no model at all")
    done = place.graphopt("optimize", "models", "results")
    require(done.status == 1 and (place / "results" / "results.html").exists(), done.err)
    for page in ("m.html", "s.html", "o.html", Path("results") / "results.html"):
        with opened(place.folder / page, width=PHONE) as seen:
            wide = sideways(seen.page)
            require(not wide and not seen.errors, f"{page}: {wide} {seen.errors}")
    return level(f"four pages at {PHONE} pixels: what is wider scrolls in a container of its own")


def same_answers(place: Place) -> Seen:
    """Two runs of memory, one with a new cache of compiled solvers, give the same bytes."""
    cache = place / "cache"
    cache.mkdir()
    first = place.graphopt("memory", "image.onnx", "--json")
    second = place.graphopt("memory", "image.onnx", "--json", NUMBA_CACHE_DIR=str(cache))
    require(first.status == 0 and first.out == second.out, "the answers differ")
    return level("the same bytes warm and with nothing compiled; limits are counted in work")


def schedule_page(place: Place) -> Seen:
    """The time of the workers adds up, a CPU has workers, and the page has a legend."""
    record = place.graphopt(
        "schedule", "image.onnx", "--device", "cpu:2", "--json", "--html", "schedule.html", "--work", "1000"
    ).json
    idle = sum(stall["time"] for stall in record["stalls"])
    whole = record["workers"] * record["makespan"]
    require(math.isclose(record["busy"] + idle, whole, rel_tol=1e-9), (record["busy"], idle, whole))
    page = (place / "schedule.html").read_text()
    require("multiprocessor" not in place.graphopt("schedule", "image.onnx", "--device", "cpu:2").out, "multiprocessor")
    require("legend" in page, "there is no legend")
    return level("busy and idle add up to workers times makespan; Gantt, bounds, legend, trace for Perfetto")


ROWS = (
    Row(25, "memory page", "XProf, memory_viz", memory_page),
    Row(26, "pages in a phone's width", "any Bootstrap table", phone),
    Row(27, "answers of memory are the same every time", "XLA", same_answers),
    Row(28, "schedule page", "Nsight, Perfetto", schedule_page),
)
