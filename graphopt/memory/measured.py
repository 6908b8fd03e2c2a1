"""What ONNX Runtime really takes for a model's tensors: how far a process grows while the model runs.

A process of its own loads the model, then the peak of its resident memory is reset and read again after some runs. Only
Linux tells such a peak; elsewhere there is no figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.model.save import save

RUNS = 5
SECONDS = 120
_SCRIPT = """
import ctypes, gc, json, sys
import numpy as np
import onnxruntime as ort

def resident(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

asked = json.loads(sys.argv[1])
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 4
if asked["keeping"]:
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_pattern = False
session = ort.InferenceSession(asked["model"], options, providers=["CPUExecutionProvider"])
with np.load(asked["feed"]) as arrays:
    feed = {name: arrays[f"arr_{number}"] for number, name in enumerate(asked["names"])}
gc.collect()
ctypes.CDLL(None).malloc_trim(0)  # what loading has freed goes back, or the runs would grow into it unseen
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = resident("VmRSS")
session.run(None, feed)
first = resident("VmHWM") - before
for _ in range(asked["runs"] - 1):
    session.run(None, feed)
print(json.dumps([first, resident("VmHWM") - before]))
"""


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes that the process grew by in its first run, and at most in several."""

    first: int
    all_runs: int


def growth_in_onnxruntime(model: ir.Model, *, keeping: bool) -> Growth | None:
    """The growth with ONNX Runtime's defaults, or with the options of KEEPING; None where it cannot be measured."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    inputs = inputs_of(model)
    if any(not isinstance(size, int) for one in inputs for size in one.dims or ()):
        return None
    feed = make_feed(inputs, {}, "normal")
    with tempfile.TemporaryDirectory(prefix="graphopt-memory-") as folder:
        path, arrays = Path(folder) / "model.onnx", Path(folder) / "feed.npz"
        save(model.clone(), path)
        np.savez(arrays, *(np.asarray(value) for value in feed.values()))
        asked = {"model": str(path), "keeping": keeping, "feed": str(arrays), "names": list(feed), "runs": RUNS}
        try:
            done = subprocess.run(
                [sys.executable, "-c", _SCRIPT, json.dumps(asked)], capture_output=True, timeout=SECONDS, check=True
            )
            first, most = json.loads(done.stdout)
        except (subprocess.SubprocessError, ValueError):
            return None
    return Growth(first, most)
