"""Runs without end: `python -m bench.endless [RUNS]`, ten million by default; the memory of the process may not grow.

Every thousandth call is one that is refused, and every hundred thousandth time a second model is created and destroyed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.program.deploy.session import Bundle

REPORTS = 10
ROOM = 1 << 20  # bytes that the process may have more at the end than after the first tenth


def _resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _bundle(folder: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    places = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", places[:1], places[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    graphopt.compile(model).save(folder)
    return folder


def main(runs: int) -> None:
    """Print the resident memory along the way; ends with status 1 where it has grown."""
    with tempfile.TemporaryDirectory() as place:
        folder = _bundle(Path(place) / "b")
        program = Bundle(folder)
        call = program.bind({"x": np.ones((1, 16), np.float32)})
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        checked = program._interface.later("run", ctypes.c_int, pointer, pointer, size, pointer, size)
        first, started = 0, time.perf_counter()
        for part in range(REPORTS):
            for number in range(runs // REPORTS):
                call()
                if number % 1000 == 0 and checked(program._model, None, 1, None, 1) != 1:
                    sys.exit("a call without tensors is not refused")
                if number % 100_000 == 0:
                    Bundle(folder).close()
            resident = _resident()
            first = first or resident
            seconds = time.perf_counter() - started
            print(f"{(part + 1) * (runs // REPORTS):>12,} runs in {seconds:6.1f} s: {resident:,} bytes", flush=True)
        program.close()
    if resident > first + ROOM:
        sys.exit(f"the memory has grown by {resident - first:,} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
