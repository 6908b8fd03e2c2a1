"""Regions between quantized tensors: steps off the float64 evaluation of the graph, ours beside ONNX Runtime's.

Every result of an operator that quantizes is made an output. What a run gives for one is compared with the evaluation
in float64 of the nodes since the quantized tensors before it, *as that run gave them*: an element is held to its own
region, not to steps that earlier ones are off. Models are ONNX Runtime's own tests (DATA), those of the zoo and of
packages, and networks of the zoo that onnxruntime.quantization quantizes here. A third side, ONNX Runtime without
optimizations, shows how much is float32's own. Models that quantize by ranges of a run stand apart: what they quantize
is computed in float32 by every side. Beside stand the networks' own outputs, against the whole graph in float64, where
a step in an early layer has moved others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import models
from bench.bar import Bar, Sheet
from bench.double import Array, evaluate
from bench.feeds import Feed, taken, working_feeds
from bench.ort_models import model_names
from bench.peers import OURS
from bench.real.packages import trained_models
from bench.script import main
from bench.workers import Worker
from bench.zoo import model_file
from graphopt.flows.asked import optimized
from graphopt.flows.source import read, resize
from graphopt.program.deploy.compiled import Whole
from graphopt.program.make import make
from kernels.target import host

ISSUE, NUMBER = 20, 4
LIMIT = 400.0  # seconds for one model
FEEDS = 2
NETWORKS = ("dscnn_kws", "mlp_tiny", "squeezenet1_1", "mobilenet_v2", "resnet18")
QUICK = NETWORKS[:2]
STATIC = ("u8 s8", "u8 s8 per channel", "s8 s8 per channel", "u8 u8", "u16 s8")  # of activations and of weights
DYNAMIC = ("dynamic u8", "dynamic s8 per channel")
SIDES = ("graphopt", "ONNX Runtime", "ONNX Runtime, not optimized")
QUANTIZES = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"})


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Elements of quantized tensors that are a step off, and more than one, for each side."""
    tables: dict[bool, list[tuple[Any, ...]]] = {False: [], True: []}
    outputs, left_out, worse, far = [], [], [], 0
    totals = dict.fromkeys(SIDES, 0)
    with tempfile.TemporaryDirectory() as folder:
        for name, file in _files(Path(folder), data, quick):
            with Worker() as worker:
                reply = worker.call("bench.quantized_regions:compared", str(file), limit=LIMIT)
            if reply.kind != "value" or isinstance(reply.value, str):
                left_out.append((name, reply.text or reply.value))
                continue
            found = reply.value
            if not found:
                continue  # nothing is quantized
            tables[found["dynamic"]].append((name, found["elements"], *(_shown(found[side]) for side in SIDES)))
            outputs.append((name, *(f"{found[side]['outputs']:.1e}" for side in SIDES)))
            if found["dynamic"]:
                continue
            ours, theirs = found[SIDES[0]], found[SIDES[1]]
            far += ours["far"]
            for side in SIDES:
                totals[side] += found[side]["off"]
            if ours["off"] > theirs["off"] or ours["far"]:
                worse.append(name)
    for dynamic, rows in tables.items():
        kind = "by the range of a run" if dynamic else "by constants"
        sheet.table(f"quantized {kind}: elements off the float64 evaluation by a step (by more)",
                    ("model", "elements", *SIDES), rows)  # fmt: skip
    sheet.table("outputs of the whole network: largest difference, relative to the largest output",
                ("model", *SIDES), outputs)  # fmt: skip
    sheet.table("not measured", ("model", "why"), left_out)
    figure = f"{totals[SIDES[0]]} off, by more than a step {far}; ONNX Runtime {totals[SIDES[1]]}"
    figure += f"; more than its in {', '.join(worse)}" if worse else ""
    text = "no element by two steps, none more off than in ONNX Runtime"
    return [Bar(ISSUE, NUMBER, "quantized regions against float64", text, figure, not worse)]


def _shown(side: Mapping[str, Any]) -> str:
    return f"{side['off']} ({side['far']})"


def _files(folder: Path, data: Path | None, quick: bool) -> list[tuple[str, Path]]:
    """All models with quantizing nodes, by name."""
    found = [(name, model_file(name)) for name in models.names()] + list(trained_models()[0])
    if data is not None:
        found += [(name, data / "ort-models" / name) for name in model_names(data)]
    found = [(name, file) for name, file in found if _quantizes(file)]
    return found + [
        (f"{name}, {way}", _quantized(model_file(name), folder / f"{name} {way}.onnx", way))
        for name in (QUICK if quick else NETWORKS) for way in (*STATIC, *DYNAMIC)
    ]  # fmt: skip


