"""`bench --scenario`: processes serve queries by turns, and say how long they took and how much memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.program.deploy.loadgen import ask_with_loadgen, summarized
from tests.cli.shell import Shell

BENCH = ("bench", "in.onnx", "--dim", "batch=2", "--queries", "16")


def test_one_query_after_another(shell: Shell) -> None:
    found = shell.run(*BENCH, "--scenario", "single-stream", "--json").json
    assert found["queries"] == 16 and found["scenario"] == "single-stream" and found["loadgen"] is None
    ours, peer = found["lines"]
    assert ours["name"] == "graphopt" and peer["name"].startswith("onnxruntime ") and ours["ratio"] is None
    for line in (ours, peer):
        assert 0 < line["p50"] <= line["p90"] <= line["p99"] and line["rate"] is None and line["memory"] > 0
    assert 0 < peer["low"] <= peer["ratio"] <= peer["high"]


def test_all_queries_at_once(shell: Shell) -> None:
    found = shell.run(*BENCH, "--scenario", "offline", "--threads", "2", "--json").json
    assert all(line["rate"] > 0 and line["p50"] is None for line in found["lines"]) and found["threads"] == 2


def test_a_table_for_people(shell: Shell) -> None:
    assert shell.run("compile", "in.onnx", "b", "--dim", "batch=2").status == 0
    lines = shell.run(*BENCH, "--scenario", "single-stream", "--bundle", "b").out.splitlines()
    assert any(line.startswith("graphopt ") and line.count(" ms") == 3 for line in lines)
    assert lines[-1] == "queries       16 of each, by turns; beside ours: above 1 ours is faster"


def test_a_runtime_that_cannot_serve_is_named(shell: Shell, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"a runtime ended while it served: .*manifest"):
        graphopt.serve(shell.folder / "in.onnx", [], "offline", dims={"batch": 2}, bundle=tmp_path, queries=8)


def test_too_few_queries_are_refused(shell: Shell) -> None:
    with pytest.raises(OptionError, match="7 queries are too few"):
        graphopt.serve(shell.folder / "in.onnx", [], "offline", queries=7)


def test_loadgen_asks_in_a_scenario(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert shell.run(*BENCH, "--loadgen", "logs").status == 2
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    with pytest.raises(OptionError, match="mlcommons-loadgen is not installed"):
        ask_with_loadgen(lambda: None, "offline", tmp_path)


def test_a_summary_of_loadgen_becomes_a_line() -> None:
    text = """Scenario : SingleStream
Result is : VALID
50.00 percentile latency (ns)   : 958
target_latency (ns): 0
"""
    assert summarized(text) == "Result is: VALID; 50.00 percentile latency (ns): 958"
    assert summarized("Samples per second: 12.5\n") == "Samples per second: 12.5"
