"""Running a model for comparison: ONNX Runtime with its optimizations off, the ONNX reference where that cannot.

Two runners made from one `Workplace` share every large weight: models are written to a temporary folder without them,
and ONNX Runtime is handed the (memory-mapped) arrays. With prepacking off it uses them in place, so that a model of
several gigabytes costs no anonymous memory.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from graphopt.model.limits import endless_loop
from graphopt.model.self_contained import STAND_IN, self_contained

SHARED_MINIMUM = 8192  # bytes; smaller tensors stay in the file, where shape inference needs them


class CannotRun(Exception):
    """Neither engine can run the model, or it failed on a feed; the text is the engine's."""


class OutOfTime(Exception):
    """The time for verification ran out during a run."""


class Workplace:
    """A temporary folder and the weights that its runners share. Use it as a context manager."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="graphopt-verify-"))
        (self.folder / STAND_IN).write_bytes(b"\0")
        self._values: dict[int, tuple[ir.TensorProtocol, ort.OrtValue]] = {}
        self._count = 0

    def __enter__(self) -> Workplace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._values.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, model: ir.Model) -> tuple[Path, dict[str, ort.OrtValue]]:
        """The model without its large weights as a file, and those weights by name."""
        given = self_contained(model, handed_from=SHARED_MINIMUM)
        self._count += 1
        path = self.folder / f"{self._count}.onnx"
        path.write_bytes(given.proto.SerializeToString())
        return path, {name: self._shared(tensor) for name, tensor in given.handed.items()}

    def _shared(self, tensor: ir.TensorProtocol) -> ort.OrtValue:
        known = self._values.get(id(tensor))
        if known is not None:
            return known[1]
        array = np.ascontiguousarray(tensor.numpy())
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(tensor.dtype))
        self._values[id(tensor)] = (tensor, value)  # the tensor is kept alive, so that its id stays its own
        return value

    def checker_error(self, model: ir.Model, full: bool) -> str | None:
        """What onnx.checker objects to, None when it is content; `full` includes inference of types and shapes."""
        path, _ = self.write(model)
        try:
            onnx.checker.check_model(str(path), full_check=full)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
            return str(error).strip().splitlines()[0]
        return None

    def runner(self, model: ir.Model) -> Runner:
        """An engine loaded with the model; raises CannotRun."""
        return Runner(self, model)


class Runner:
    """One model in one engine."""

    def __init__(self, workplace: Workplace, model: ir.Model) -> None:
        endless = endless_loop(model)
        if endless is not None:
            raise CannotRun(endless)
        path, shared = workplace.write(model)
        self.output_names = [value.name or "" for value in model.graph.outputs]
        self.engine = "ONNX Runtime, optimizations off"
        self._session: ort.InferenceSession | None = None
        self._reference: ReferenceEvaluator | None = None
        try:
            self._session = ort.InferenceSession(str(path), _options(shared), providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's errors share no base class
            if shared or (
                model.graph.initializers
                and any(
                    value.const_value is not None and value.const_value.nbytes > 1 << 26
                    for value in model.graph.initializers.values()
                )
            ):
                raise CannotRun(_first_line(error)) from error
            try:
                self._reference = ReferenceEvaluator(self_contained(model).proto)
                self.engine = "the ONNX reference evaluator"
            except Exception:  # the reference's errors share none either
                raise CannotRun(_first_line(error)) from error

    def run(self, feed: dict[str, object], seconds: float | None = None) -> Sequence[object]:
        """The outputs in order; raises CannotRun with the engine's words, or OutOfTime."""
        try:
            if self._session is None:
                assert self._reference is not None, "one of the engines is loaded"
                return list(self._reference.run(None, feed))
            names = {item.name for item in self._session.get_inputs()}
            given = {name: value for name, value in feed.items() if name in names}
            return self._run_session(given, seconds)
        except OutOfTime:
            raise
        except Exception as error:
            raise CannotRun(_first_line(error)) from error

    def _run_session(self, feed: dict[str, object], seconds: float | None) -> Sequence[object]:
        assert self._session is not None, "the caller has looked"
        options = ort.RunOptions()
        expired = threading.Event()

        def stop() -> None:
            expired.set()
            options.terminate = True

        timer = threading.Timer(seconds, stop) if seconds is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            return list(self._session.run(None, feed, options))
        except Exception:
            if expired.is_set():
                raise OutOfTime from None
            raise
        finally:
            if timer is not None:
                timer.cancel()


def _options(shared: dict[str, ort.OrtValue]) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    for name, value in shared.items():
        options.add_initializer(name, value)
    return options


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
