"""The memory record as a trace, in a terminal, and read back."""

from __future__ import annotations

import io
import json
from itertools import pairwise

import pytest

import graphopt
from graphopt.flows.memory import MemoryReport
from graphopt.model.text import binary_size, steps
from graphopt.report.memory.terminal import print_memory
from graphopt.report.memory.trace import memory_trace
from graphopt.report.screen import Screen
from tests.report.memory_models import exported


@pytest.fixture(scope="module")
def report() -> MemoryReport:
    return graphopt.memory(exported(), tiers="sram+flash")


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