def _quantizes(file: Path) -> bool:
    try:
        return any(node.op_type in QUANTIZES for node in onnx.load(file, load_external_data=False).graph.node)
    except Exception:  # a damaged file; protobuf's errors share no base class
        return False


def _quantized(source: Path, target: Path, way: str) -> Path:
    """A network quantized by ONNX Runtime's own tool."""
    from onnxruntime import quantization as tool

    plain = onnx.load(source)
    del plain.graph.value_info[:]  # some files of the zoo declare the dims of another size
    kinds = {"u8": tool.QuantType.QUInt8, "s8": tool.QuantType.QInt8, "u16": tool.QuantType.QUInt16}
    words, per_channel = way.split(), way.endswith("per channel")
    if words[0] == "dynamic":
        tool.quantize_dynamic(plain, str(target), per_channel=per_channel, weight_type=kinds[words[1]])
        return target
    feeds = iter(_feeds(plain))
    reader = type("Reader", (tool.CalibrationDataReader,), {"get_next": lambda _: next(feeds, None)})()
    tool.quantize_static(
        plain, str(target), reader, quant_format=tool.QuantFormat.QDQ, per_channel=per_channel,
        activation_type=kinds[words[0]], weight_type=kinds[words[1]],
    )  # fmt: skip
    return target


def _feeds(model: onnx.ModelProto) -> list[Feed]:
    session = _session(model, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    return working_feeds(model, lambda feed: taken(session, feed))[:FEEDS]


def _session(model: onnx.ModelProto, level: ort.GraphOptimizationLevel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def compared(source: str) -> dict[str, Any] | str:
    """Inside the worker: elements off by a step and by more for each side; a text where nothing can be compared."""
    model = onnx.load(source)
    names = [name for node in model.graph.node if node.op_type in QUANTIZES for name in node.output if name]
    ends = [output.name for output in model.graph.output]
    if not names:
        return {}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in ends)
    feeds = _feeds(model)
    sides = [_graphopt, *(_runtime(level) for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"))]
    found: dict[str, Any] = {side: {"off": 0, "far": 0, "outputs": 0.0} for side in SIDES}
    found["dynamic"] = any(node.op_type == "DynamicQuantizeLinear" for node in model.graph.node)
    elements = 0
    for feed in feeds:
        whole = evaluate(model, feed, {})
        for title, side in zip(SIDES, sides, strict=True):
            run = side(model, feed)
            wanted = evaluate(model, feed, {name: run[name] for name in names})
            steps = [_steps(run[name], wanted[name]) for name in names]
            elements += sum(one.size for one in steps) if title == SIDES[0] else 0
            found[title]["off"] += sum(int(np.count_nonzero(one)) for one in steps)
            found[title]["outputs"] = max(found[title]["outputs"], *(_distance(run[end], whole[end]) for end in ends))
            found[title]["far"] += sum(int(np.count_nonzero(one > 1)) for one in steps)
    return {**found, "elements": elements} if feeds else "no feed that it takes"


def _distance(one: Array, other: Array) -> float:
    """The largest difference, relative to the largest number."""
    difference = np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0)
    return float(difference / max(np.abs(other.astype(np.float64)).max(initial=0.0), np.finfo(np.float64).tiny))


def _steps(one: Array, other: Array) -> Array:
    """How many steps integers are apart; none for the scales of DynamicQuantizeLinear, which are floats."""
    return np.zeros(0) if one.dtype.kind == "f" else np.abs(one.astype(np.int64) - other.astype(np.int64))


def _graphopt(model: onnx.ModelProto, feed: Feed) -> dict[str, Array]:
    original, _ = read(model, None, fix_defaults=True)
    resize(original, {name: list(np.shape(one)) for name, one in feed.items()}, {})
    made = make(optimized(original), host(), "model", False, None, None, 1)
    program = made.program if isinstance(made, Whole) else made
    assert program is not None, "it is for this machine"
    return dict(zip([output.name for output in model.graph.output], program.run(None, feed), strict=True))


def _runtime(level: str) -> Callable[[onnx.ModelProto, Feed], dict[str, Array]]:
    def run(model: onnx.ModelProto, feed: Feed) -> dict[str, Array]:
        session = _session(model, getattr(ort.GraphOptimizationLevel, level))
        return dict(zip([output.name for output in model.graph.output], session.run(None, feed), strict=True))

    return run


if __name__ == "__main__":
    main(measure)
