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


def test_a_fixed_batch_takes_another_size(rates: Shell) -> None:
    """It is freed first, and the freed model compared with the model as it was."""
    text = "g (float[1,4] x) => (float[1,4] y) { a = Identity(x) y = Softmax(a) }"
    rates.write("one.onnx", support.model(text))
    assert rates.run("optimize", "one.onnx", "six.onnx", "--dim", "batch=6").status == 0
    dims = rates.read("six.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [6, 4]
    assert rates.run("compile", "one.onnx", "six", "--dim", "batch=6").status == 0
    answer = rates.run("run", "six", "--random", "--json")
    assert answer.json["outputs"][0]["shape"] == [6, 4]
    assert rates.run("schedule", "one.onnx", "--device", "cpu:2", "--dim", "batch=6").status == 0


def test_a_free_batch_without_a_name_takes_a_size(rates: Shell) -> None:
    """As scikit-learn's converter leaves it."""
    model = support.model("g (float[n,4] x) => (float[n,4] y) { a = Identity(x) y = Softmax(a) }")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].ClearField("dim_param")
    rates.write("free.onnx", model)
    assert rates.run("optimize", "free.onnx", "six.onnx", "--dim", "batch=6").status == 0
    assert rates.read("six.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_value == 6
    assert rates.run("compile", "free.onnx", "six", "--dim", "batch=6").status == 0
    assert rates.run("compile", "free.onnx", "any", "--dim", "batch=1..6").status == 0
    assert rates.run("schedule", "free.onnx", "--device", "cpu:2", "--no-measure", "--dim", "batch=6").status == 0
    assert rates.run("memory", "free.onnx", "--dim", "batch=6").status == 0
    assert rates.run("memory", "free.onnx", "--dim", "x:0=6").status == 0
    answer = rates.run("compile", "free.onnx", "other", "--dim", "n=6")
    assert (
        answer.error
        == "there is no dynamic dim 'n'; those of input 'x' have no names: give it a shape, or 'x:0' a size."
    )


def test_dims_without_names_are_called_by_their_places(rates: Shell) -> None:
    """As PaddlePaddle's exporter leaves the sides of images."""
    model = support.model("g (float[n,4,m] x) => (float[n,4,m] y) { a = Identity(x) y = Softmax<axis = 1>(a) }")
    for value in (*model.graph.input, *model.graph.output):
        for axis in (0, 2):
            value.type.tensor_type.shape.dim[axis].dim_param = "?"
    rates.write("free.onnx", model)
    assert "x:0, x:2" in rates.run("inspect", "free.onnx").out
    assert rates.run("optimize", "free.onnx", "six.onnx", "--dim", "x:0=6", "--dim", "x:2=5").status == 0
    assert [one.dim_value for one in rates.read("six.onnx").graph.input[0].type.tensor_type.shape.dim] == [6, 4, 5]
    assert rates.run("compile", "free.onnx", "six", "--dim", "x:0=6", "--dim", "x:2=5").status == 0
    assert rates.run("compile", "free.onnx", "any", "--dim", "x:0=1..6", "--dim", "x:2=5").status == 0
    assert rates.run("compile", "free.onnx", "two", "--dim", "x:0=1..6", "--dim", "x:2=2..9").status == 0
    assert rates.run("compile", "free.onnx", "list", "--dim", "x:0=1", "--dim", "x:2=3,5").status == 0
    answer = rates.run("compile", "free.onnx", "other", "--dim", "x:0=1..6")
    assert answer.error.startswith("'x:2' has neither a size nor a range; give it one, --dim x:2=1..64 for example")


def test_a_dim_named_batch_behind_a_fixed_first_one_is_fixed_where_it_is(rates: Shell) -> None:
    """As of a recurrent layer over a fixed number of steps, whose first dim mixes what it meets."""
    text = "g (float[3,batch] x) => (float[3,batch] y) { y = Softmax<axis = 0>(x) }"
    rates.write("steps.onnx", support.model(text))
    assert rates.run("optimize", "steps.onnx", "six.onnx", "--dim", "batch=6").status == 0
    dims = rates.read("six.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [3, 6]
    assert rates.run("compile", "steps.onnx", "six", "--dim", "batch=6").status == 0


def test_a_batch_that_mixes_samples_stays_as_it_is(rates: Shell) -> None:
    rates.write("one.onnx", support.model("g (float[1,4] x) => (float[1,4] y) { y = Softmax<axis = 0>(x) }"))
    for command in (("optimize", "one.onnx", "o.onnx"), ("compile", "one.onnx", "o")):
        answer = rates.run(*command, "--dim", "batch=6")
        assert answer.status == 1 and answer.error.startswith("the dim cannot be freed: ")
    assert "o.onnx" not in rates.files() and "o" not in rates.files()


@pytest.mark.parametrize(
    ("value", "status", "sentence"),
    [
        ("src=1", 1, "there is no input 'src' to fix; the nearest name is 'sr'."),
        ("sr=fast", 1, "input 'sr' takes numbers of type INT64, and fast is not such."),
        ("sr", 2, "--value: 'sr' is not of the form NAME=16000."),
    ],
)
def test_what_does_not_fit_is_refused(rates: Shell, value: str, status: int, sentence: str) -> None:
    answer = rates.run("optimize", "rates.onnx", "out.onnx", "--value", value)
    assert (answer.status, answer.error) == (status, sentence)
    assert not Path("out.onnx").exists()
