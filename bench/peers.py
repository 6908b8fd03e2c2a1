"""The optimizers that are compared: each reads a model file and writes one, inside a worker."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from bench.workers import Reply, Worker

BIG_FILE = 150 * 10**6  # bytes; from here on a peer gets the long limit
SHORT_LIMIT = 60.0  # seconds
LONG_LIMIT = 180.0  # seconds

OURS = "graphopt"
OURS_ORT = "graphopt-ort"  # with --target ort
# Name -> the distribution whose version stands for it.
DISTRIBUTIONS = {
    OURS: "graphopt",
    OURS_ORT: "graphopt",
    "onnxslim": "onnxslim",
    "onnxsim": "onnxsim",
    "onnxscript": "onnxscript",
    "ort_basic": "onnxruntime",
}
OWN = (OURS, OURS_ORT)
PEERS = tuple(name for name in DISTRIBUTIONS if name not in OWN)


def peer_version(name: str) -> str:
    """The installed version of the optimizer `name`."""
    return version(DISTRIBUTIONS[name])


def optimize(worker: Worker, name: str, source: Path, output: Path) -> Reply:
    """Let the optimizer `name` read `source` and write `output`."""
    limit = LONG_LIMIT if source.stat().st_size >= BIG_FILE else SHORT_LIMIT
    return worker.call("bench.peers:run", name, str(source), str(output), limit=limit)


def warm_up(worker: Worker, name: str) -> Reply:
    """Import the optimizer `name`, so that the first model does not pay for it."""
    return worker.call("bench.peers:prepare", name, limit=LONG_LIMIT)


def run(name: str, source: str, output: str) -> None:
    """Inside the worker: one optimization."""
    _RUNNERS[name](source, output)


def prepare(name: str) -> None:
    """Inside the worker: only the imports."""
    _IMPORTS[name]()


# Each imports its optimizer itself: a worker then holds one of them, and one that is not installed harms only itself.


def _graphopt(source: str, output: str) -> None:
    import graphopt

    graphopt.optimize(source).save(output)  # verification is on, as for every user


def _graphopt_ort(source: str, output: str) -> None:
    import graphopt

    graphopt.optimize(source, target="ort").save(output)


def _onnxslim(source: str, output: str) -> None:
    import onnxslim

    onnxslim.slim(source, output)


def _onnxsim(source: str, output: str) -> None:
    import onnx
    import onnxsim

    simplified, _ = onnxsim.simplify(source)
    onnx.save(simplified, output)


def _onnxscript(source: str, output: str) -> None:
    import onnx_ir
    import onnxscript.optimizer

    model = onnx_ir.load(source)
    onnxscript.optimizer.optimize(model)
    onnx_ir.save(model, output)


def _ort_basic(source: str, output: str) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = output
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _importing(*modules: str) -> Callable[[], None]:
    def load() -> None:
        for module in modules:
            __import__(module)

    return load


_RUNNERS: dict[str, Callable[[str, str], None]] = {
    OURS: _graphopt,
    OURS_ORT: _graphopt_ort,
    "onnxslim": _onnxslim,
    "onnxsim": _onnxsim,
    "onnxscript": _onnxscript,
    "ort_basic": _ort_basic,
}
_IMPORTS: dict[str, Callable[[], None]] = {
    OURS: _importing("graphopt"),
    OURS_ORT: _importing("graphopt"),
    "onnxslim": _importing("onnxslim"),
    "onnxsim": _importing("onnx", "onnxsim"),
    "onnxscript": _importing("onnx_ir", "onnxscript.optimizer"),
    "ort_basic": _importing("onnxruntime"),
}
