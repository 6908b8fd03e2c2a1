"""The memory page of models that need nearly nothing, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphopt
from graphopt.flows.records.alias_classes import alias_classes
from graphopt.report.memory.page import memory_page
from tests import support
from tests.report.browser import Charted, opened


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4] x) => (float[4] y) { y = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>() }",  # no step at all
        "g (float[0] x) => (float[0] y) { y = Exp(x) }",  # a step that needs no byte
        "g (float[4] x) => (float[4] y) { y = Identity(x) }",
    ],
)
def test_models_that_need_nearly_nothing_have_pages(text: str, tmp_path: Path) -> None:
    record, file = graphopt.memory(support.model(text), points=3).record, tmp_path / "small.html"
    file.write_bytes(memory_page(record))
    with opened(file) as seen:
        charted = Charted(seen.page)
        assert len(charted.rows("list")) == len(alias_classes(record.buffers))
        seen.page.locator("#given").check()
        seen.page.locator("#step").fill("3")
        seen.page.locator("#step").press("Enter")
        assert seen.page.locator("#step").input_value() == "0"
        assert len(charted.rows("list")) == len(alias_classes(record.buffers)) + len(record.given)
        assert (seen.errors, seen.asked_for) == ([], [])
