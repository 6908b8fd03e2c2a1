"""`graphopt gradient` and `graphopt train-step`: what is written, said and refused."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest

import graphopt
import models
from graphopt.gradient.step import METADATA
from tests.cli.shell import Shell


@pytest.fixture
def network(shell: Shell) -> Shell:
    """A shell with mlp_tiny: ten weights, one image, ten classes."""
    shell.write("net.onnx", models.load("mlp_tiny"))
    return shell


def test_gradients_are_outputs_named_after_what_they_are_taken_to(network: Shell) -> None:
    answer = network.run(
        "gradient", "net.onnx", "out.onnx", "--loss", "mse", "--with-respect-to", "f.0.*,input", "--json"
    )
    assert answer.status == 0, answer.err
    assert answer.json["schema"] == "graphopt.gradient/1"
    assert answer.json["parameters"] == 64 + 64 * 128 + 128
    written = onnx.load(network.folder / "out.onnx")
    onnx.checker.check_model(written, full_check=True)
    names = [value.name for value in written.graph.output]
    assert names == ["logits", "loss", "gradient/f.0.weight", "gradient/f.0.bias", "gradient/input"]
    assert "gradients     3, to 8,384 numbers\n" in answer.err


def test_a_step_says_what_it_carries_and_trains(network: Shell) -> None:
    answer = network.run(
        "train-step", "net.onnx", "step.onnx", "--loss", "cross-entropy", "--optimizer", "momentum",
        "--learning-rate", "0.1", "--json",
    )  # fmt: skip
    assert answer.status == 0, answer.err
    kinds = [kind for *_, kind in answer.json["carried"]]
    assert (kinds.count("parameter"), kinds.count("state")) == (10, 10)
    assert "parameter     10 values carried from run to run\n" in answer.err and "and 2 more\n" in answer.err
    assert "input         target: int64[1]\n" in answer.err
    written = onnx.load(network.folder / "step.onnx")
    assert any(entry.key == METADATA for entry in written.metadata_props)
    image = next(value for value in written.graph.input if value.name == "input")
    shape = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    batch = {"input": [[1.0] * shape[1]], "target": [3]}
    result = graphopt.fit(network.folder / "step.onnx", [batch] * 20)
    assert result.losses[-1] < result.losses[0] / 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--loss", "other"), "there is no output 'other' for a loss; there are 'logits', "),
        (("--loss", "mse", "--with-respect-to", "w"), "the model has no input and no initializer 'w' to take "),
        (("--loss", "mse", "--output", "z"), "there is no output 'z' for a loss to read."),
        (("--loss", "cross-entropy", "--class-axis", "0"), "classes cannot lie along axis 0, along which samples lie."),
    ],
)
def test_a_refusal_is_a_sentence_and_writes_nothing(network: Shell, words: tuple[str, ...], sentence: str) -> None:
    answer = network.run("gradient", "net.onnx", "out.onnx", *words)
    assert answer.status == 1
    assert answer.err.startswith(f"error: {sentence}"), answer.err
    assert not (network.folder / "out.onnx").exists()


def test_the_commands_work_without_what_draws_pages() -> None:
    code = "import sys; sys.modules['jinja2'] = None; import graphopt.cli.gradient, graphopt.cli.train_step"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
