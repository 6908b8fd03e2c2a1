"""Judges an optimizer's output against its input, with no code of graphopt.

The checker, the signature, and both models run in ONNX Runtime with its optimizations off on the same feeds. The
error of a result is max(|a - b| / (|a| + 0.01 max|a|)): relative where values are large, and forgiving near zero.
An error beyond the tolerance is held against the original's own noise: how far its results move when each input moves
by a rounding, and when ONNX Runtime optimizes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from bench.feeds import Feed, required_inputs, working_feeds
from bench.workers import Worker

Verdict = Literal[
    "ok",
    "exception",  # the optimizer raised
    "crash",  # its process ended
    "timeout",
    "ort_reject",  # the output does not load
    "run_fail",  # it loads and does not run
    "signature",  # inputs or outputs changed
    "checker",  # invalid where the input was valid
    "wrong",  # other numbers
    "dangling",  # external data is not beside it
]

JUDGE_VERSION = 2  # raised when a verdict may change, so that kept verdicts are made anew
JUDGE_LIMIT = 300.0  # seconds for one judgement
TOLERANCE = 1e-2  # a wrong rewrite is off by far more; reordered fp32 sums by far less
TOLERANCE_HALF = 3e-2  # fp16 and bf16 round each intermediate result to 11 and 8 bits
NOISE_FACTOR = 8.0  # a result may be so many times as far off as the original's own rounding carries
NUDGE = 1e-7  # relative; about one rounding of float32
_RANDOM_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the figures that go with it."""

    verdict: Verdict
    detail: str = ""
    nodes: int = 0  # all nodes, those in subgraphs, function bodies and Constant nodes included
    size: int = 0  # bytes of the file and of the external data it names
    feeds: int = 0  # on how many feeds the two were compared; 0 if the original runs on none we know
    error: float = 0.0  # the largest error seen


@dataclass(frozen=True, slots=True)
class Reference:
    """The original and what it computes."""

    source: str
    model: onnx.ModelProto
    check_error: str  # what the checker said of it; empty if valid
    feeds: tuple[Feed, ...]
    results: tuple[list[Any], ...]


def judge(worker: Worker, source: Path, output: Path) -> Judgement:
    """The verdict on `output`, made from `source`; in a worker, since a bad model may end the process."""
    reply = worker.call("bench.judge:judge_here", str(source), str(output), limit=JUDGE_LIMIT)
    if reply.kind == "value":
        return Judgement(**reply.value)
    return Judgement("run_fail", f"while judging: {reply.kind}: {reply.text}")


def judge_here(source: str, output: str) -> dict[str, Any]:
    """Inside the worker: the judgement as a JSON object."""
    return asdict(_judgement(_reference(source), Path(output)))


def first_feed(source: str) -> Feed:
    """Inside a worker: a feed with which the model runs; empty if none was found."""
    reference = _reference(source)
    return reference.feeds[0] if reference.feeds else {}


def node_count(model: onnx.ModelProto) -> int:
    """All nodes of the file: of the graph, of its subgraphs, and of each model-local function once."""
    return sum(1 for _ in all_nodes(model))


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of the file, an outer one before those of its subgraphs."""
    yield from _nodes(model.graph.node)
    for function in model.functions:
        yield from _nodes(function.node)


def file_size(path: Path, model: onnx.ModelProto) -> int:
    """Bytes of the model file and of the external files it names, each once."""
    return path.stat().st_size + sum(
        (path.parent / name).stat().st_size for name in external_files(model) if (path.parent / name).exists()
    )


def external_files(model: onnx.ModelProto) -> list[str]:
    """The external data files that a model names, relative to its own folder."""
    found: set[str] = set()
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            found.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return sorted(found)


def session(path: str | Path, *, optimized: bool = False) -> onnxruntime.InferenceSession:
    """A session that runs the file as it stands, or `optimized` by ONNX Runtime; one thread."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def difference(expected: Any, got: Any) -> float:
    """The error between two results; infinite where kinds, shapes, exact values or NaN patterns differ."""
    if isinstance(expected, list | tuple):
        if not isinstance(got, list | tuple) or len(expected) != len(got):
            return math.inf
        return max((difference(a, b) for a, b in zip(expected, got, strict=True)), default=0.0)
    if isinstance(expected, dict):  # ai.onnx.ml's maps
        if not isinstance(got, dict) or expected.keys() != got.keys():
            return math.inf
        return max((difference(value, got[key]) for key, value in expected.items()), default=0.0)
    if expected is None or got is None:
        return 0.0 if expected is got else math.inf
    return _array_difference(np.asarray(expected), np.asarray(got))


def _array_difference(expected: np.ndarray, got: np.ndarray) -> float:
    if expected.dtype != got.dtype or expected.shape != got.shape:
        return math.inf
    if expected.dtype.kind in "OSUbiu":
        return 0.0 if np.array_equal(expected, got) else math.inf
    a, b = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return math.inf
    a, b = a[finite], b[finite]
    if a.size == 0:
        return 0.0
    largest = float(np.abs(a).max())
    if largest == 0.0:
        return float(np.abs(b).max())
    return float((np.abs(a - b) / (np.abs(a) + 0.01 * largest)).max())


