"""Bar 1 of the kernels and 3 of native speed: float32 matrix products beside ONNX Runtime, and beside the machine.

What the machine allows is its measured peak, or as many operations as weights bring with them at the measured bandwidth
of where they lie, whichever is less.

Each shape runs as several products in one call (as many weights as make a call last, sixteen at most), on both sides:
what one call costs is a whole-model question, not a kernel's. The weights of the matrix-vector shapes together exceed
the caches, as those of a model do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import helper

import graphopt
from bench.bar import Bar, Sheet
from bench.kernels.timing import Peer, Ratio, model, pin, ratio, readings
from bench.peers import OURS
from bench.script import main
from graphopt.program.core import with_core
from kernels.dtype import DType
from kernels.peak import peak_call
from kernels.run import Calls, Executable, aligned
from kernels.target import Target, host
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm import GEMM, Gemm, GemmCandidate
from kernels.tensor.expression import Buffer, Expression, gelu, relu

ISSUE, SPEED = 4, 19
ROUNDS, QUICK_ROUNDS = 15, 5
PEAK = 0.85  # of the fused multiply-adds, from 16 rows on
LEAST, MEAN = 0.97, 1.05
WARM_BYTES = 8 << 20  # of weights that one call runs through, where they are not meant to be cold


@dataclass(frozen=True, slots=True)
class Shape:
    """A product to measure."""

    rows: int
    columns: int
    depth: int
    activation: str = ""  # "", "relu", "gelu"
    cold: bool = False  # the weights of all runs together exceed the caches

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}{' ' + self.activation if self.activation else ''}"

    @property
    def copies(self) -> int:
        """How many products one call runs."""
        bytes_of_b = self.columns * self.depth * 4
        if self.cold:
            return max(2, int(64e6 / bytes_of_b))
        return int(np.clip(2e8 / (2 * self.rows * bytes_of_b / 4), 1, max(1, min(16, WARM_BYTES // bytes_of_b))))


SHAPES = (
    *(Shape(size, size, size) for size in (64, 96, 128, 192, 256, 384, 512, 768, 1024)),
    Shape(128, 768, 768), Shape(128, 3072, 768, "gelu"), Shape(128, 768, 3072), Shape(384, 2304, 768),
    Shape(512, 3072, 768, "gelu"), Shape(512, 768, 3072), Shape(64, 128, 512, "relu"), Shape(16, 1024, 1024, "relu"),
    Shape(4, 768, 768, cold=True), Shape(1, 1000, 2048, cold=True), Shape(1, 768, 768, cold=True),
)  # fmt: skip


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Ratios of CPU time, ONNX Runtime over ours, one thread, float32 on both sides."""
    pin()
    target, rows, missed, short = with_core(host(), graphopt.machine()), [], [], []
    ratios: list[Ratio] = []
    for shape in SHAPES:
        found, share, error = compare(shape, target, QUICK_ROUNDS if quick else ROUNDS)
        ratios.append(found)
        below = shape.rows >= 16 and share < PEAK
        if found.high < LEAST or below:
            missed.append(str(shape))
        allowed = share / _limit(shape, target)
        if found.high < LEAST or (shape.rows >= 16 and allowed < PEAK):
            short.append(str(shape))
        rows.append((
            str(shape), found.median, found.low, found.high, 100 * share, 100 * allowed, f"{error:.1e}"
        ))  # fmt: skip
    mean = float(np.exp(np.mean([np.log(one.median) for one in ratios])))
    sheet.table(
        "float32 matrix products, one thread, ONNX Runtime / ours",
        ("shape", "ratio", "from", "to", "% of peak", "% of what is possible", "max error"), rows,
    )  # fmt: skip
    target_text = f"mean {MEAN}, each >= {LEAST}, >= {PEAK:.0%} of peak from 16 rows"
    speed_text = target_text.replace("peak", "what is possible")
    return [
        Bar(ISSUE, 1, "fp32 GEMM against ONNX Runtime", target_text, *_figure(mean, missed)),
        Bar(SPEED, 3, "products beside ONNX Runtime and the machine", speed_text, *_figure(mean, short)),
    ]


