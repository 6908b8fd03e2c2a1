"""Programs for images of any sides, beside ONNX Runtime and beside programs that were made for one size alone.

All run on one core by turns, with prepared calls, in CPU time. ONNX Runtime has one session for all sizes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.kernels.timing import Call, Peer, pin, ratio, readings, unpin
from bench.peers import OURS
from bench.script import main

# By model of the zoo: the least and the greatest side, and the images that are measured, as height x width.
CASES = {
    "resnet18": ((64, 256), ((224, 224), (96, 160))),
    "mobilenet_v2": ((64, 256), ((224, 224), (96, 160))),
    "squeezenet1_1": ((64, 256), ((224, 224), (96, 160))),
    "inception_v3": ((80, 304), ((299, 299), (128, 160))),
}
ROUNDS, QUICK_ROUNDS = 15, 7
ISSUE, NUMBER = 21, 10
LEAST, SHARE = 0.95, 0.85  # of ONNX Runtime's speed, by the lower end; of one size's, on the geometric mean


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and size."""
    rows, slow, shares = [], list[str](), list[float]()
    for name, ((least, most), points) in CASES.items():
        if quick and name != "resnet18":
            continue
        unpin()
        proto = _of_free_sides(models.load(name))
        source, given = proto.SerializeToString(), proto.graph.input[0].name
        whole = graphopt.compile(proto, dims={"height": (least, most), "width": (least, most)}, threads=1)
        for height, width in points:
            unpin()
            alone = graphopt.compile(proto, dims={"height": height, "width": width}, threads=1)
            feed = {given: np.random.default_rng(0).standard_normal((1, 3, height, width)).astype(np.float32)}
            pin()
            calls: dict[str, Call] = {
                "any": whole.program.bind(feed), "alone": alone.program.bind(feed), "peer": Peer(source, feed)
            }  # fmt: skip
            taken = readings(calls, QUICK_ROUNDS if quick else ROUNDS)
            found = [ratio(taken[one], taken["any"]) for one in ("peer", "alone")]
            cells = [f"{one.median:.2f} ({one.low:.2f} to {one.high:.2f})" for one in found]
            slow += [f"{name} {height}x{width}"] if found[0].low <= LEAST else []
            shares.append(found[1].median)
            rows.append((name, f"{height} x {width}", *cells, round(whole.seconds)))
    columns = ("model", "image", "ONNX Runtime / any sides", "one size / any sides", "seconds to compile for any")
    sheet.table("programs for images of any sides, float32", columns, rows)
    mean = float(np.exp(np.mean(np.log(shares))))
    target, figure = (
        f"not slower than ONNX Runtime, {SHARE} x one size's",
        f"{mean:.2f}; slower: {', '.join(slow) or 'none'}",
    )
    return [Bar(ISSUE, NUMBER, "programs for images of any sides", target, figure, not slow and mean >= SHARE)]


def _of_free_sides(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same of images of any height and width."""
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[2].dim_param, dims[3].dim_param = "height", "width"
    del model.graph.value_info[:]
    return model


if __name__ == "__main__":
    main(measure)
