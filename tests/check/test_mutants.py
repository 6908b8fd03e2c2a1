"""The harness of `bench.mutants`: the same changes by seed, no alarm about rounding, and both answers of the count."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest

from bench.mutants import changes, differ, trial
from bench.mutants.feeds import shown
from bench.mutants.sources import Source, session
from tests import support

TEXT = """g (float[n,4] x, int64[2] ids) => (float[n,4] y, float[2,3] z)
<float[1,4] b = {1.0, -2.0, 3.0, 0.5}, float low = {-6.0}, float high = {6.0}, int64[1] axes = {1}> {
    s = Sub(x, b) c = Clip(s, low, high) m = ReduceSum(c, axes) e = Elu(c) y = Div(e, m) z = Gather(table, ids) }"""
TABLE = np.arange(300, dtype=np.float32).reshape(100, 3)


def _model() -> onnx.ModelProto:
    return support.model(TEXT, table=TABLE)


def _changed(kind: str, seed: int) -> tuple[onnx.ModelProto, changes.Change | None]:
    model = _model()
    return model, changes.apply(model, kind, random.Random(seed))


@pytest.mark.parametrize("kind", sorted(changes.KINDS))
def test_a_change_is_the_same_by_seed_and_changes_the_model(kind: str) -> None:
    model, change = _changed(kind, 3)
    again, same = _changed(kind, 3)
    assert change is not None and change == same and change.kind == kind
    assert model.SerializeToString() == again.SerializeToString() != _model().SerializeToString()


def test_rounding_is_no_change_and_more_is() -> None:
    good = np.array([1.0, 100.0, 1e-6], np.float32)
    assert differ.change([good], [good * np.float32(1 + 1e-5)]) == ""
    assert differ.change([good], [good * np.float32(1.05)]) == "100 became 105, 2 of 3 elements"
    assert differ.change([good], [good + np.array([0, 0, 1e-3], np.float32)]) == ""  # far below the largest
    assert differ.change([good], [good[:2]]) == "shape [2] for [3]"
    assert differ.change([good], [np.array([1.0, 100.0, np.nan], np.float32)]) == "NaN in 1 other places"
    assert differ.change([np.array([1, 2])], [np.array([1, 3])]) == "1 of 2 elements"


def test_what_the_original_itself_does_not_hold_is_no_change() -> None:
    good, moved = np.array([1.0, 2.0], np.float32), np.array([1.0, 2.4], np.float32)
    assert differ.change([good], [moved])
    assert differ.change([good], [moved], [[np.array([1.0, 2.3], np.float32)]]) == ""
    assert differ.change([good], [moved], [[np.array([1.0, 2.01], np.float32)]])


def test_inputs_around_a_hint_hold_it() -> None:
    model = _model()
    running = session(model)
    source = Source("sum", "small", model, (), {}, 10, endless=False)
    found = list(shown(source, lambda feed: trial.outputs(running, feed), 1, (77.0,)))
    assert any(77 in one.feed["ids"] for one in found)
    assert any(77.0 in np.abs(one.feed["x"]) for one in found)


@pytest.mark.parametrize(("kind", "status"), [("operator", "different"), ("", "verified")])
def test_the_check_is_asked_for_its_word(
    kind: str, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A model that was not changed stands for one whose change the check does not see."""
    original = trial.Original("small", "mlp_tiny")
    other = onnx.ModelProto.FromString(original.source.model.SerializeToString())
    if kind:
        assert changes.apply(other, kind, random.Random(1)) is not None
    monkeypatch.setitem(trial.pending, 7, (original, other, original.common[0]))
    assert trial.judged(7, str(tmp_path)) == status
    saved = [] if status == "different" else ["7.feed.npz", "7.original.onnx", "7.wrong.onnx"]
    assert sorted(path.name for path in tmp_path.iterdir()) == saved
