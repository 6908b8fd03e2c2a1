"""What libraries and engines refuse arrives as an error of this package; a fault of our own arrives as it is."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import graphopt
from graphopt import cli
from graphopt.check.runner import CannotRun
from graphopt.errors import GraphoptError, ModelError, OptionError, VerificationError
from graphopt.refusals import with_our_errors
from kernels.errors import KernelsError
from memplan.errors import MemplanError
from scheduler.errors import SchedulerError
from tests import support

RIGHT = support.model("g (float[2] x) => (float[2] y) { y = Neg(x) }")


def _invalid() -> onnx.ModelProto:
    """A model that loads, and that onnx objects to: its sum has operands that do not fit."""
    return support.model("g (float[2] x, float[3] z) => (float[2] y) { y = Add(x, z) }")


def _raising(error: Exception) -> object:
    @with_our_errors
    def case(source: object) -> None:
        raise error

    return case


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (MemplanError("no room"), OptionError, "no room"),
        (SchedulerError("no worker"), OptionError, "no worker"),
        (KernelsError("no such target"), OptionError, "no such target"),
        (
            CannotRun("bad node"),
            VerificationError,
            "the model cannot be run for comparison: bad node; nothing was written.",
        ),
        (MemoryError(), ModelError, "the model needs more memory than this machine has; fix smaller dims."),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_what_a_library_raises_is_ours(error: Exception, kind: type[GraphoptError], text: str) -> None:
    with pytest.raises(kind) as caught:
        _raising(error)(RIGHT)  # type: ignore[operator]
    assert str(caught.value) == text
    assert caught.value.__cause__ is error


def test_our_own_errors_pass_as_they_are() -> None:
    error = OptionError("no such pass")
    with pytest.raises(OptionError) as caught:
        _raising(error)(RIGHT)  # type: ignore[operator]
    assert caught.value is error


def test_any_error_on_a_model_that_onnx_objects_to_is_the_models() -> None:
    with pytest.raises(ModelError, match=r"^the model is not valid: .*Incompatible dimensions.*; export it again\.$"):
        _raising(KeyError("z"))(_invalid())  # type: ignore[operator]


@pytest.mark.parametrize("source", ["proto", "bytes", "file", "onnx_ir"])
def test_any_other_error_on_a_valid_model_is_a_fault_of_ours_and_passes(source: str, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(RIGHT.SerializeToString())
    given = {"proto": RIGHT, "bytes": RIGHT.SerializeToString(), "file": file, "onnx_ir": graphopt.load(RIGHT)}[source]
    error = KeyError("z")
    with pytest.raises(KeyError) as caught:
        _raising(error)(given)  # type: ignore[operator]
    assert caught.value is error


def test_a_control_character_is_shown_and_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = support.model("g (float[2] x) => (float[2] y) { a = Neg(x) y = Thing(a) }")
    hostile = "\x1b[31mred\x9b"
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = hostile
    model.graph.node[1].op_type, model.graph.node[1].domain = "Thing" + hostile, "own"
    model.graph.input[0].name = model.graph.node[0].input[0] = "in" + hostile
    model.opset_import.add(domain="own", version=1)
    file = tmp_path / "m.onnx"
    file.write_bytes(model.SerializeToString())
    for arguments in (["inspect", str(file)], ["memory", str(file)], ["optimize", str(file), str(tmp_path / "o.onnx")]):
        cli.run_line(arguments)
    written = capsys.readouterr()
    assert r"in\x1b[31mred\x9b" in written.out
    assert "\x1b[31m" not in written.out + written.err
    assert "\x9b" not in written.out + written.err
