"""Speed of models in bytes beside ONNX Runtime and OpenVINO, one thread: a convolutional one, and products of a run.

The first is the zoo's statically quantized ResNet-18, beside OpenVINO's default too, which computes in bytes. The
others are transformers whose products ONNX Runtime's own tool quantized dynamically, with its defaults.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from onnxruntime.quantization import quantize_dynamic

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.kernels.timing import Call, Peer, Ratio, pin, ratio, readings, unpin
from bench.native import Array, feed_of
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.program.deploy.benchmark import openvino_side
from graphopt.quantization.calibration import quiet

ISSUE = 25
STATIC = "resnet18_qdq"
DYNAMIC = ("bert_base_dyn_legacy", "bert_base")
BESIDE_ORT, BESIDE_OPENVINO = 1.5, 0.8  # what the static one must give
ROUNDS, QUICK_ROUNDS = 15, 5


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Ratios of CPU time, the peer's over ours."""
    rounds, rows = QUICK_ROUNDS if quick else ROUNDS, []
    found: dict[str, dict[str, Ratio]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in (STATIC, *DYNAMIC[: 1 if quick else None]):
            file = model_file(name)
            if name != STATIC:
                file = Path(folder) / f"{name}.onnx"
                with quiet():
                    quantize_dynamic(model_file(name), file)
            own, found[name] = _beside(name, file, rounds)
            rows += [(name, peer, own, one.median, one.low, one.high) for peer, one in found[name].items()]
    sheet.table("models in bytes, one thread", ("model", "peer", "our ms", "peer / ours", "from", "to"), rows)
    static = found[STATIC]
    met = static["onnxruntime"].high >= BESIDE_ORT and all(
        one.high >= BESIDE_OPENVINO for peer, one in static.items() if peer == "openvino"
    )
    least = min(one["onnxruntime"].median for name, one in found.items() if name != STATIC)
    met = met and all(one["onnxruntime"].low > 1 for name, one in found.items() if name != STATIC)
    figures = ", ".join(f"{one.median:.2f} x {peer}" for peer, one in static.items())
    text, target = "QDQ ResNet-18; BERT quantized dynamically", "1.5 x onnxruntime, 0.8 x openvino; faster"
    return [Bar(ISSUE, 3, text, target, f"{figures}; {least:.2f} x at least", met)]


def _beside(name: str, file: Path, rounds: int) -> tuple[float, dict[str, Ratio]]:
    """Milliseconds of ours, and each peer's ratio."""
    unpin()
    program = graphopt.compile(file, dims=models.sizes(name), machine=graphopt.machine(), threads=1, tune=0).program
    feed: dict[str, Array] = feed_of(name)
    sides: dict[str, Call] = {"ours": program.bind(feed), "onnxruntime": Peer(file.read_bytes(), feed)}
    if name == STATIC and find_spec("openvino") is not None:
        sides["openvino"] = openvino_side(file.read_bytes(), feed, 1, None).call
    pin()
    taken = readings(sides, rounds)
    ratios = {peer: ratio(times, taken["ours"]) for peer, times in taken.items() if peer != "ours"}
    return 1e3 * float(np.median(taken["ours"])), ratios


if __name__ == "__main__":
    main(measure)
