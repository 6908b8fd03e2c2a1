"""A training step that runs again and again, by ONNX Runtime or as our own program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
import onnx
import onnxruntime

from graphopt.flows.compile import compile as compile_program
from graphopt.gradient.step import RATE, Step
from graphopt.model.session import session_of

Engine = Literal["onnxruntime", "program"]
Arrays = Mapping[str, np.ndarray]
Run = Callable[[Sequence[str], Arrays], Sequence[np.ndarray]]  # the outputs of some names


class Runner(Protocol):
    """A step that is run: the loss of a batch; what is carried stays inside."""

    def run(self, feeds: Arrays) -> float:
        """The loss of a batch; the values after it are the next run's."""

    def carried(self) -> dict[str, np.ndarray]:
        """What the next run would take."""


def opened(proto: onnx.ModelProto, engine: Engine, threads: int) -> Run:
    """A step, or a part of one, to be run."""
    if engine == "onnxruntime":
        session: Run = _session(proto, threads).run
        return session
    program = compile_program(proto, threads=threads)
    rate = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name == RATE
    }
    return lambda names, feeds: program.run(names, {**rate, **feeds})


def _session(proto: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return session_of(proto, options)


class InOnnxRuntime:
    """A session; what is carried stays in its own arrays from run to run."""

    def __init__(self, proto: onnx.ModelProto, step: Step, values: Arrays, threads: int) -> None:
        self._session = _session(proto, threads)
        self._step = step
        self._names = [step.loss, *(one.output for one in step.carried)]
        self._values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in values.items()}

    def run(self, feeds: Arrays) -> float:
        """The loss of a batch; the values after it are the next run's."""
        given = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        loss, *after = self._session.run_with_ort_values(self._names, {**given, **self._values})
        self._values = {one.input: value for one, value in zip(self._step.carried, after, strict=True)}
        return float(loss.numpy().reshape(-1)[0])

    def carried(self) -> dict[str, np.ndarray]:
        """What the next run would take."""
        return {name: value.numpy() for name, value in self._values.items()}


class InProgram:
    """Our own program of the step."""

    def __init__(self, proto: onnx.ModelProto, step: Step, values: Arrays, threads: int) -> None:
        self._run = opened(proto, "program", threads)
        self._step, self._values = step, dict(values)
        self._names = [step.loss, *(one.output for one in step.carried)]

    def run(self, feeds: Arrays) -> float:
        """The loss of a batch; the values after it are the next run's."""
        loss, *after = self._run(self._names, {**feeds, **self._values})
        self._values = {one.input: value for one, value in zip(self._step.carried, after, strict=True)}
        return float(np.asarray(loss).reshape(-1)[0])

    def carried(self) -> dict[str, np.ndarray]:
        """What the next run would take."""
        return dict(self._values)