def _figure(mean: float, missed: Sequence[str]) -> tuple[str, bool]:
    without = f" (not: {', '.join(missed)})" if missed else ""
    return f"{mean:.3f}; {len(SHAPES) - len(missed)} of {len(SHAPES)}{without}", not missed and mean >= MEAN


def _limit(shape: Shape, target: Target) -> float:
    """The share of the peak that the weights' way to the core allows: half a flop a byte for each row."""
    rate = target.rate(4 * shape.columns * shape.depth * shape.copies)  # bytes a cycle
    peak = 2 * target.core.products * target.lanes()
    return min(1.0, shape.rows / 2 * rate / peak)


def compare(
    shape: Shape, target: Target, rounds: int, chosen: GemmCandidate | None = None
) -> tuple[Ratio, float, float]:
    """The ratio, our share of the peak, and the largest error relative to the largest result."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((shape.rows, shape.depth)).astype(np.float32)
    bias = generator.standard_normal(shape.columns).astype(np.float32)
    weights = [
        (generator.standard_normal((shape.depth, shape.columns)) / np.sqrt(shape.depth)).astype(np.float32)
        for _ in range(shape.copies)
    ]
    peer = _peer(shape, x, weights, bias)
    ours, outputs = prepare(shape, x, weights, bias, target, chosen)
    ours()
    error = max(
        float(np.abs(one.reshape(other.shape) - other).max() / np.abs(other).max())
        for one, other in zip(outputs, peer.outputs, strict=True)
    )
    peak, peak_flops = peak_call(target)
    taken = readings({"peer": peer, "ours": ours, "peak": peak}, rounds)
    flops = 2 * shape.rows * shape.columns * shape.depth * shape.copies
    shares = [(flops / one) / (peak_flops / other) for one, other in zip(taken["ours"], taken["peak"], strict=True)]
    return ratio(taken["peer"], taken["ours"]), float(np.median(shares)), error


def prepare(
    shape: Shape,
    x: np.ndarray,
    weights: Sequence[np.ndarray],
    bias: np.ndarray,
    target: Target,
    chosen: GemmCandidate | None = None,
) -> tuple[Calls, list[np.ndarray]]:
    """Our runs and the arrays that they write."""
    gemm = problem(shape)
    kernel = GEMM.build(gemm, chosen, target, "gemm") if chosen else GEMM.kernel(gemm, target)
    packing = kernel.operand("b").packing
    assert packing is not None, "the weights are constants"
    executable = Executable([kernel])
    a, held_bias = aligned(x.size), aligned(bias.size)
    a[:], held_bias[:] = x.reshape(-1), bias
    runs, outputs = [], []
    for weight in weights:
        b, c = aligned(packing.elements), aligned(shape.rows * shape.columns)
        b[:] = packing.pack(weight)
        outputs.append(c)
        runs.append((kernel, {"a": a, "b": b, "c": c, "bias": held_bias}))
    return executable.calls(runs), outputs


def problem(shape: Shape) -> Gemm:
    """The shape as a problem with its bias and activation."""
    plain = Gemm(shape.rows, shape.columns, shape.depth)
    value: Expression = ACCUMULATED[()] + Buffer("bias", DType.F32, (shape.columns,))[plain.column]
    if shape.activation:
        value = {"relu": relu, "gelu": gelu}[shape.activation](value)
    return Gemm(shape.rows, shape.columns, shape.depth, epilogue=Epilogue(value))


def _peer(shape: Shape, x: np.ndarray, weights: Sequence[np.ndarray], bias: np.ndarray) -> Peer:
    nodes, outputs, constants = [], [], {"bias": bias}
    for number, weight in enumerate(weights):
        constants[f"w{number}"] = weight
        last = f"y{number}"
        outputs.append(last)
        before = f"g{number}" if shape.activation else last
        nodes.append(helper.make_node("Gemm", ["x", f"w{number}", "bias"], [before]))
        if shape.activation:
            nodes.append(helper.make_node({"relu": "Relu", "gelu": "Gelu"}[shape.activation], [before], [last]))
    return Peer(model(nodes, {"x": x}, outputs, constants), {"x": x})


if __name__ == "__main__":
    main(measure)
