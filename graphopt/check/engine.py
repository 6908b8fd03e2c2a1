"""One model file in one engine: ONNX Runtime with its optimizations off, the ONNX reference where that cannot load it.

As a program, `python -P engine.py BYTES`, it serves such engines to another process: pickled requests on stdin,
pickled answers on stdout, memory limited to BYTES. Little of the package is imported here, so that it starts fast.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort

from graphopt.check.heap import give_back
from graphopt.lazy import Lazy
from graphopt.model.rooms import Lent, Room, is_written, letting_go, room_of

if TYPE_CHECKING:
    from onnx import reference
else:  # the schemas of all operators, for what ONNX Runtime cannot run
    reference = Lazy("onnx.reference")

if sys.platform != "win32":
    import resource


# Elements that NumPy lacks and ONNX Runtime takes and gives as their bits, by its name of a tensor of them.
_BITS = {
    "tensor(bfloat16)": (np.dtype(ml_dtypes.bfloat16), np.uint16, onnx.TensorProto.BFLOAT16),
    "tensor(float8e4m3fn)": (np.dtype(ml_dtypes.float8_e4m3fn), np.uint8, onnx.TensorProto.FLOAT8E4M3FN),
    "tensor(float8e4m3fnuz)": (np.dtype(ml_dtypes.float8_e4m3fnuz), np.uint8, onnx.TensorProto.FLOAT8E4M3FNUZ),
    "tensor(float8e5m2)": (np.dtype(ml_dtypes.float8_e5m2), np.uint8, onnx.TensorProto.FLOAT8E5M2),
    "tensor(float8e5m2fnuz)": (np.dtype(ml_dtypes.float8_e5m2fnuz), np.uint8, onnx.TensorProto.FLOAT8E5M2FNUZ),
}
# Elements of which ONNX Runtime packs several into a byte, or that it has no type for.
_PACKED = ("tensor(int4)", "tensor(uint4)", "tensor(int2)", "tensor(uint2)", "tensor(float4", "tensor(float8e8m0)")


NO_ROOMS: Mapping[str, Room | Lent] = {}
NO_ARRAYS: Mapping[str, np.ndarray] = {}
REFERENCE = "the ONNX reference evaluator"


class CannotRun(Exception):
    """Neither engine can run the model, or it failed on a feed; the text is the engine's."""


class OutOfTime(Exception):
    """The time for verification ran out during a run."""


class Engine:
    """A model that is loaded; `name` says in which engine."""

    def __init__(
        self, path: Path, shared: Mapping[str, ort.OrtValue], optimized: bool = False, alone: bool = False,
        frugal: bool = False, defining: bool = False, one_thread: bool = False,
    ) -> None:  # fmt: skip
        """`shared` holds the initializers that the file at `path` lacks; `alone` leaves out the reference.

        With `frugal` a result's memory is given back when the last node has read it, and not kept for another result.
        `defining` asks for the reference, which ONNX defines its operators by, `one_thread` for ONNX Runtime on one
        thread. Raises CannotRun.
        """
        self.name = "ONNX Runtime" if optimized else "ONNX Runtime, optimizations off"
        self._session: ort.InferenceSession | None = None
        self._reference: reference.ReferenceEvaluator | None = None
        try:
            if defining:
                raise TypeError("ONNX Runtime is not asked")
            self._session = ort.InferenceSession(
                str(path), _options(shared, optimized, frugal, one_thread), providers=["CPUExecutionProvider"]
            )
            self._kinds = [one.type for one in (*self._session.get_inputs(), *self._session.get_outputs())]
            if any(kind.startswith(_PACKED) for kind in self._kinds):
                raise TypeError("ONNX Runtime neither takes nor gives its elements of less than eight bits")
        except Exception as error:  # ONNX Runtime's errors share no base class
            if shared or alone:  # the reference is for small models, and takes no weights from outside
                raise CannotRun(_first_line(error)) from error
            try:
                self._reference = reference.ReferenceEvaluator(onnx.load(path))
                self._session = None
                self.name = REFERENCE
            except Exception:  # the reference's errors share none either
                raise CannotRun(_first_line(error)) from error

    def run(
        self, feed: Mapping[str, object], seconds: float | None = None, rooms: Mapping[str, Room | Lent] = NO_ROOMS
    ) -> Sequence[object]:
        """The outputs in order; raises CannotRun with the engine's words, or OutOfTime.

        Outputs that `rooms` are given for are written into files.
        """
        try:
            if self._session is None:
                assert self._reference is not None, "one of the engines is loaded"
                return list(self._reference.run(None, dict(feed)))
            taken = (*self._session.get_inputs(), *self._session.get_overridable_initializers())
            names = {item.name for item in taken}
            given = {name: value for name, value in feed.items() if name in names}
            arrays = self._arrays(given, rooms)
            if not arrays:
                return self._run_session(given, seconds)
            try:
                return self._run_session(given, seconds, arrays)
            except OutOfTime:
                raise
            except RuntimeError:  # an output has other dims than declared, or the run fails: then it does so again
                return self._run_session(given, seconds)
        except OutOfTime:
            raise
        except Exception as error:
            raise CannotRun(_first_line(error)) from error

    def _arrays(self, feed: Mapping[str, object], rooms: Mapping[str, Room | Lent]) -> dict[str, np.ndarray]:
        """Where results are written to; nowhere where something fed is no array of numbers, or there is no disk."""
        plain = all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in feed.values())
        if not plain or any(kind in _BITS for kind in self._kinds):
            return {}
        with suppress(OSError):
            return {name: room.array() for name, room in rooms.items()}
        return {}

    def _run_session(
        self, feed: dict[str, object], seconds: float | None, into: Mapping[str, np.ndarray] = NO_ARRAYS
    ) -> Sequence[object]:
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
            if any(kind in _BITS for kind in self._kinds):
                return _run_of_bits(self._session, feed, options)
            if into:
                return _run_into(self._session, feed, options, into)
            return list(self._session.run(None, feed, options))
        except Exception:
            if expired.is_set():
                raise OutOfTime from None
            raise
        finally:
            if timer is not None:
                timer.cancel()


