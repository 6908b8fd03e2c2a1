"""The memory record as a trace, in a terminal, and read back."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

import graphopt
from graphopt.flows.memory import MemoryReport
from graphopt.flows.records.encode import encode, read_memory
from graphopt.model.text import binary_size, steps
from graphopt.report.memory.terminal import print_memory
from graphopt.report.memory.trace import memory_trace
from graphopt.report.screen import Screen
from tests import support
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
    ("time", "said"), [(1.5, "50.0% slower than with enough sram"), (13.6, "13.6 times as long as with enough sram")]
)
def test_tiers_say_how_much_longer_in_percent_or_times(report: MemoryReport, time: float, said: str) -> None:
    assert report.record.tiers is not None
    slow = msgspec.structs.replace(report.record.tiers, time=time * report.record.tiers.fast_time)
    stream = io.StringIO()
    print_memory(Screen(stream), msgspec.structs.replace(report.record, tiers=slow))
    assert f"simulated {said}" in stream.getvalue()


def test_a_record_is_read_back_as_it_was_written(report: MemoryReport, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(encode(report.record))
    assert read_memory(tmp_path / "record.json") == report.record


def test_the_record_knows_modules_lines_kinds_and_padding(report: MemoryReport) -> None:
    buffers = {line.name: line for line in report.record.buffers}
    assert (buffers["a"].module, buffers["a"].source) == ("", "")
    assert (buffers["wide"].module, buffers["wide"].source) == ("net.1", "net.py:11")
    assert (buffers["a"].bytes, buffers["a"].padded) == (8 * 61 * 4, 1984), "rounded up to 64 bytes"
    assert (buffers["a"].kind, buffers["y"].kind) == ("activation", "output")
    given = {line.name: (line.kind, line.bytes, line.module, line.users) for line in report.record.given}
    assert given == {
        "w": ("weight", 32 * 61 * 4, "net.0", ("node_2",)),
        "x": ("input", 8 * 61 * 4, "", ("node_0", "node_1")),
    }
    assert report.record.plans == (), "other plans are kept where a page asks for them"


def test_what_a_branch_needs_is_scratch_of_its_node() -> None:
    record = graphopt.memory(
        support.model(
            """g (bool c, float[8] x) => (float[8] y) {
                y = If (c) <
                    then_branch = then () => (float[8] t) { p = Exp(x) q = Exp(p) t = Add(p, q) },
                    else_branch = other () => (float[8] e) { e = Neg(x) }
                >
            }"""
        )
    ).record
    kinds = {line.kind: line.bytes for line in record.at_peak}
    assert kinds == {"scratch": 3 * 32 + 32, "output": 32}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1000, "1000 B"), (1024, "1 KiB"), (7_225_344, "6.89 MiB"), (1 << 40, "1 TiB")]
)
def test_bytes_in_words(count: int, text: str) -> None:
    assert binary_size(count) == text


def test_steps_in_words() -> None:
    assert steps(3, 8) == "3 to 7" and steps(4, 5) == "4"
