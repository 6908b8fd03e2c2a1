"""Bar 8: the zoo's convolutional networks turned to channels last; channel-last networks at their least number.

A network counts when the result was verified, its main graph has no Transpose, stock ONNX Runtime runs it and a second
run changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime as ort

import graphopt
import models
from bench.bar import ISSUE, Bar, Sheet
from bench.peers import OURS
from bench.script import main
from models import channels_last

# Models of the zoo that take an image and are convolutional throughout.
NETWORKS = (
    "convnext_tiny", "densenet121", "dscnn_kws", "inception_v3", "mobilenet_v2", "mobilenet_v2_legacy",
    "nasnet_a_mobile", "resnet18", "resnet18_fp16", "resnet18_legacy", "resnet18_qdq", "resnet50", "resnet50_dynbatch",
    "resnet50_legacy_keepbn", "resnext29_8x64d", "squeezenet1_1", "unet_own",
)  # fmt: skip
QUICK = ("dscnn_kws", "resnet18", "squeezenet1_1", "unet_own")


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Transposes in the main graph after `--layout nhwc`, and of channel-last networks after a plain run."""
    names = QUICK if quick else NETWORKS
    rows, short = [], []
    for name in names:
        result = graphopt.optimize(models.load(name), layout="nhwc")
        proto = result.to_proto()
        again = graphopt.optimize(proto, verify=False)
        left, stable, runs = transposes(proto), not again.rewrites, _loads(proto)
        good = result.verification.passed and not result.rolled_back and left == 0 and runs and stable
        if not good:
            short.append(name)
        functions = ", ".join(sorted(function.name for function in result.model.functions.values()))
        rows.append(
            (name, result.before.nodes, len(proto.graph.node), left, functions, result.verification.status, runs,
             stable, result.seconds)
        )  # fmt: skip
    sheet.table(
        "zoo with --layout nhwc",
        ("model", "before", "nodes", "Transposes", "functions", "verification", "ONNX Runtime", "stable", "seconds"),
        rows,
    )
    variants = channels_last.variants()
    lines, above = [], []
    for name, (proto, least) in variants.items():
        result = graphopt.optimize(proto)
        left = transposes(result.to_proto())
        first = transposes(graphopt.optimize(proto, layout="nchw").to_proto())
        last = transposes(graphopt.optimize(proto, layout="nhwc").to_proto())
        if left != least or first or last or not result.verification.passed:
            above.append(name)
        lines.append((name, transposes(proto), least, left, first, last, result.before.nodes, result.after.nodes))
    sheet.table(
        "channel-last networks: Transposes",
        ("network", "before", "least", "after", "--layout nchw", "--layout nhwc", "nodes before", "nodes after"),
        lines,
    )
    return [
        _bar("zoo CNNs to NHWC with no Transpose in the main graph", len(names), short),
        _bar("channel-last builders at their stated minimum", len(variants), above),
    ]


def transposes(proto: onnx.ModelProto) -> int:
    """How many Transposes the main graph has."""
    return sum(node.op_type == "Transpose" for node in proto.graph.node)


def _loads(proto: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime with its own optimizations takes the model; the verification has run it without."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # ONNX Runtime's errors share no base class
        return False
    return True


def _bar(text: str, total: int, short: list[str]) -> Bar:
    figure = f"{total - len(short)}" + (f" (not: {', '.join(short)})" if short else "")
    return Bar(ISSUE, 8, text, f"{total}", figure, not short)


if __name__ == "__main__":
    main(measure)
