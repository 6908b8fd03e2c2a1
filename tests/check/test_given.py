"""The user's own feeds: every form in which they come, and what is said of those that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphopt
from tests import support

ABOVE = "g (float[n,2] x) => (float[n,2] y) <float hundred = {5000.0}> { y = Min(x, hundred) }"
X = np.array([[1.0, 9000.0]], np.float32)


def _pair() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Two models that differ for inputs above 7,000, which no seeded feed has."""
    text = """g (float[n,2] x) => (float[n,2] y) {
        seven = Constant<value_floats = [6900.0]>() hundred = Constant<value_floats = [100.0]>()
        a = Sub(x, seven) b = Sub(a, hundred) c = Relu(b) y = Add(x, c)
    }"""
    return support.model(text), support.model(text.replace("Add(x, c)", "Identity(x)"))


def test_a_feed_of_the_user_shows_what_seeded_ones_do_not() -> None:
    one, other = _pair()
    assert graphopt.verify(one, other).status == "verified"
    found = graphopt.verify(one, other, feeds={"x": X})
    assert found.status == "different"
    assert found.draws[0] == "given"


def test_feeds_come_as_files_and_folders(tmp_path: Path) -> None:
    one, other = _pair()
    np.savez(tmp_path / "one.npz", x=X)
    (tmp_path / "many").mkdir()
    np.savez(tmp_path / "many" / "a.npz", x=X * 0)
    np.savez(tmp_path / "many" / "b.npz", x=X)
    for number, array in ((2, X * 0), (10, X)):
        folder = tmp_path / "sets" / f"test_data_set_{number}"
        folder.mkdir(parents=True)
        (folder / "input_0.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    for source in (tmp_path / "one.npz", tmp_path / "many", tmp_path / "sets", [tmp_path / "one.npz"]):
        assert graphopt.verify(one, other, feeds=source).status == "different"
    assert graphopt.verify(one, other, feeds=tmp_path / "sets" / "test_data_set_2").status == "verified"


def test_expected_outputs_are_compared_with_the_original() -> None:
    model = support.model("g (float[2] x) => (float[2] y) { i = Identity(x) y = Neg(i) }")
    x = np.array([1, 2], np.float32)
    assert graphopt.optimize(model, feeds={"x": x, "y": -x}).verification.passed
    verdict = graphopt.optimize(model, feeds={"x": x, "y": x}).verification
    assert verdict.status == "not run"
    assert verdict.reason is not None and verdict.reason.startswith(
        "the model does not give output 'y' as feed 0 has it"
    )


@pytest.mark.parametrize(
    ("feed", "fault"),
    [
        ({"z": X}, "feed 0 has 'z', which is neither an input nor an output; there is 'x'."),
        ({}, "feed 0 lacks input 'x'."),
        ({"x": X.astype(np.float64)}, "feed 0: input 'x' takes float32, and the array is of float64."),
        ({"x": X[0]}, "feed 0: input 'x' has the dims [?, 2], and the array [2]."),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(feed: dict[str, np.ndarray], fault: str) -> None:
    with pytest.raises(graphopt.OptionError) as caught:
        graphopt.verify(support.model(ABOVE), support.model(ABOVE), feeds=feed)
    assert str(caught.value) == fault


def test_a_feed_that_the_model_refuses_is_said_to_be_refused() -> None:
    model = support.model("g (int64[1] i) => (float[1] y) { y = Gather(t, i) }", t=np.arange(3, dtype=np.float32))
    with pytest.raises(graphopt.OptionError, match="the model does not accept feed 0: "):
        graphopt.verify(model, model, feeds={"i": np.array([7])})


def test_paths_without_feeds_are_refused(tmp_path: Path) -> None:
    model = support.model(ABOVE)
    (tmp_path / "text.npz").write_text("no arrays")
    (tmp_path / "empty").mkdir()
    for path, fault in (
        (tmp_path / "text.npz", "cannot be read as a .npz file"),
        (tmp_path / "empty", "holds no feeds"),
        (tmp_path / "nowhere", "there is no such file or folder"),
    ):
        with pytest.raises(graphopt.OptionError, match=fault):
            graphopt.verify(model, model, feeds=path)
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "input_1.pb").write_bytes(numpy_helper.from_array(X).SerializeToString())
    with pytest.raises(graphopt.OptionError, match="has no input to go to: the model has 1 inputs"):
        graphopt.verify(model, model, feeds=folder)


def test_a_program_is_compared_on_the_feeds_of_the_user() -> None:
    model = support.model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    program = graphopt.compile(model, feeds={"x": np.ones(4, np.float32)})
    assert program.verification.passed
    assert program.verification.draws[0] == "given"
