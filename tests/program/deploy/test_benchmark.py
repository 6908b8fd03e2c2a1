"""Programs beside ONNX Runtime: readings by turns, ratios that mean what they say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import graphopt
from graphopt.cli import app
from graphopt.errors import OptionError
from graphopt.flows.bench import measure
from graphopt.program.deploy.benchmark import Side, compare_sides, onnxruntime_side, openvino_side
from tests import support


def _busy(turns: int) -> Side:
    array = np.ones(2000, np.float32)

    def call() -> list[np.ndarray]:
        found = array
        for _ in range(turns):
            found = np.exp(array)
        return [found]

    return Side(f"{turns} turns", "f32", call)


def test_twice_the_work_is_about_half_the_speed() -> None:
    (found,) = compare_sides(_busy(40), [_busy(80)], rounds=9)
    assert found.low <= found.ratio <= found.high and 1.5 < found.ratio < 2.7
    assert found.max_abs == 0 and found.peer_ms > found.ours_ms > 0


def test_differences_are_of_the_results() -> None:
    ours = Side("ours", "f32", lambda: [np.array([1.0, 2.0], np.float32)])
    (found,) = compare_sides(ours, [Side("peer", "f32", lambda: [np.array([1.0, 4.0], np.float32)])], rounds=3)
    assert found.max_abs == 2 and found.max_rel == 0.5


def test_outputs_of_other_dims_are_told_apart() -> None:
    """Data may decide the dims, and rounding the data."""
    ours = Side("ours", "f32", lambda: [np.ones(2, np.float32)])
    (found,) = compare_sides(ours, [Side("peer", "f32", lambda: [np.ones(3, np.float32)])], rounds=3)
    assert found.max_abs == found.max_rel == np.inf


def test_maps_and_texts_are_compared() -> None:
    """As ZipMap gives them: a map for each row, and labels that may be texts."""

    def side(name: str, label: str, second: float) -> Side:
        return Side(name, "f32", lambda: [np.array([label]), [{0: 0.5, 1: second}]])

    same, others = side("peer", "a", 0.25), [side("other number", "a", 0.5), side("other text", "b", 0.25)]
    found = compare_sides(side("ours", "a", 0.25), [same, *others], rounds=3)
    assert [one.max_abs for one in found] == [0, 0.25, np.inf]


def test_onnxruntime_runs_and_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = support.model("g (float[4] x) => (float[4] y) { y = Exp(x) }").SerializeToString()
    side = onnxruntime_side(proto, {"x": np.zeros(4, np.float32)}, 1)
    np.testing.assert_array_equal(side.call()[0], np.ones(4))
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(OptionError, match="pip install openvino"):
        openvino_side(proto, {}, 1)


def test_the_command(tmp_path: Path) -> None:
    onnx.save(support.model("g (float[n,8] x) => (float[n,8] y) { a = Exp(x) y = Softmax(a) }"), tmp_path / "m.onnx")
    runner = CliRunner()
    ran = runner.invoke(app, ["bench", str(tmp_path / "m.onnx"), "--dim", "n=3", "--rounds", "3", "--json"])
    (result,) = json.loads(ran.stdout)["results"]
    assert result["comparison"]["peer"].startswith("onnxruntime") and result["comparison"]["max_abs"] < 1e-6
    assert runner.invoke(app, ["bench", str(tmp_path / "m.onnx"), "--against", "other"]).exit_code != 0


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("g (float[4] x) => (float[4] y) { y = Exp(x) }", "f32"),
        ("g (float16[4] x) => (float16[4] y) { y = Exp(x) }", "as in the file"),
        (
            "g (float[4] x) => (float[4] y) <float s = {0.1}> { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }",
            "as in the file",
        ),
    ],
)
def test_the_precision_of_both_sides_is_said(text: str, precision: str, tmp_path: Path) -> None:
    onnx.save(support.model(text), tmp_path / "m.onnx")
    (found,) = measure(tmp_path / "m.onnx", ["onnxruntime"], rounds=3)
    assert (found.precision, found.comparison.precision) == (precision, "as in the file")
    graphopt.compile(tmp_path / "m.onnx").save(tmp_path / "bundle")
    (found,) = measure(tmp_path / "m.onnx", ["onnxruntime"], bundle=tmp_path / "bundle", rounds=3)
    assert found.precision == "as compiled"
