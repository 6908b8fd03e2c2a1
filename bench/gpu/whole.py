"""Whole models as programs of tasks on the PTX machine, beside ONNX Runtime: pinned, ticketed, five adversaries.

It takes minutes: the machine does about a million instructions of warps in a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import models
from bench.bar import Bar, Sheet
from bench.peers import OURS
from bench.script import main
from graphopt.flows.asked import optimized
from graphopt.flows.source import read, resize
from graphopt.program.deploy.cuda.bundle import TaskProgram
from graphopt.program.gpu import link_tasks
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.ptx.emulated import EmulatedTasks, RunWay
from kernels.ptx.machine.launching import ORDERS, Adversary
from kernels.ptx.tables import RunBytes, TaskDescription
from kernels.target import Target, cuda
from models.families import encoder

ISSUE = 24
WAYS: tuple[RunWay, ...] = ("ticketed", "pinned")
WORKERS = 6
TOLERANCE = 1e-5  # of an output's largest element
STEPS, WIDTH, LENGTH = 16, 128, 64


def _recurrent(kind: str) -> onnx.ModelProto:
    """One layer of 16 steps, 128 inputs and units."""
    gates = {"LSTM": 4, "GRU": 3}[kind]
    draw = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array((0.1 * draw.standard_normal((1, gates * WIDTH, WIDTH))).astype(np.float32), name)
        for name in ("w", "r")
    ]
    node = helper.make_node(kind, ["x", "w", "r"], ["y", "h"], hidden_size=WIDTH)
    graph = helper.make_graph(
        [node], kind.lower(), [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, 1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, 1, 1, WIDTH])], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _squeezenet() -> onnx.ModelProto:
    """SqueezeNet with all layers, at 64 pixels."""
    model = models.load("squeezenet1_1")
    for place in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_value = 64
    del model.graph.value_info[:]
    return model


def _cells() -> onnx.ModelProto:
    """The last two cells of NASNet: 7 x 7 pixels."""
    model = onnx.shape_inference.infer_shapes(models.load("nasnet_a_mobile"))
    given = ["/cells.12/Concat_output_0", "/cells.13/Concat_output_0"]
    return onnx.utils.Extractor(model).extract_model(given, ["/cells.15/Concat_output_0"])


def _zoo(name: str) -> Callable[[], onnx.ModelProto]:
    return lambda: models.load(name)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp_tiny": _zoo("mlp_tiny"), "dscnn_kws": _zoo("dscnn_kws"), "LSTM 16 x 128": lambda: _recurrent("LSTM"),
    "GRU 16 x 128": lambda: _recurrent("GRU"), "masked encoder of 2 layers": lambda: encoder.build(1),
    "squeezenet at 64": _squeezenet, "two NASNet cells": _cells,
}  # fmt: skip
QUICK = ("mlp_tiny", "LSTM 16 x 128")


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and way."""
    names = QUICK if quick else tuple(MODELS)
    rows = [row for name in names for row in _rows(sheet, name)]
    columns = ("model", "way", "regions", "adversaries", "faults", "difference", "bytes planned", "bytes counted",
               "regions apart", "million instructions", "s")  # fmt: skip
    sheet.table("whole models on the PTX machine, for sm_90", columns, rows)
    right = sum(not row[4] and row[5] <= TOLERANCE and not row[8] for row in rows)
    text = "whole models on the PTX machine: ONNX Runtime's results, the plan's bytes; pinned, ticketed, five orders"
    return [Bar(ISSUE, 2, text, "all", f"{right} of {len(rows)}", right == len(rows))]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model as a program on the PTX machine, and what it is given."""

    original: ir.Model
    lowered: Lowered
    description: TaskDescription
    program: EmulatedTasks
    feeds: dict[str, npt.NDArray[Any]]


def prepared(proto: onnx.ModelProto, target: Target) -> Prepared:
    """Compile a model; its feeds are drawn."""
    original, _ = read(proto, None, fix_defaults=True)
    if any(not isinstance(dim, int) for one in original.graph.inputs for dim in one.shape or ()):
        resize(original, {}, {"batch": 1, "seq": LENGTH})
    lowered = lower(optimized(original), target)
    linked = link_tasks(lowered, "model")
    made = TaskProgram.of(linked, target)
    draw = np.random.default_rng(0)
    feeds: dict[str, npt.NDArray[Any]] = {}
    for one in lowered.inputs:
        numbers = draw.standard_normal(one.shape) if one.dtype.is_float else draw.integers(0, 2, one.shape)
        feeds[one.name] = numbers.astype(one.dtype.numpy)
    description = TaskDescription.of(linked.listing, target, WORKERS, linked.bytes_of)
    return Prepared(original, lowered, description, EmulatedTasks(made.text, description, linked.weights), feeds)


def moved(made: Prepared) -> tuple[list[RunBytes], list[tuple[int, int]]]:
    """Of each region the bytes of tensors and constants that it reads and writes: as planned, and as counted.

    Each region is a launch of its own. Raises AssertionError where the machine has found a fault.
    """
    description = made.description
    ran = made.program.run(list(made.feeds.values()), way="launches")
    assert not ran.faults, ran.faults[0]
    return [description.moved[run] for run in description.order if description.run(run)[2]], list(ran.moved)


def _rows(sheet: Sheet, name: str) -> list[tuple[Any, ...]]:
    made = prepared(MODELS[name](), cuda("sm_90"))
    original, lowered, program, feeds = made.original, made.lowered, made.program, made.feeds
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(original).SerializeToString(), options)
    expected = session.run(None, feeds)
    found = []
    plans, counts = moved(made)
    planned, counted = sum(one.read + one.written for one in plans), sum(map(sum, counts))
    apart = sum(map(_differs, plans, counts))
    sheet.console.print(f"{name}: {planned:,} bytes planned, {counted:,} counted, {apart} regions apart")
    for way in WAYS:
        begun, faults, difference, steps = time.monotonic(), 0, 0.0, 0
        for order in ORDERS:
            ran = program.run(list(feeds.values()), Adversary(order, 1), blocks=WORKERS, way=way)
            faults += len(ran.faults)
            steps += sum(one.tally.total for one in ran.outcomes)
            for mine, theirs in zip(ran.outputs, expected, strict=True):
                scale = max(float(np.abs(theirs).max()), 1e-30)
                difference = max(difference, float(np.abs(mine - theirs).max()) / scale)
        taken = time.monotonic() - begun
        sheet.console.print(f"{name}, {way}: {faults} faults, difference {difference:.1e}, {taken:.0f} s")
        found.append(
            (name, way, len(lowered.regions), len(ORDERS), faults, difference, planned, counted, apart, steps / 1e6,
             taken)
        )  # fmt: skip
    return found


def _differs(plan: RunBytes, counts: tuple[int, int]) -> bool:
    """Whether a region moves other bytes than the plan says exactly, or more than it says at most."""
    if plan.exact:
        return counts != (plan.read, plan.written)
    return counts[0] > plan.read or counts[1] > plan.written


if __name__ == "__main__":
    main(measure)
