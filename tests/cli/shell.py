"""Running command lines inside the test process, and the models they are run on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt import cli
from memplan.compiling import COMPILING
from tests import support

TEXT = """g (float[batch,4] x) => (float[batch,3] y) {
    a = Identity(x)
    m = MatMul(a, w)
    c = Constant<value = float[3] {1, 2, 3}>()
    n = Add(m, c)
    y = Relu(n)
}"""


@dataclass(frozen=True)
class Answer:
    """What a command line gave."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The sentence on stderr, which is its only line."""
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), self.err
        return lines[0].removeprefix("error: ")


class Shell:
    """A folder with a model `in.onnx`, and `graphopt` run there."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.write("in.onnx", small_model())

    def write(self, name: str, model: onnx.ModelProto) -> None:
        """A model file."""
        (self.folder / name).write_bytes(model.SerializeToString())

    def read(self, name: str) -> onnx.ModelProto:
        """The model in a file, found valid."""
        onnx.checker.check_model(str(self.folder / name))
        return onnx.load(self.folder / name)

    def files(self) -> set[str]:
        """Everything in the folder, hidden files too."""
        return {path.name for path in self.folder.iterdir()}

    def run(self, *arguments: str) -> Answer:
        """One command line.

        Word that solvers are compiled, which depends on what ran before, is left out of the answer.
        """
        self._capsys.readouterr()
        status = cli.run_line(arguments)
        captured = self._capsys.readouterr()
        return Answer(status, captured.out, captured.err.removeprefix(f"{COMPILING}\n"))


def small_model(text: str = TEXT, opset: int = 17) -> onnx.ModelProto:
    """An Identity to be removed, a Constant to be lifted, a MatMul and an Add that become a Gemm."""
    return support.model(text, opset, w=np.arange(12, dtype=np.float32).reshape(4, 3))
