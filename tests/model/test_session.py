"""Models that are handed to an engine, whether bytes hold them or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.flows.bench import measure
from graphopt.model import session
from graphopt.model.load import load
from tests import support

WEIGHTS = np.random.default_rng(0).standard_normal((8, 300)).astype(np.float32)


def _model() -> onnx.ModelProto:
    return support.model("g (float[2,8] x) => (float[2,300] y) { y = MatMul(x, w) }", w=WEIGHTS)


def test_a_model_that_bytes_hold_is_bytes() -> None:
    with session.readable(load(_model())) as source:
        assert isinstance(source, bytes)


def test_a_larger_one_is_a_file_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SINGLE_FILE_LIMIT", 4000)
    monkeypatch.setattr("graphopt.model.save.SINGLE_FILE_LIMIT", 4000)
    with session.readable(load(_model())) as source:
        assert isinstance(source, str)
        assert {one.suffix for one in Path(source).parent.iterdir()} == {".onnx", ".data"}
    assert not Path(source).parent.exists()
    x = np.ones((2, 8), np.float32)
    for model in (load(_model()), _model()):
        (found,) = session.session_of(model).run(None, {"x": x})
        np.testing.assert_allclose(found, x @ WEIGHTS, rtol=1e-5)


def test_such_models_are_measured_run_and_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "SINGLE_FILE_LIMIT", 4000)
    monkeypatch.setattr("graphopt.model.save.SINGLE_FILE_LIMIT", 4000)
    file = tmp_path / "model.onnx"
    onnx.save(_model(), file)
    (record,) = measure(file, ["onnxruntime"], rounds=3)
    assert record.comparison.max_rel < 1e-5
    found = graphopt.optimize(file).session().run(None, {"x": np.ones((2, 8), np.float32)})[0]
    np.testing.assert_allclose(found, WEIGHTS.sum(0, keepdims=True).repeat(2, 0), rtol=1e-5)