def _run_into(
    session: ort.InferenceSession, feed: Mapping[str, object], options: ort.RunOptions, into: Mapping[str, np.ndarray]
) -> list[object]:
    """A run that writes some of its results into arrays that are there."""
    binding = session.io_binding()
    given = {name: np.asarray(value, order="C") for name, value in feed.items()}
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    names = [one.name for one in session.get_outputs()]
    for name in names:
        if name in into:
            place = into[name]
            binding.bind_output(name, "cpu", 0, place.dtype, place.shape, place.ctypes.data)
        else:
            binding.bind_output(name)
    with letting_go((*given.values(), *into.values())):
        session.run_with_iobinding(binding, options)
    found = binding.get_outputs()
    return [into[name] if name in into else value.numpy() for name, value in zip(names, found, strict=True)]


def _run_of_bits(session: ort.InferenceSession, feed: dict[str, object], options: ort.RunOptions) -> list[object]:
    """A run of a model with inputs or outputs whose elements NumPy lacks."""
    given = {one.name: _value_of(feed[one.name], one.type) for one in session.get_inputs() if one.name in feed}
    outputs = session.get_outputs()
    found = session.run_with_ort_values([one.name for one in outputs], given, options)
    return [_array_of(value, one.type) for value, one in zip(found, outputs, strict=True)]


def _value_of(array: object, kind: str) -> ort.OrtValue:
    if kind not in _BITS:
        return ort.OrtValue.ortvalue_from_numpy(np.asarray(array))
    _, bits, code = _BITS[kind]
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array).view(bits), int(code))


def _array_of(value: ort.OrtValue, kind: str) -> object:
    if kind not in _BITS or not value.is_tensor():
        return value.numpy()
    dtype, bits, _ = _BITS[kind]
    count = int(np.prod(value.shape(), dtype=np.int64))
    held = ctypes.string_at(value.data_ptr(), count * dtype.itemsize) if count else b""
    return np.frombuffer(held, bits).copy().view(dtype).reshape(value.shape())


def _options(shared: Mapping[str, ort.OrtValue], optimized: bool, frugal: bool, one_thread: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1 if one_thread else 0
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # that of the file: see order_late
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.enable_mem_reuse = not frugal
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it took a third of all CPU time
    for name, value in shared.items():
        options.add_initializer(name, value)
    return options


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _serve(most_bytes: int) -> None:
    """Answer requests until stdin ends.

    They are ("load", path, weights, optimized, alone, frugal) and ("run", number, feed, seconds, rooms).
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an engine prints is no answer
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    engines: list[Engine] = []
    mapped: dict[Path, np.ndarray] = {}  # weights by file; ONNX Runtime only points at them
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        try:
            if request[0] == "load":
                engines.append(
                    Engine(
                        request[1], {name: _weight(mapped, *found) for name, found in request[2].items()}, *request[3:]
                    )
                )
                answer: tuple[str, object] = ("done", (len(engines) - 1, engines[-1].name))
            else:
                feed = {name: _taken(value) for name, value in request[2].items()}
                found = engines[request[1]].run(feed, request[3], request[4])
                answer = ("done", [room_of(one) if is_written(one) else one for one in found])
                del feed, found
        except OutOfTime:
            answer = ("late", None)
        except CannotRun as error:
            answer = ("refused", str(error))
        except MemoryError:
            answer = ("refused", "the model needs more memory than such a run is given")
        _send(answers, answer)
        del request, answer
        give_back()  # it waits for long, and what was freed would stay its own


def _taken(value: object) -> object:
    return value.array() if isinstance(value, Lent) else value


def _send(answers: BinaryIO, answer: tuple[str, object]) -> None:
    """An answer; arrays go as they lie, as all outputs of a training step are as large as its state."""
    kind, found = answer
    if kind == "done" and isinstance(found, list) and all(_is_plain(one) for one in found):
        pickle.dump(answer, answers, protocol=5)
    else:
        try:
            told = pickle.dumps(answer)
        except Exception as error:  # a result that is nothing to send: the reference gives objects of its own
            told = pickle.dumps(("refused", _first_line(error)))
        answers.write(told)
    answers.flush()


def _is_plain(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"


def _weight(
    mapped: dict[Path, np.ndarray], path: Path, dtype: np.dtype[np.generic], dims: tuple[int, ...], kind: int
) -> ort.OrtValue:
    if path not in mapped:
        mapped[path] = np.memmap(path, dtype=dtype, mode="r", shape=dims)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(mapped[path], kind)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
