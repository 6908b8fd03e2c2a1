"""Bar 11: quantized models compute the same integers, bit for bit, whatever else was asked for.

Every quantized tensor of both models is made an output, paired by the name of its node, and compared without any
tolerance in ONNX Runtime without optimizations. A tensor that is not quantized any more is judged by what is computed
from it. Images that a layout has turned are turned back first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

import graphopt
import models
from bench.bar import ISSUE, Bar, Sheet
from bench.feeds import Feed, taken, working_feeds
from bench.peers import OURS
from bench.script import main
from graphopt.passes.pipeline import Layout, Target

NETWORK = "resnet18_qdq"
WEIGHTS_ONLY = "bert_small_dynquant"  # nothing but weights is quantized
FACTORS = (1.0, 0.1, 10.0)  # what is drawn, few steps of the scale, and beyond what it can hold
CHANNELS_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}  # by rank
REQUESTS: tuple[tuple[str, Target, Layout | None], ...] = (
    ("plain", "standard", None),
    ("--target ort", "ort", None),
    ("--layout nhwc", "standard", "nhwc"),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The quantized tensors of two models, on some feeds."""

    before: int  # tensors of the original
    after: int  # tensors of the other model
    compared: int  # those that both have
    different: tuple[str, ...]  # nodes whose results differ somewhere
    outputs: float  # the largest difference of the models' own outputs
    feeds: int


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Quantized tensors of the zoo's quantized models that differ from the original's in any bit."""
    rows, wrong, compared, wanted = [], [], 0, 0
    for name, op_type in ((NETWORK, "QuantizeLinear"), (WEIGHTS_ONLY, "DequantizeLinear")):
        original = models.load(name)
        for request, target, layout in REQUESTS[: 1 if quick else None]:
            result = graphopt.optimize(original, target=target, layout=layout)
            proto = result.to_proto()
            found = compare(original, proto, op_type)
            if name == NETWORK:
                compared += found.compared - len(found.different)
                wanted += found.after
            exact = found.outputs == 0.0 if name == NETWORK else result.verification.passed
            good = found.compared == found.after > 0 and not found.different and found.feeds > 0 and exact
            if not good or result.rolled_back:
                wrong.append(f"{name} {request}")
            rows.append(
                (name, request, op_type, found.before, found.after, found.compared, len(found.different), found.feeds,
                 found.outputs)
            )  # fmt: skip
    sheet.table(
        "quantized tensors, compared bit for bit",
        ("model", "request", "results of", "before", "after", "compared", "different", "feeds", "outputs differ by"),
        rows,
    )  # fmt: skip
    figure = f"{compared}" + (f" (not: {', '.join(wrong)})" if wrong else "")
    return [Bar(ISSUE, 11, "QDQ ResNet-18: integer outputs equal bit for bit", f"{wanted}", figure, not wrong)]


def compare(
    original: onnx.ModelProto,
    changed: onnx.ModelProto,
    op_type: str = "QuantizeLinear",
    factors: tuple[float, ...] = FACTORS,
) -> Comparison:
    """The results of `op_type` in both models, and the models' own outputs, on several seeded feeds."""
    first, second = results_of(original, op_type), results_of(changed, op_type)
    names = [name for name in first if name in second]
    plain = _session(original)
    drawn = working_feeds(original, lambda feed: taken(plain, feed))
    feeds = [_scaled(feed, factor) for feed in drawn for factor in factors]
    known = [output.name for output in original.graph.output]
    left = _session(_with_outputs(original, {name: first[name] for name in names}))
    right = _session(_with_outputs(changed, {name: second[name] for name in names}))
    turned = {value.name: _dims(value) for value in changed.graph.input}
    shapes = {value.name: _dims(value) for value in original.graph.input}
    different: dict[str, None] = {}
    worst = 0.0
    for feed in feeds:
        moved = {name: _turn(array) if turned[name] != shapes[name] else array for name, array in feed.items()}
        one = left.run([*known, *(first[name] for name in names)], feed)
        other = right.run([*known, *(second[name] for name in names)], moved)
        for position, (a, b) in enumerate(zip(one, other, strict=True)):
            if a.shape != b.shape:
                a = _turn(a)
            if position >= len(known) and (a.dtype != b.dtype or not np.array_equal(a, b)):
                different[names[position - len(known)]] = None
            elif position < len(known):
                worst = max(worst, float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0)))
    return Comparison(len(first), len(second), len(names), tuple(different), worst, len(feeds))


def results_of(proto: onnx.ModelProto, op_type: str) -> dict[str, str]:
    """The results of the main graph's nodes of one operator, by the name of the node."""
    return {node.name: node.output[0] for node in proto.graph.node if node.op_type == op_type}


def _scaled(feed: Feed, factor: float) -> Feed:
    """The feed with its floats multiplied."""
    return {
        name: (array * factor).astype(array.dtype) if array.dtype.kind == "f" else array for name, array in feed.items()
    }


def _turn(array: np.ndarray) -> np.ndarray:
    return np.transpose(array, CHANNELS_LAST[array.ndim])


def _dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]


def _with_outputs(proto: onnx.ModelProto, more: Mapping[str, str]) -> onnx.ModelProto:
    """The model with more outputs; ONNX Runtime finds their types itself."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    present = {output.name for output in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=value) for value in more.values() if value not in present)
    return copy


def _session(proto: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main(measure)
