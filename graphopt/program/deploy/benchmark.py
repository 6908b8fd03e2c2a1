"""Programs beside other runtimes: runs by turns, medians, the ratio with its interval, and how far results differ.

One thread: processor time of this process, which neighbours on the machine disturb less than the clock on the wall.
Several: wall time, with a pause between two sides. A reading repeats a run until it takes some milliseconds; the sides
take turns.
"""

from __future__ import annotations

import importlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from graphopt.errors import OptionError

READING = 5e-3  # seconds
WARM = 0.06  # seconds of calls after a pause, of several threads
PAUSE = 0.1  # seconds between two sides of several threads: ONNX Runtime's wait for work on all cores for 0.04
RESAMPLES = 1000
AS_GIVEN, COMPILED = "as in the file", "as compiled"  # precisions: of a model, and of a bundle
Array = npt.NDArray[np.generic]
Call = Callable[[], Sequence[object]]  # tensors, or sequences and maps of them


@dataclass(frozen=True, slots=True)
class Side:
    """One runtime on one model: what it is, in which precision it computes, and how to run it."""

    name: str
    precision: str
    call: Call


@dataclass(frozen=True, slots=True)
class Comparison:
    """A peer beside ours."""

    peer: str
    precision: str
    ours_ms: float  # median
    peer_ms: float
    ratio: float  # median of peer / ours, pair by pair: above 1, ours is faster
    low: float  # of the 95 % bootstrap interval
    high: float
    max_abs: float  # infinite where data decides dims, and the peer's are others
    max_rel: float  # of the largest element of an output


def onnxruntime_side(source: bytes | str, feeds: Mapping[str, Array], threads: int) -> Side:
    """ONNX Runtime with all its optimizations; `source` is a model or the path of one."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    given = dict(feeds)
    return Side(f"onnxruntime {ort.__version__}", AS_GIVEN, lambda: session.run(None, given))


def openvino_module() -> Any:
    """OpenVINO's package; raises OptionError when it is not installed.

    Its package that reports to its makers, from processes that may outlive ours, cannot be imported from then on.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module("openvino")
    except ImportError:
        raise OptionError("openvino is not installed; pip install openvino.") from None


def openvino_side(source: bytes | str, feeds: Mapping[str, Array], threads: int, precision: str | None = "f32") -> Side:
    """OpenVINO in float32, or with None as it chooses itself; raises OptionError when it is not installed."""
    openvino = openvino_module()
    core = openvino.Core()
    settings: dict[str, int | str] = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    if precision is not None:
        settings["INFERENCE_PRECISION_HINT"] = precision
    compiled = core.compile_model(core.read_model(source), "CPU", settings)
    request, given = compiled.create_infer_request(), dict(feeds)

    def call() -> list[Array]:
        found = request.infer(given, share_inputs=True)
        return [found[output] for output in compiled.outputs]

    return Side(f"openvino {openvino.__version__.split('-')[0]}", precision or "its own choice", call)


SIDES: dict[str, Callable[[bytes | str, Mapping[str, Array], int], Side]] = {
    "onnxruntime": onnxruntime_side,
    "openvino": openvino_side,
}


def compare_sides(ours: Side, peers: Sequence[Side], *, rounds: int = 15, threads: int = 1) -> list[Comparison]:
    """Ours beside each peer."""
    sides = (ours, *peers)
    outputs = [side.call() for side in sides]
    if threads > 1:
        taken = paired([side.call for side in sides], rounds, READING)
    else:
        repeats = [_repeats(time.process_time, side.call, READING) for side in sides]
        taken = [[] for _ in sides]
        for _ in range(rounds):
            for side, count, times in zip(sides, repeats, taken, strict=True):
                times.append(_reading(time.process_time, side.call, count))
    found = []
    for peer, times, results in zip(peers, taken[1:], outputs[1:], strict=True):
        low, middle, high = interval(np.array(times) / np.array(taken[0]))
        max_abs, max_rel = _difference(results, outputs[0])
        ours_ms, peer_ms = 1e3 * float(np.median(taken[0])), 1e3 * float(np.median(times))
        found.append(Comparison(peer.name, peer.precision, ours_ms, peer_ms, middle, low, high, max_abs, max_rel))
    return found


def paired(calls: Sequence[Callable[[], object]], rounds: int, reading: float = 0.0) -> list[list[float]]:
    """Seconds of wall-clock of each side on several threads, by turns: a call, or as many as take so many seconds.

    A side begins when the pool of the one before has gone to sleep. Its first calls do not count: they wake its own,
    whose threads the system may let share a core with the caller's for a while.
    """
    repeats = [_repeats(time.perf_counter, call, reading) for call in calls]
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, count, times in zip(calls, repeats, found, strict=True):
            time.sleep(PAUSE)
            _warm(call)
            times.append(_reading(time.perf_counter, call, count))
    return found


def _warm(call: Callable[[], object]) -> None:
    """Two calls, or as many as take `WARM` seconds."""
    end = time.perf_counter() + WARM
    call()
    call()
    while time.perf_counter() < end:
        call()


def _repeats(clock: Callable[[], float], call: Callable[[], object], reading: float) -> int:
    """How many calls take so many seconds, one at least."""
    return max(1, int(reading / max(_reading(clock, call, 1), 1e-7))) if reading else 1


def _reading(clock: Callable[[], float], call: Callable[[], object], count: int) -> float:
    started = clock()
    for _ in range(count):
        call()
    return (clock() - started) / count


def interval(ratios: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """The median between the ends of its 95 % bootstrap interval."""
    generator = np.random.default_rng(0)
    medians = np.median(generator.choice(ratios, (RESAMPLES, ratios.size)), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(np.median(ratios)), float(high)


def _arrays(value: object) -> Iterator[Array]:
    """The tensors in an output: itself, those of a sequence, or the numbers of a map."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _arrays(one)
    else:
        yield np.asarray(value)


def _difference(theirs: Sequence[object], ours: Sequence[object]) -> tuple[float, float]:
    max_abs = max_rel = 0.0
    for one, other in itertools.zip_longest(_arrays(theirs), _arrays(ours), fillvalue=np.zeros(0)):
        if one.shape != other.shape:
            return math.inf, math.inf
        if not one.size:
            continue
        if one.dtype.kind in "OSU":  # texts
            if not np.array_equal(one, other):
                return math.inf, math.inf
            continue
        gap = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())
        largest = float(np.abs(one.astype(np.float64)).max())
        max_abs, max_rel = max(max_abs, gap), max(max_rel, gap / largest if largest else 0.0)
    return max_abs, max_rel
