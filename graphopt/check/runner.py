"""Running a model for comparison: ONNX Runtime with its optimizations off, the ONNX reference where that cannot.

Two runners made from one `Workplace` share every large weight: models are written to a temporary folder without them,
and ONNX Runtime is handed the (memory-mapped) arrays. With prepacking off it uses them in place, so that a model of
several gigabytes costs no anonymous memory. A model that onnx objects to runs in a process of its own, and so does one
with an operator on which ONNX Runtime may end its process.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from graphopt.check import apart
from graphopt.check.engine import CannotRun, Engine, OutOfTime
from graphopt.check.unspecified import with_zeros
from graphopt.model import nodes
from graphopt.model.dims import declared
from graphopt.model.limits import endless_loop
from graphopt.model.oversized import oversized
from graphopt.model.rooms import Room, let_go, letting_go, maps_of
from graphopt.model.self_contained import STAND_IN, SelfContained, self_contained

# Operators whose rows ONNX Runtime shares among free threads, each with a range of its own to quantize by: other
# threads, other results.
SHARED_ROWS = frozenset({"DynamicQuantizeLSTM"})
LARGE, FROM = 1 << 20, 64 << 20  # bytes of an output that a run writes into a file, and of all of them
NUMBERS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)
SHARED_MINIMUM = 8192  # bytes; smaller tensors stay in the file, where shape inference needs them
LARGE_MAPS = 1 << 29  # bytes of data files, whose pages a run lets go of while it goes on


class Workplace:
    """A temporary folder and the weights that its runners share. Use it as a context manager."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="graphopt-verify-"))
        (self.folder / STAND_IN).write_bytes(b"\0")
        self._values: dict[int, tuple[ir.TensorProtocol, ort.OrtValue]] = {}
        self._files: dict[int, tuple[ir.TensorProtocol, apart.Weight]] = {}
        self._process: apart.Process | None = None
        self._written: tuple[ir.Model, Path, SelfContained] | None = None
        self._count = 0

    def __enter__(self) -> Workplace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.close()
        self._values.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def checker_error(self, model: ir.Model, full: bool) -> str | None:
        """What onnx.checker objects to, None when it is content; `full` includes inference of types and shapes."""
        path, _ = self._write(model)
        try:
            onnx.checker.check_model(str(path), full_check=full)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
            return str(error).strip().splitlines()[0]
        return None

    def examined(self, model: ir.Model) -> bool:
        """Whether onnx accepts the model in all; raises CannotRun for one that asks for too much memory."""
        reason = oversized(model)
        if reason is not None:
            raise CannotRun(reason)
        return self.checker_error(model, full=True) is None

    def runner(
        self, model: ir.Model, sound: bool, *, optimized: bool = False, alone: bool = False, defining: bool = False
    ) -> Runner:
        """An engine loaded with the model, in a process of its own unless it is `sound` and safe; raises CannotRun.

        `optimized` asks for ONNX Runtime's own optimizations, which crash on some models, so that they have that
        process too. `alone` asks for ONNX Runtime or nothing, of a sound model, `defining` for the reference, which
        takes no weights from outside of its file.
        """
        endless = endless_loop(model)
        if endless is not None:
            raise CannotRun(endless)
        if _is_empty_recurrence(model):
            if alone or optimized:
                raise CannotRun("ONNX Runtime ends its process where a recurrence has no samples")
            defining = True
        # Optimizers look into weights, so that these are not handed over.
        path, given = self._write(model, None if optimized or defining else SHARED_MINIMUM)
        rooms = rooms_of(model)
        names = tuple(value.name or "" for value in model.graph.outputs)
        sound = sound and not optimized
        if sound and not _may_end(model):
            shared = {name: self._shared(tensor) for name, tensor in given.handed.items()}
            one_thread = any(node.op_type in SHARED_ROWS for node in model.graph)
            engine = Engine(path, shared, alone=alone, frugal=bool(rooms), defining=defining, one_thread=one_thread)
            maps = maps_of([tensor.numpy() for tensor in given.handed.values()])
            return Runner(engine, names, rooms, maps if sum(one.nbytes for one in maps) >= LARGE_MAPS else ())
        weights = {name: self._file(tensor) for name, tensor in given.handed.items()}
        held = sum(tensor.nbytes for tensor in given.handed.values())

        def load() -> apart.Distant:
            if self._process is None or not self._process.alive:
                self._process = apart.Process(apart.MOST_BYTES + apart.SHARE * held)
            return self._process.load(path, weights, optimized=optimized, alone=alone, frugal=bool(rooms))

        return Runner(apart.Lasting(load) if sound else load(), names, rooms)

    def _write(self, model: ir.Model, handed_from: int | None = SHARED_MINIMUM) -> tuple[Path, SelfContained]:
        """The model without its large weights as a file, and those weights by name; the last is not written again."""
        if self._written is not None and self._written[0] is model and handed_from is not None:
            return self._written[1:]
        given = self_contained(model, handed_from=handed_from, late=True)
        with_zeros(given.proto)
        self._count += 1
        path = self.folder / f"{self._count}.onnx"
        path.write_bytes(given.proto.SerializeToString())
        if handed_from is not None:
            self._written = (model, path, given)
        return path, given

    def _shared(self, tensor: ir.TensorProtocol) -> ort.OrtValue:
        known = self._values.get(id(tensor))
        if known is not None:
            return known[1]
        array = np.ascontiguousarray(tensor.numpy())
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(tensor.dtype))
        self._values[id(tensor)] = (tensor, value)  # the tensor is kept alive, so that its id stays its own
        return value

    def _file(self, tensor: ir.TensorProtocol) -> apart.Weight:
        """A weight as a file, from which another process maps it."""
        known = self._files.get(id(tensor))
        if known is not None:
            return known[1]
        array = np.ascontiguousarray(tensor.numpy())
        path = self.folder / f"w{len(self._files)}.bin"
        array.tofile(path)
        weight = (path, array.dtype, array.shape, int(tensor.dtype))
        self._files[id(tensor)] = (tensor, weight)
        return weight


