"""Programs for ranges of sizes beside programs that were made for one size alone: time, memory, at every kind of size.

Both run on one core by turns, with prepared calls, in CPU time. Weights of one model lie in two places, so neither side
finds those of the other in a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.kernels.timing import pin, ratio, readings, unpin
from bench.peers import OURS
from bench.script import main
from graphopt.program.core import with_core
from graphopt.program.regions.precision import PrecisionName
from kernels.target import host
from kernels.templates.dots.product_choice import are_faster
from models import families

ISSUE, NUMBER, MOST = 21, 1, 1.05
WHAT = "programs for ranges of sizes"
TOLERANCE = 0.5  # of programs in bf16: all that is faster is rounded on both sides
ROUNDED = 25, 6, f"{WHAT} in bf16"  # the bar's issue, number and text
ROUNDS, QUICK_ROUNDS = 15, 7


@dataclass(frozen=True, slots=True)
class Case:
    """A model, what is fixed of it, its ranges, and the sizes to measure."""

    name: str
    ranges: Mapping[str, tuple[int, int]]
    points: tuple[tuple[int, ...], ...]
    fixed: Mapping[str, int]


def _lengths(most: int, batch: int | None = None) -> tuple[tuple[int, ...], ...]:
    sizes = [one for one in (1, 7, 16, 33, 128) if one < most]
    points = [(one,) if batch is None else (1, one) for one in (*sizes, most)]
    return tuple(points) if batch is None else (*points, (batch, 33), (batch, most))


CASES = (
    Case("mlp_tiny", {"batch": (1, 128)}, _lengths(128), {}),
    Case("masked_encoder", {"batch": (1, 4), "seq": (1, 64)}, _lengths(64, 4), {}),
    Case("lstm", {"seq": (1, 128), "batch": (1, 4)}, (*((one[0], 1) for one in _lengths(128)), (128, 4)), {}),
    Case("mobilenet_v2", {"batch": (1, 4)}, ((1,), (3,), (4,)), {}),
    Case("resnet18", {"batch": (1, 4)}, ((1,), (3,), (4,)), {}),
    Case("vit_s16_legacy", {"batch": (1, 4)}, ((1,), (3,), (4,)), {}),
    Case("gpt2_dyn", {"s21": (1, 128)}, _lengths(128), {"s10": 1}),
    Case("bert_base_dyn_legacy", {"batch": (1, 2), "seq": (1, 128)}, _lengths(128, 2), {}),
)
QUICK = CASES[:3]


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and size."""
    return [_bar(sheet, QUICK if quick else CASES, "float32", QUICK_ROUNDS if quick else ROUNDS)]


def measure_rounded(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """The same of programs in bf16, where dot products are faster than float32."""
    if not are_faster(with_core(host(), graphopt.machine())):
        return [Bar(*ROUNDED, f"at most {MOST:g} x", "not measured: no faster dot products of bf16", None)]
    return [_bar(sheet, QUICK if quick else CASES, "bf16", QUICK_ROUNDS if quick else ROUNDS)]


def _bar(sheet: Sheet, cases: Sequence[Case], precision: PrecisionName, rounds: int) -> Bar:
    rows, slow, larger = [], [], []
    how: dict[str, Any] = {"precision": precision} | ({"tolerance": TOLERANCE} if precision == "bf16" else {})
    for case in cases:
        unpin()
        model = model_of(case.name)
        whole = graphopt.compile(model, dims={**case.fixed, **case.ranges}, threads=1, **how)
        for point in case.points:
            unpin()
            sizes = {**case.fixed, **dict(zip(case.ranges, point, strict=True))}
            alone = graphopt.compile(model, dims=sizes, threads=1, **how)
            feed = _feed(alone)
            pin()
            calls = {"any": whole.program.bind(feed), "alone": alone.program.bind(feed)}
            taken = readings(calls, rounds)
            found = ratio(taken["any"], taken["alone"])
            said = "x".join(map(str, point))
            slow += [f"{case.name} {said}"] if found.low > MOST else []
            rows.append((case.name, said, found.median, found.low, found.high))
        arenas = [one.linked.listing.arena_bytes for one in (whole, alone)]
        larger += [case.name] if arenas[0] > arenas[1] else []
    columns = ("model", "size", "any size / alone", "from", "to")
    sheet.table(f"a program for a range of sizes beside one for the size alone, {precision}", columns, rows)
    figure = f"slower: {', '.join(slow) or 'none'}; larger arena: {', '.join(larger) or 'none'}"
    about = (ISSUE, NUMBER, WHAT) if precision == "float32" else ROUNDED
    return Bar(*about, f"at most {MOST:g} x", figure, not slow and not larger)


def model_of(name: str) -> onnx.ModelProto:
    """A model of the zoo or of the families, or the layer of this script."""
    if name == "lstm":
        return _lstm()
    return families.build(name, seed=0) if name in families.names() else models.load(name)


def _feed(alone: graphopt.Compiled) -> dict[str, np.ndarray]:
    """Values for the inputs of a program: numbers around zero, and ones, which are places and masks alike."""
    generator, found = np.random.default_rng(0), {}
    for one in alone.linked.listing.inputs:
        drawn = generator.standard_normal(one.shape) if one.dtype.is_float else generator.integers(1, 2, one.shape)
        found[one.name] = drawn.astype(one.dtype.numpy)
    return found


def _lstm(hidden: int = 256, inputs: int = 128) -> onnx.ModelProto:
    """Time, batch, features through a bidirectional LSTM."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(0.1 * generator.standard_normal(shape).astype(np.float32), name)

    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=hidden, direction="bidirectional")
    graph = helper.make_graph(
        [node], "lstm", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["seq", "batch", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["seq", 2, "batch", hidden])],
        [weight("w", 2, 4 * hidden, inputs), weight("r", 2, 4 * hidden, hidden), weight("b", 2, 8 * hidden)],
    )  # fmt: skip
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return made


if __name__ == "__main__":
    main(measure)
