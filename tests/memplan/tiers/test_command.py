"""`python -m memplan tiers` on a document: JSON out, and bad input in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from memplan.cli.tiers import InvalidTask, command, machine_of, read_task
from memplan.errors import MemplanError
from memplan.problem import InvalidProblem


def document() -> dict[str, Any]:
    """Two values of 4 KiB and a weight of 8 KiB; the fast tier holds two of the former."""
    values = [
        {"name": "x", "size": 4096, "kind": "input"},
        {"name": "w", "size": 8192, "kind": "constant"},
        {"name": "y", "size": 4096},
        {"name": "z", "size": 4096, "kind": "output"},
    ]
    operators = [
        {"name": "a", "inputs": ["x", "w"], "outputs": ["y"], "time": 10.0},
        {"name": "b", "inputs": ["y"], "outputs": ["z"], "time": 10.0},
    ]
    return {
        "schema": "memplan.tiers/1",
        "graph": {"values": values, "operators": operators},
        "machine": "dram+pmem",
        "capacities": {"dram": "8KiB"},
    }


def written(folder: Path, content: object) -> Path:
    file = folder / "problem.json"
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("options", [[], ["--mode", "async"], ["--method", "heuristic"], ["--method", "first-touch"]])
def test_the_weight_is_what_lies_in_the_slow_tier(tmp_path: Path, options: list[str]) -> None:
    result = CliRunner().invoke(command, [str(written(tmp_path, document())), *options], catch_exceptions=False)
    answer = json.loads(result.stdout)
    assert result.exit_code == 0 and answer["schema"] == "memplan.tiers-plan/1"
    fast, slow = answer["tiers"]
    assert (fast["name"], fast["capacity"], slow["name"]) == ("dram", 8192, "pmem")
    assert set(fast["offsets"]) == {"x", "y", "z"} and set(slow["offsets"]) == {"w"}
    # a: 8 KiB at 32 GB/s, 4 KiB read at 100 and 4 KiB written at 80 GB/s; b: 4 KiB read and 4 KiB written.
    expected = 8192 / 32 + 2 * (4096 / 100 + 4096 / 80)
    assert answer["time"] == pytest.approx(expected)
    assert answer["bound"] <= answer["time"] and answer["gap"] == pytest.approx(1 - answer["bound"] / answer["time"])
    assert answer["baselines"]["all fast"] < answer["time"] <= answer["baselines"]["first-touch"] * (1 + 1e-9)
    assert answer["baselines"]["first-touch"] < answer["baselines"]["all-slow"]
    assert {"value": "w", "tier": "pmem", "begin": 0, "end": 2} in answer["stays"]


def test_a_machine_may_stand_in_the_document(tmp_path: Path) -> None:
    tiers = [
        {"name": "sram", "capacity": "1KiB", "read_bandwidth": 2e9, "write_bandwidth": 2e9},
        {"name": "psram", "capacity": 1 << 20, "read_bandwidth": 1e8, "write_bandwidth": 1e8},
    ]
    content = document() | {"machine": {"name": "board", "memory": {"tier": tiers}}, "capacities": {"sram": 4096}}
    target = machine_of(read_task(written(tmp_path, content)))
    assert target.name == "board" and [tier.capacity for tier in target.tiers] == [4096, 1 << 20]
    result = CliRunner().invoke(command, [str(written(tmp_path, content)), "--mode", "sync"], catch_exceptions=False)
    assert json.loads(result.stdout)["machine"] == "board"


def test_documents_are_refused_by_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match="cannot be read: No such file or directory"):
        read_task(tmp_path / "nothing.json")
    (tmp_path / "text.json").write_text("tiers")
    with pytest.raises(InvalidTask, match="is no JSON"):
        read_task(tmp_path / "text.json")
    with pytest.raises(InvalidTask, match=r"no document of 'memplan.tiers/1': Invalid enum value 'memplan.graph/1'"):
        read_task(written(tmp_path, document() | {"schema": "memplan.graph/1"}))
    lacking = document()
    del lacking["graph"]["values"][0]["size"]
    with pytest.raises(InvalidTask, match=r"missing required field `size` - at `\$.graph.values\[0\]`"):
        read_task(written(tmp_path, lacking))
    circle = document()
    circle["graph"]["operators"].reverse()
    with pytest.raises(InvalidProblem, match="operator 'b' reads 'y', which is made later"):
        read_task(written(tmp_path, circle))


def test_tiers_that_cannot_hold_the_graph_are_refused(tmp_path: Path) -> None:
    content = document() | {"capacities": {"dram": 4096, "pmem": "8KiB"}}
    with pytest.raises(MemplanError) as raised:
        CliRunner().invoke(command, [str(written(tmp_path, content))], catch_exceptions=False)
    assert str(raised.value) == (
        "the model needs 16384 bytes at once and the tiers of 'dram+pmem' hold 12288: 4096 bytes too few."
    )