def rooms_of(model: ir.Model) -> dict[str, Room]:
    """Rooms for the large outputs of a model, where they are much together and their dims are known."""
    found: dict[str, Room] = {}
    for value in model.graph.outputs:
        known, kind = declared(value), value.dtype
        if known is not None and kind in NUMBERS and all(isinstance(dim, int) for dim in known):
            room = Room(kind.numpy(), tuple(int(str(dim)) for dim in known))
            if room.nbytes >= LARGE:
                found[value.name or ""] = room
    return found if sum(room.nbytes for room in found.values()) >= FROM else {}


def _may_end(model: ir.Model) -> bool:
    """Whether ONNX Runtime may end its process on a feed: it divides by the count of no elements along a Scan's axis.

    Scans along the first axis do not turn what they take.
    """
    inside = (nodes.nodes_of(one) for one in (model.graph, *(each.graph for each in model.functions.values())))
    return any(
        any(node.attributes.get_ints(name, ())) for some in inside for node in some if node.op_type == "Scan"
        for name in ("scan_input_axes", "scan_output_axes")
    )  # fmt: skip


def _is_empty_recurrence(model: ir.Model) -> bool:
    """Whether a GRU has an input that is empty for certain, or an LSTM no samples: ONNX Runtime ends its process."""

    def is_empty(node: ir.Node) -> bool:
        shape = None if node.inputs[0] is None else node.inputs[0].shape
        if shape is None or node.op_type not in ("GRU", "LSTM"):
            return False
        return 0 in (shape if node.op_type == "GRU" else shape[1 - node.attributes.get_int("layout", 0) :][:1])

    return any(is_empty(node) for node in nodes.nodes_of(model.graph) if node.inputs)


class Runner:
    """One model in one engine."""

    def __init__(
        self,
        engine: Engine | apart.Distant | apart.Lasting,
        output_names: tuple[str, ...],
        rooms: Mapping[str, Room],
        maps: Sequence[object] = (),
    ) -> None:
        """Outputs that there are `rooms` for are written into files; pages of `maps` are let go of in a run."""
        self.engine = engine.name
        self._rooms, self._maps = rooms, maps
        self.output_names = output_names
        self._engine = engine

    def run(self, feed: dict[str, object], seconds: float | None = None) -> Sequence[object]:
        """The outputs in order; raises CannotRun with the engine's words, or OutOfTime."""
        try:
            with letting_go(self._maps):
                return self._engine.run(feed, seconds, self._rooms)
        finally:
            for value in feed.values():
                let_go(value)


__all__ = ["CannotRun", "OutOfTime", "Runner", "Workplace"]
