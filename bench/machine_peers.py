"""What tools of others measure on this machine, for the entries of its record; printed as JSON.

Products of ONNX Runtime and of NumPy's OpenBLAS, NumPy's dots and maxima, the C library's memset and memchr (behind
`bytearray.find`), Python's locks, dd. Each figure is the best of its readings, and the best of the tools that do the
same. Small buffers are passed often: from the time of many bytes that of few is taken, so that calls from Python do
not count. Run with one OpenBLAS thread.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from kernels.measure.streams import levels
from kernels.target import host

READINGS = 40
LARGE = 768 << 20  # bytes: above the last cache of any processor at hand
SIDES = (512, 1024)  # of square products
WAKES, WAKE_ROUNDS = 60, 10
REST = 0.0003  # seconds that a sleeper is left alone
DISK_BYTES = 32 << 20


def figures() -> dict[str, float]:
    """By entry: nanoseconds, what passes in one, or a share."""
    target = host()
    found: dict[str, float] = {}
    found["multiply_adds"] = _products() / target.lanes()
    sizes = levels(target)
    for level, size in sizes.items():
        found[f"{level}_read"] = _near(size, _reads)
        found[f"{level}_write"] = _near(size, _writes)
    found["loads"] = found["l1_read"] / target.vector_bytes
    found["memory_read"] = max(LARGE / _least(call, 5) for call in _reads(LARGE))
    found["memory_write"] = max(LARGE / _least(call, 5) for call in _writes(LARGE))
    if len(os.sched_getaffinity(0)) > 1:
        found["wake"] = min(_wake() for _ in range(WAKE_ROUNDS))
        found["compute_beside"] = _beside(_products) / _products()
        found["memory_beside"] = _beside(_large_reads) / _large_reads()
    return found | _disk()


def _least(call: Callable[[], object], readings: int = READINGS) -> float:
    """Nanoseconds."""
    found = []
    for _ in range(readings):
        started = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - started)
    return min(found)


def _products() -> float:
    """Multiply-adds of elements a nanosecond in products of square matrices."""
    rates = []
    for side in SIDES:
        a, b = (np.ones((side, side), np.float32) for _ in range(2))
        c = np.empty_like(a)
        session = _product(side)
        for call in (lambda: np.matmul(a, b, out=c), lambda: session.run(None, {"a": a, "b": b})):  # noqa: B023  # called here
            rates.append(side**3 / _least(call, 12))
    return max(rates)


def _product(side: int) -> onnxruntime.InferenceSession:
    a, b, c = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [side, side]) for name in "abc")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["a", "b"], ["c"])], "product", [a, b], [c])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _reads(size: int) -> list[Callable[[], object]]:
    array = _array(size)
    x, y = np.split(array, 2)
    zeros = bytearray(size)
    return [lambda: np.dot(x, y), lambda: zeros.find(b"\1"), array.max]


def _large_reads() -> float:
    return max(LARGE / 4 / _least(call, 5) for call in _reads(LARGE // 4))


def _writes(size: int) -> list[Callable[[], object]]:
    array = _array(size)
    return [lambda: array.fill(0), lambda: ctypes.memset(array.ctypes.data, 1, size)]


def _array(size: int) -> np.ndarray:
    """So many bytes of an array that is large enough for NumPy to ask for large pages."""
    return np.ones(max(size, 1 << 25) // 4, np.float32)[: size // 4]


def _near(size: int, make: Callable[[int], list[Callable[[], object]]]) -> float:
    """Bytes a nanosecond of a buffer in a cache, from two sizes of it."""
    rates = []
    for large, small in zip(make(size), make(size // 4), strict=True):
        repeated = max(1, (1 << 20) // size)
        long, short = (_least(partial(_often, call, repeated)) for call in (large, small))
        if long > short:
            rates.append(repeated * (size - size // 4) / (long - short))
    return max(rates, default=float("nan"))


def _often(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def _wake() -> float:
    """Nanoseconds from the release of a lock to the next line of a thread that slept for it, on another core."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    asked, answered = threading.Lock(), threading.Lock()
    asked.acquire()
    answered.acquire()
    woken, taken = [0] * WAKES, []

    def sleep() -> None:
        os.sched_setaffinity(threading.get_native_id(), {second})
        for turn in range(WAKES):
            asked.acquire()
            woken[turn] = time.perf_counter_ns()
            answered.release()

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {first})
    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    for turn in range(WAKES):
        until = time.perf_counter() + REST
        while time.perf_counter() < until:
            pass
        started = time.perf_counter_ns()
        asked.release()
        answered.acquire()
        taken.append(woken[turn] - started)
    sleeper.join()
    os.sched_setaffinity(0, before)
    return float(np.median(taken))


def _beside(measure: Callable[[], float]) -> float:
    """What each of two processes reaches, the mean, while both do the same."""
    context = multiprocessing.get_context("fork")
    barrier, found, processes = context.Barrier(2), [], []
    for processor in sorted(os.sched_getaffinity(0))[:2]:
        ours, theirs = context.Pipe(False)

        def work(to: Connection = theirs, processor: int = processor) -> None:
            os.sched_setaffinity(0, {processor})
            barrier.wait()
            to.send(measure())

        processes.append(context.Process(target=work))
        found.append(ours)
    for one in processes:
        one.start()
    rates = [one.recv() for one in found]
    for one in processes:
        one.join()
    return float(np.mean(rates))


def _disk() -> dict[str, float]:
    """dd, past the cache; empty where it is not there or the file system does not let it."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        file = f"{folder}/file"
        lines = {
            "disk_write": ["if=/dev/zero", f"of={file}", "oflag=direct", "conv=fdatasync,notrunc"],
            "disk_read": [f"if={file}", "of=/dev/null", "iflag=direct"],
        }
        found = {}
        for name, words in lines.items():
            taken = []
            for _ in range(10):
                command = ["dd", *words, "bs=4M", f"count={DISK_BYTES >> 22}"]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"LC_ALL": "C"})
                except (OSError, subprocess.CalledProcessError):
                    return {}
                taken.append(float(done.stderr.rsplit(" s,", 1)[0].rsplit(",", 1)[1]))
            found[name] = DISK_BYTES / (1e9 * float(np.median(taken)))
    return found


if __name__ == "__main__":
    json.dump(figures(), sys.stdout)
