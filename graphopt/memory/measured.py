"""What ONNX Runtime takes for a model: heap bytes and time of its runs, in a process of its own.

Heap bytes are counted by a library that stands before the C library's allocators (memory.heap). Where there is none,
they are how far the process grew, as Linux tells it; elsewhere there is no figure. With `contract` the session has the
options of `contract_options`, under which a plan is what it takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.gradient.step import step_of
from graphopt.memory.heap import counter
from graphopt.model.facts import Facts
from graphopt.model.save import save

RUNS = 3  # whose heap is counted
ROUNDS = 9  # whose time is taken, models by turns
SECONDS = 600

_SCRIPT = """
import ctypes, gc, json, sys, time
import numpy as np
import onnxruntime as ort

asked = json.loads(sys.argv[1])

class Heap:
    def __init__(self):
        self.library = ctypes.CDLL(None)
        for name in ("heap_now", "heap_most", "heap_aligned_most"):
            getattr(self.library, name).restype = ctypes.c_size_t
    def around(self, call):
        self.library.heap_reset()
        before = self.library.heap_now()
        kept = call()
        return self.library.heap_most() - before, self.library.heap_aligned_most()

class Resident:
    def read(self, key):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))
    def around(self, call):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what loading has freed goes back, or the run would grow into it unseen
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = self.read("VmRSS")
        kept = call()
        grown = self.read("VmHWM") - before
        return grown, grown

def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if asked["contract"]:
        options.enable_cpu_mem_arena = options.enable_mem_reuse = options.enable_mem_pattern = False
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

with np.load(asked["feed"]) as arrays:
    feed = {name: ort.OrtValue.ortvalue_from_numpy(arrays[f"arr_{at}"]) for at, name in enumerate(asked["names"])}
counted = Heap() if asked["counted"] else Resident()
sessions = [session(path) for path in asked["models"]]

def bound(session):
    binding = session.io_binding()
    for name, value in feed.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        place = places.get(output.name)
        binding.bind_output(output.name, "cpu") if place is None else binding.bind_ortvalue_output(output.name, place)
    return lambda: session.run_with_iobinding(binding)

places = {
    name: ort.OrtValue.ortvalue_from_numpy(np.zeros(dims, dtype)) for name, (dims, dtype) in asked["places"].items()
}
calls = [bound(one) if places else lambda one=one: one.run_with_ort_values(None, feed) for one in sessions]
peaks = [[max(column) for column in zip(*(counted.around(call) for _ in range(asked["runs"])))] for call in calls]
times = [[] for _ in calls]
for _ in range(asked["rounds"]):
    for call, taken in zip(calls, times):
        begun = time.process_time()
        call()
        taken.append(1e3 * (time.process_time() - begun))
print(json.dumps([[*peak, taken] for peak, taken in zip(peaks, times)]))
"""


@dataclass(frozen=True, slots=True)
class Use:
    """One model in ONNX Runtime, on one thread."""

    heap: int  # bytes at the peak of a run, above those held before it
    tensors: int  # of them aligned ones: tensors and kernels' scratch, not the runtime's own books
    milliseconds: tuple[float, ...]  # of processor time, run by run, by turns with the other models

    def at_most(self, other: Use) -> Use:
        """The bytes of both, whichever are more, and the times of both."""
        heap, tensors = max(self.heap, other.heap), max(self.tensors, other.tensors)
        return Use(heap, tensors, self.milliseconds + other.milliseconds)


def use_in_onnxruntime(
    models: Sequence[ir.Model], *, contract: bool, rounds: int = ROUNDS, runs: int = RUNS, processes: int = 1
) -> tuple[Use, ...] | None:
    """What each model takes on the same seeded inputs; None where it cannot be measured.

    Models have the same inputs, of dims that are all numbers. ONNX Runtime numbers the nodes that it adds by addresses,
    and runs nodes by their numbers: with several `processes` the bytes are the most in any of them. What a training
    step carries to the next one is written where the caller has memory for it, which is not counted.
    """
    library = counter()
    inputs = inputs_of(models[0])
    if any(not isinstance(size, int) for one in inputs for size in one.dims or ()):
        return None
    if library is None and not Path("/proc/self/clear_refs").exists():
        return None
    feed = make_feed(inputs, {}, "normal")
    with tempfile.TemporaryDirectory(prefix="graphopt-memory-") as folder:
        arrays, preloaded = Path(folder) / "feed.npz", Path(folder) / "libheap.so"
        np.savez(arrays, *(np.asarray(value) for value in feed.values()))
        paths = [str(Path(folder) / f"model{number}.onnx") for number in range(len(models))]
        for model, path in zip(models, paths, strict=True):
            save(model.clone(), path)
        asked = {
            "models": paths, "contract": contract, "feed": str(arrays), "names": list(feed), "runs": runs,
            "rounds": rounds, "counted": library is not None, "places": _places(models[0]),
        }  # fmt: skip
        environment = dict(os.environ)
        if library is not None:
            preloaded.write_bytes(library)
            environment["LD_PRELOAD"] = str(preloaded)
        try:
            uses: list[Use] = []
            for _ in range(processes):
                done = subprocess.run(
                    [sys.executable, "-c", _SCRIPT, json.dumps(asked)], capture_output=True, timeout=SECONDS,
                    check=True, env=environment,
                )  # fmt: skip
                seen = [Use(heap, tensors, tuple(times)) for heap, tensors, times in json.loads(done.stdout)]
                uses = [one.at_most(other) for one, other in zip(uses, seen, strict=True)] if uses else seen
            return tuple(uses)
        except (subprocess.SubprocessError, ValueError, TypeError):
            return None


def _places(model: ir.Model) -> dict[str, tuple[list[int], str]]:
    """Dims and type of what a training step carries."""
    step, facts = step_of(model), Facts(model)
    outputs = {value.name: value for value in model.graph.outputs}
    found = {}
    for name in () if step is None else [one.output for one in step.carried]:
        value = outputs.get(name)
        dims, dtype = (None, None) if value is None else (facts.static_shape(value), facts.dtype(value))
        if dims is not None and dtype is not None:
            found[name] = (list(dims), str(dtype.numpy()))
    return found
