"""Pages of whole models: all of it in less than 5 MB, no error. `python -m bench.pages` takes pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphopt
import models
from graphopt.flows.memory_record import memory_record
from graphopt.flows.records.alias_classes import alias_classes
from graphopt.flows.records.memory import MemoryRecord
from graphopt.memory import plan
from graphopt.memory.tensors import model_memory
from graphopt.model.load import load
from graphopt.report.memory.page import memory_page
from graphopt.report.schedule.page import schedule_page
from tests.report.browser import Charted, opened, sideways

LIMIT = 5_000_000  # bytes


def in_the_files_order(name: str) -> MemoryRecord:
    """The plan that takes no search: what is drawn of another is no more."""
    memory = model_memory(load(models.load(name)))
    planned = plan.given(memory)
    return memory_record(memory, planned, model=name, dims={}, order="given", given_time=planned.time)


@pytest.mark.parametrize("name", ["unet_own", "bert_base", "nasnet_a_mobile"])
def test_a_model_s_memory_is_drawn_whole(name: str, tmp_path: Path) -> None:
    record, file = in_the_files_order(name), tmp_path / "memory.html"
    file.write_bytes(memory_page(record))
    assert file.stat().st_size < LIMIT
    with opened(file, width=1400) as seen:
        charted = Charted(seen.page)
        arena = next(series for series in charted.series("chart-left") if series["name"] == "arena")
        assert len(arena["data"]) == len(alias_classes(record.buffers))
        seen.page.select_option("#scope", "all")
        assert len(charted.rows("list")) == len(alias_classes(record.buffers))
        has_modules = seen.page.locator("#by option[value=module]").count() == 1
        assert has_modules == any(line.module for line in record.buffers), "all of these are torch's"
        assert (sideways(seen.page), seen.errors, seen.asked_for) == ([], [], [])


@pytest.mark.parametrize(("name", "policy"), [("nasnet_a_mobile", "blocks"), ("bert_base", "waves")])
def test_a_model_s_schedule_for_a_gpu_is_drawn_whole(name: str, policy: str, tmp_path: Path) -> None:
    record = graphopt.schedule(models.load(name), device="h200", policy=policy, work=0).record
    file = tmp_path / "schedule.html"
    file.write_bytes(schedule_page(record))
    assert file.stat().st_size < LIMIT and len(record.spans) > 10_000
    with opened(file, width=1400) as seen:
        charted = Charted(seen.page)
        assert len(charted.series("chart-gantt")[0]["data"]) == len(record.spans)
        assert len(charted.rows("list")) == len(record.ran)
        assert (sideways(seen.page), seen.errors, seen.asked_for) == ([], [], [])