def signature_fault(original: onnx.ModelProto, candidate: onnx.ModelProto) -> str:
    """What a caller would notice of the inputs and outputs; empty if nothing.

    A dim that the original left open may be filled in. In IR < 4 every initializer is listed as an input; one that
    is gone may be gone from the list too, but one that is still there must still be listed.
    """
    pairs = (
        ("inputs", required_inputs(original), required_inputs(candidate)),
        ("outputs", list(original.graph.output), list(candidate.graph.output)),
    )
    for what, before, after in pairs:
        if [value.name for value in before] != [value.name for value in after]:
            return f"{what}: {_shortened([v.name for v in before])} became {_shortened([v.name for v in after])}"
        for old, new in zip(before, after, strict=True):
            fault = _type_fault(old.type, new.type)
            if fault:
                return f"{old.name!r}: {fault}"
    kept = {tensor.name for tensor in candidate.graph.initializer}
    listed = {value.name for value in candidate.graph.input}
    required = {value.name for value in required_inputs(original)}
    for value in original.graph.input:
        if value.name in required or value.name in listed:
            continue
        if original.ir_version >= 4 or value.name in kept:
            return f"the initializer {value.name!r} was an input and is none now"
    return ""


def _declared(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    """A number or a name; empty for a dim that nobody knows, which some exporters write as -1."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else ""
    return dim.dim_param


def _type_fault(old: onnx.TypeProto, new: onnx.TypeProto) -> str:
    kind = old.WhichOneof("value")
    if kind != new.WhichOneof("value"):
        return f"{kind} became {new.WhichOneof('value')}"
    if kind in ("sequence_type", "optional_type"):
        return _type_fault(getattr(old, kind).elem_type, getattr(new, kind).elem_type)
    if kind != "tensor_type":
        return ""
    before, after = old.tensor_type, new.tensor_type
    if before.elem_type != after.elem_type:
        return f"dtype {before.elem_type} became {after.elem_type}"
    if not before.HasField("shape"):
        return ""
    if not after.HasField("shape") or len(before.shape.dim) != len(after.shape.dim):
        return "its rank changed"
    for axis, (a, b) in enumerate(zip(before.shape.dim, after.shape.dim, strict=True)):
        declared, declared_now = _declared(a), _declared(b)
        if declared != "" and declared != declared_now:
            return f"dim {axis} was {declared!r} and is {declared_now!r}"
    return ""


@lru_cache(maxsize=1)  # the outputs of several peers for one original are judged one after another
def _reference(source: str) -> Reference:
    model = onnx.load(source)
    check_error = _check_error(source)
    if any(node.op_type in _RANDOM_OPS for node in all_nodes(model)):
        return Reference(source, model, check_error, (), ())
    running = session(source)
    feeds = working_feeds(model, lambda feed: _run(running, feed) is not None)
    results = [_run(running, feed) for feed in feeds]
    # Dropout in training mode, or memory read before it is written; a tiny random tensor may repeat by chance.
    if any(
        difference(result, _run(running, feed)) > 0.0
        for _ in range(5)
        for feed, result in zip(feeds, results, strict=True)
    ):
        return Reference(source, model, check_error, (), ())
    return Reference(
        source, model, check_error, tuple(feeds), tuple(result for result in results if result is not None)
    )


def _judgement(reference: Reference, output: Path) -> Judgement:
    model = onnx.load(output, load_external_data=False)
    nodes = node_count(model)
    missing = [name for name in external_files(model) if not (output.parent / name).exists()]
    if missing:
        return Judgement("dangling", f"external data {missing[0]!r} is not beside the file", nodes)
    size = file_size(output, model)
    check_error = _check_error(str(output))
    if check_error and not reference.check_error:
        return Judgement("checker", check_error, nodes, size)
    fault = signature_fault(reference.model, model)
    if fault:
        return Judgement("signature", fault, nodes, size)
    try:
        running = session(output)
    except Exception as error:  # ORT raises many classes, none of them documented
        return Judgement("ort_reject", str(error)[:500], nodes, size)
    worst, beyond = 0.0, ""
    tolerance = TOLERANCE_HALF if _is_half(reference.model) else TOLERANCE
    for position, (feed, expected) in enumerate(zip(reference.feeds, reference.results, strict=True)):
        try:
            got = running.run(None, feed)
        except Exception as error:
            return Judgement("run_fail", str(error)[:500], nodes, size, position, worst)
        apart = difference(expected, got)
        worst = max(worst, apart)
        if apart > tolerance and not beyond:
            noise = _noise(reference, position)
            if apart > NOISE_FACTOR * noise:
                beyond = f"error {apart:.2g} > {tolerance:g}, and the original's own noise is {noise:.2g}"
    return Judgement("wrong" if beyond else "ok", beyond, nodes, size, len(reference.feeds), min(worst, 1e30))


def _noise(reference: Reference, position: int) -> float:
    """How far the original's own results move for reasons of rounding; 0 where nothing but numbers could say so."""
    feed, expected = reference.feeds[position], reference.results[position]
    generator = np.random.default_rng(position)
    nudged = {
        name: (value * (1 + NUDGE * generator.choice([-1.0, 1.0], value.shape))).astype(value.dtype)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
        for name, value in feed.items()
    }  # fmt: skip
    others = (
        _run(session(reference.source), nudged),
        _run(session(reference.source, optimized=True), feed),
    )
    errors = [difference(expected, other) for other in others if other is not None]
    return max((error for error in errors if math.isfinite(error)), default=0.0)


def _run(running: onnxruntime.InferenceSession, feed: Feed) -> list[Any] | None:
    try:
        results: list[Any] = running.run(None, feed)
    except Exception:  # the original refuses this feed
        return None
    return results


def _check_error(path: str) -> str:
    """What onnx's checker, with strict shape inference, says of the file; empty if it is valid."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    return ""


def _nodes(nodes: Any) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in all_nodes(model):
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for graph in (attribute.g, *attribute.graphs):
                yield from graph.initializer


def _is_half(model: onnx.ModelProto) -> bool:
    half = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    values = (*model.graph.input, *model.graph.output)
    return any(value.type.tensor_type.elem_type in half for value in values) or any(
        tensor.data_type in half for tensor in _tensors(model)
    )


def _shortened(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return f"{len(names)} ({shown}{', …' if len(names) > 4 else ''})"
