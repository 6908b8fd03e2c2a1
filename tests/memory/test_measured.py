"""What a run tells about memory, and that nothing is told where it cannot be run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from graphopt.memory import measured
from graphopt.memory.measured import Growth, growth_in_onnxruntime
from graphopt.memory.observed import observed
from graphopt.model.load import load
from tests import support

TEXT = "g (float[2,4] x, float[4] z) => (float[2,4] y) { a = Exp(x) y = Add(a, z) }"


class Runs:
    """Stands for the process that runs the model: what it was asked, and what it prints."""

    def __init__(self, printed: str) -> None:
        self.printed, self.asked = printed, dict[str, object]()
        self.feed: list[np.ndarray] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.asked = json.loads(command[-1])
        with np.load(str(self.asked["feed"])) as arrays:
            self.feed = [arrays[name] for name in arrays.files]
        assert Path(str(self.asked["model"])).exists()
        return subprocess.CompletedProcess(command, 0, self.printed)


@pytest.mark.parametrize("keeping", [False, True])
def test_the_model_its_feed_and_its_options_are_handed_over(keeping: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs("[4096, 8192]")
    monkeypatch.setattr(measured.subprocess, "run", runs)
    monkeypatch.setattr(measured.Path, "exists", lambda _: True)
    assert growth_in_onnxruntime(load(support.model(TEXT)), keeping=keeping) == Growth(4096, 8192)
    assert (runs.asked["keeping"], runs.asked["names"], runs.asked["runs"]) == (keeping, ["x", "z"], measured.RUNS)
    assert [array.shape for array in runs.feed] == [(2, 4), (4,)]


def test_nothing_is_told_where_it_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(support.model(TEXT))
    monkeypatch.setattr(measured.subprocess, "run", Runs("no figure"))
    monkeypatch.setattr(measured.Path, "exists", lambda _: True)
    assert growth_in_onnxruntime(model, keeping=True) is None, "the process prints none"
    monkeypatch.setattr(measured.subprocess, "run", Runs("[1, 2]"))
    assert growth_in_onnxruntime(load(support.model(TEXT.replace("2,4", "n,4"))), keeping=True) is None, "a dim is open"
    monkeypatch.setattr(measured.Path, "exists", lambda _: False)
    assert growth_in_onnxruntime(model, keeping=True) is None, "the system tells no peak"


def test_shapes_are_seen_in_a_run() -> None:
    text = """g (float[2,4] x) => (float[2,4] y) {
        n = NonZero(x) e = Cast<to = 11>(n) s = SequenceConstruct(x, x) z = SequenceAt(s, i) y = Neg(z)
    }"""
    model = load(support.model(text, i=np.array(0)))
    assert observed(model, ["n", "e", "s", "z"]) == {
        "n": ("int64", (2, 8), 128), "e": ("float64", (2, 8), 128), "z": ("float32", (2, 4), 32),
    }  # fmt: skip


def test_a_model_that_stops_shows_nothing() -> None:
    """Row 9 of a table of two rows."""
    text = "g (float[2,4] x) => (float[4] y) { a = Exp(x) y = Gather(a, nine) }"
    assert observed(load(support.model(text, nine=np.array(9))), ["a"]) == {}
