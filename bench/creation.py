"""How long a program takes to be created, beside a session of ONNX Runtime: `python -m bench.creation [NAME ...]`.

Cold: the first of a new process, with the files in the system's cache: opening the library and creating the model, and
an InferenceSession of the model's file, each on one thread. Warm: the same again in that process. Both sides run by
turns, a process each; figures are the least of several turns. Bundles are kept in build/bench/creation.

At last how much memory a process takes that compiles the largest model, BERT base.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import graphopt

ROOT = Path(__file__).parent.parent
ZOO, BUNDLES = ROOT / "build" / "zoo", ROOT / "build" / "bench" / "creation"
NAMES = (
    "mlp_tiny", "dscnn_kws", "squeezenet1_1", "mobilenet_v2", "resnet18", "densenet121", "unet_own",
    "resnet50",
)  # fmt: skip
TURNS = 5
LARGEST, MOST = "bert_base", 3.0  # times the model's file that compiling it may take
_OURS = """
import sys, time, importlib.util
from pathlib import Path
import numpy
folder = Path(sys.argv[1])
name = next(folder.glob("*.weights")).stem
spec = importlib.util.spec_from_file_location("bundle", folder / f"{name}.py")
bundle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bundle)
library, weights = bundle.opened(folder)  # reads the library through; a C program is spared that
for _ in range(4):
    started = time.perf_counter()
    program = bundle.Program(library, weights, threads=1)
    print(time.perf_counter() - started)
    program.close()
"""
_THEIRS = """
import sys, time
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
for _ in range(4):
    started = time.perf_counter()
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    print(time.perf_counter() - started)
    del session
"""

_COMPILING = """
import resource, sys
import graphopt
graphopt.compile(sys.argv[1], threads=1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _seconds(script: str, path: Path) -> tuple[float, float]:
    """Of the first and of the quickest later creation in a new process."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(path)], capture_output=True, check=True)
    first, *later = map(float, done.stdout.split())
    return first, min(later)


def bundle_of(name: str) -> Path:
    """The bundle of a model of the zoo, for one thread and this machine; compiled where it is not there."""
    folder = BUNDLES / name
    if not (folder / "manifest.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        graphopt.compile(ZOO / f"{name}.onnx", threads=1).save(folder)
    return folder


def main(names: tuple[str, ...]) -> None:
    """A line for each model, and the geometric means."""
    ratios: list[tuple[float, float]] = []
    for name in names:
        folder = bundle_of(name)
        ours, theirs = [], []
        for _ in range(TURNS):
            ours.append(_seconds(_OURS, folder))
            theirs.append(_seconds(_THEIRS, ZOO / f"{name}.onnx"))
        (cold, warm), (their_cold, their_warm) = (tuple(map(min, zip(*side, strict=True))) for side in (ours, theirs))
        ratios.append((cold / their_cold, warm / their_warm))
        model = (ZOO / f"{name}.onnx").stat().st_size
        whole, needed = (sum(file.stat().st_size for file in files) / model for files in (
            list(folder.iterdir()), [*folder.glob("*.so"), *folder.glob("*.weights")],
        ))  # fmt: skip
        print(
            f"{name:<16} cold {1e3 * cold:8.2f} ms of {1e3 * their_cold:8.2f} = {cold / their_cold:.2f}, warm "
            f"{1e3 * warm:8.2f} of {1e3 * their_warm:8.2f} = {warm / their_warm:.2f}; bundle {whole:.2f} x its model, "
            f"library and weights {needed:.2f}",
            flush=True,
        )
    for word, place in (("cold", 0), ("warm", 1)):
        mean = math.exp(sum(math.log(one[place]) for one in ratios) / len(ratios))
        print(f"geometric mean, {word}: {mean:.2f} of ONNX Runtime's")
    largest = ZOO / f"{LARGEST}.onnx"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COMPILING, str(largest)], capture_output=True, check=True
    )
    taken = 1024 * int(done.stdout) / largest.stat().st_size
    print(f"compiling {LARGEST}: {int(done.stdout) // 1024:,} MiB at most, {taken:.2f} x its file, of {MOST:g} x")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
