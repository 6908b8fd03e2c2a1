"""How kernels are timed: by turns, in CPU time of the one computing thread, as ratios.

The machine has neighbours: only the ratio of two runs side by side means something. Each callable is repeated until a
reading takes some milliseconds; readings of all sides follow one another, round by round; the figure is the median of
the pairwise ratios with a 95 % bootstrap interval. Peers run in ONNX Runtime with all optimizations, one thread, and
inputs and outputs bound beforehand, so that neither side pays for Python beyond one call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper

from bench.speed import ratio_interval

Array = npt.NDArray[np.generic]
Call = Callable[[], object]
READING = 3e-3  # seconds of one reading, at least
_CORES = os.sched_getaffinity(0)  # that this process may use


@dataclass(frozen=True, slots=True)
class Ratio:
    """Seconds of the peer over ours: above 1, ours is faster."""

    low: float
    median: float
    high: float


def readings(
    calls: Mapping[str, Call], rounds: int, reading: float = READING, before: Callable[[str], None] = lambda name: None
) -> dict[str, list[float]]:
    """Seconds per call of each side, a reading per round, by turns; `before` a reading of a side is not counted."""
    repeats = {}
    for name, call in calls.items():
        before(name)
        call()
        repeats[name] = max(1, int(reading / max(_seconds(call, 2), 1e-7)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            before(name)
            found[name].append(_seconds(call, repeats[name]))
    return found


def ratio(peer: Sequence[float], ours: Sequence[float]) -> Ratio:
    """The median of peer / ours with its interval."""
    return Ratio(*ratio_interval(list(peer), list(ours)))


def _seconds(call: Call, repeats: int) -> float:
    started = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - started) / repeats


def pin() -> None:
    """Keep this process on the last core that it may use; a peer's pool must not move either."""
    os.sched_setaffinity(0, {max(_CORES)})


def unpin() -> None:
    """Let this process run on all its cores again."""
    os.sched_setaffinity(0, _CORES)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 20,
    dtype: int = onnx.TensorProto.FLOAT,
) -> bytes:
    """A model of these nodes, its inputs with the shapes of the given arrays."""
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    made = [helper.make_tensor_value_info(name, dtype, None) for name in outputs]
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", given, made, stored)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    proto: bytes = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    return proto


class Peer:
    """A model in ONNX Runtime with everything bound: calling it runs it once. `library` is one of custom operators."""

    def __init__(
        self, source: bytes | str, feeds: Mapping[str, Array], *, threads: int = 1, library: str | None = None
    ) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        if library is not None:
            options.register_custom_ops_library(library)
        self._session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self.outputs: list[npt.NDArray[Any]] = self._session.run(None, dict(feeds))
        self._binding = self._session.io_binding()
        self._keep = []
        for name, array in feeds.items():
            held = ort.OrtValue.ortvalue_from_numpy(array)
            self._keep.append(held)
            self._binding.bind_ortvalue_input(name, held)
        for output, array in zip(self._session.get_outputs(), self.outputs, strict=True):
            held = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(array))
            self._keep.append(held)
            self._binding.bind_ortvalue_output(output.name, held)

    def __call__(self) -> None:
        """One run."""
        self._session.run_with_iobinding(self._binding)
