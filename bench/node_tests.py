"""Bar 5: the onnx package's node tests must still hold after optimization.

Counted are the tests whose model ONNX Runtime runs, its own optimizations off, with the recorded outputs. A second
mode turns every tensor input into an initializer, so that all of the model can be computed beforehand.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import numpy_helper

from bench import peers
from bench.bar import ISSUE, Bar, Sheet
from bench.judge import session
from bench.peers import OURS
from bench.script import main
from bench.survey import BUILD
from bench.workers import Worker

LIMIT = 60.0  # seconds for one test
QUICK_STEP = 25  # with --quick, every 25th test

Mode = Literal["inputs", "embedded"]
MODES: tuple[Mode, ...] = ("inputs", "embedded")


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """The onnx package's node tests before and after optimization, with inputs and with values embedded."""
    bars = []
    with Worker() as worker:
        names = worker.call("bench.node_tests:test_names", limit=LIMIT).value[:: QUICK_STEP if quick else 1]
        for mode in MODES:
            outcomes = {name: _outcome(worker, name, mode, optimizer) for name in names}
            counted = {name: outcome for name, outcome in outcomes.items() if outcome != "not counted"}
            faulty = [(name, outcome) for name, outcome in counted.items() if outcome != "ok"]
            kinds = Counter(outcome.partition(":")[0] for outcome in outcomes.values())
            sheet.table(f"node tests, {mode}: outcomes", ("outcome", "tests"), sorted(kinds.items()))
            sheet.table(f"node tests, {mode}: not ok", ("test", "outcome"), faulty)
            right = len(counted) - len(faulty)
            text = "node tests: still right" + (", values embedded" if mode == "embedded" else "")
            bars.append(Bar(ISSUE, 5, text, f"{len(counted)}", f"{right}", not faulty))
    return bars


def _outcome(worker: Worker, name: str, mode: Mode, optimizer: str) -> str:
    original = worker.call("bench.node_tests:original_holds", name, mode, limit=LIMIT)
    if original.kind != "value" or not original.value:
        return "not counted"  # ORT has no kernel for it, or differs from the recorded outputs
    reply = worker.call("bench.node_tests:optimized_fault", name, mode, optimizer, limit=LIMIT)
    if reply.kind != "value":
        return f"{reply.kind}: {reply.text}"[:300]
    return reply.value or "ok"


def test_names() -> list[str]:
    """Inside the worker: the names of all node tests."""
    return sorted(_tests())


def node_test(name: str) -> Any:
    """Inside the worker: a test of the onnx package, with its model and recorded values."""
    return _tests()[name]


def original_holds(name: str, mode: Mode) -> bool:
    """Inside the worker: whether the test holds for the model as it is."""
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        path = Path(folder) / "model.onnx"
        try:
            feeds = _write(name, mode, path)
            return not _fault(name, path, feeds)
        except Exception:  # ORT rejects the model, numpy has no such type, ...: all mean the test says nothing
            return False


def optimized_fault(name: str, mode: Mode, optimizer: str) -> str:
    """Inside the worker: what is wrong after optimization; empty if nothing."""
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        source, output = Path(folder) / "model.onnx", Path(folder) / "output.onnx"
        feeds = _write(name, mode, source)
        peers.run(optimizer, str(source), str(output))
        try:
            onnx.checker.check_model(str(source), full_check=True)
        except Exception:  # some tests are themselves no valid models
            pass
        else:
            try:
                onnx.checker.check_model(str(output), full_check=True)
            except Exception as error:
                return f"checker: {error}"[:300]
        try:
            return _fault(name, output, feeds)
        except Exception as error:
            return f"run: {error}"[:300]


@lru_cache(maxsize=1)
def _tests() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests overflow on purpose
        return {test.name: test for test in load_model_tests(kind="node")}


def _folder() -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    return BUILD


def _write(name: str, mode: Mode, path: Path) -> list[dict[str, Any]]:
    """Write the test's model and return the feeds of its data sets."""
    test = node_test(name)
    model = onnx.ModelProto()
    model.CopyFrom(test.model)
    sets = [[value_of(value) for value in inputs] for inputs, _ in test.data_sets]
    inputs = list(model.graph.input)
    if mode == "embedded":
        (values,) = sets  # a second set of inputs cannot be embedded in the same model
        model.ir_version = max(model.ir_version, 4)  # from here on an initializer need not be an input
        for position, value in enumerate(inputs):
            if value.type.HasField("tensor_type"):
                model.graph.initializer.append(numpy_helper.from_array(values[position], value.name))
                model.graph.input.remove(value)
    onnx.save(model, path)
    fed = {value.name for value in model.graph.input}
    return [
        {value.name: given for value, given in zip(inputs, values, strict=True) if value.name in fed} for values in sets
    ]


def _fault(name: str, path: Path, feeds: list[dict[str, Any]]) -> str:
    test = node_test(name)
    running = session(path)
    for feed, (_, outputs) in zip(feeds, test.data_sets, strict=True):
        for position, (got, wanted) in enumerate(zip(running.run(None, feed), outputs, strict=True)):
            if not _close(got, value_of(wanted), test.rtol, test.atol):
                return f"wrong: output {position}"
    return ""


def value_of(value: Any) -> Any:
    """A recorded value as an array, or a list of them."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    # Some tests give a numpy scalar where ORT wants an array without dims.
    return np.asarray(value) if isinstance(value, np.generic) else value


def _close(got: Any, wanted: Any, relative: float, absolute: float) -> bool:
    if isinstance(wanted, list | tuple):
        same = isinstance(got, list | tuple) and len(got) == len(wanted)
        return same and all(_close(a, b, relative, absolute) for a, b in zip(got, wanted, strict=True))
    if wanted is None or got is None:
        return got is wanted
    a, b = np.asarray(got), np.asarray(wanted)
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return False
    if b.dtype.kind in "OSUbiu":
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a.astype(complex), b.astype(complex), rtol=relative, atol=absolute, equal_nan=True))


if __name__ == "__main__":
    main(measure)
