"""`--value` and `--fix-defaults` in the commands that read a model: what is written, said and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import support
from tests.cli.shell import Shell
from tests.model.test_fixing import RATES, WITH_DEFAULT


@pytest.fixture
def rates(shell: Shell) -> Shell:
    shell.write("rates.onnx", support.model(RATES))
    shell.write("default.onnx", support.model(WITH_DEFAULT, w=np.array([4, 9], np.float32)))
    return shell


def test_an_input_is_fixed_and_said_to_be(rates: Shell) -> None:
    answer = rates.run("optimize", "rates.onnx", "out.onnx", "--value", "sr=16000")
    assert answer.status == 0
    assert "signature     input 'sr' is fixed at 16000, as asked" in answer.out
    assert support.op_types(rates.read("out.onnx")) == ["Relu"]


def test_a_list_goes_with_commas(rates: Shell) -> None:
    assert rates.run("optimize", "default.onnx", "out.onnx", "--value", "w=1,16").status == 0
    (weight,) = rates.read("out.onnx").graph.initializer
    assert np.frombuffer(weight.raw_data, np.float32).tolist() == [1.0, 4.0]


def test_defaults_fold_when_asked(rates: Shell) -> None:
    assert rates.run("optimize", "default.onnx", "out.onnx", "--fix-defaults").status == 0
    written = rates.read("out.onnx")
    assert support.op_types(written) == ["Add"]
    assert [value.name for value in written.graph.input] == ["x"]


def test_every_command_that_reads_a_model_takes_both(rates: Shell) -> None:
    fixed = ("--value", "sr=8000", "--fix-defaults", "--dim", "n=8")
    assert rates.run("compile", "rates.onnx", "bundle", *fixed).status == 0
    np.save("x.npy", np.array([[1, -2, 3, 0, 0, 0, 0, 0]], np.float32))
    assert rates.run("run", "bundle", "--input", "x=x.npy", "--output", "out").status == 0, "x is all that it takes"
    assert rates.run("memory", "rates.onnx", *fixed).status == 0
    assert rates.run("schedule", "rates.onnx", "--device", "cpu:2", *fixed).status == 0


@pytest.mark.parametrize(
    ("value", "status", "sentence"),
    [
        ("src=1", 1, "there is no input 'src' to fix; the nearest names are sr."),
        ("sr=fast", 1, "input 'sr' takes numbers of type INT64, and fast is not such."),
        ("sr", 2, "--value: 'sr' is not of the form NAME=16000."),
    ],
)
def test_what_does_not_fit_is_refused(rates: Shell, value: str, status: int, sentence: str) -> None:
    answer = rates.run("optimize", "rates.onnx", "out.onnx", "--value", value)
    assert (answer.status, answer.error) == (status, sentence)
    assert not Path("out.onnx").exists()
