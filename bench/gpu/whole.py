"""Whole models as programs of tasks on the PTX machine, beside ONNX Runtime: pinned, ticketed, five adversaries.

It takes minutes: the machine does about a million instructions of warps in a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
from kernels.ptx.emulated import EmulatedTasks, RunWay
from kernels.ptx.machine.launching import ORDERS, Adversary
from kernels.ptx.tables import TaskDescription
from kernels.target import cuda
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
    columns = ("model", "way", "regions", "adversaries", "faults", "difference", "million instructions", "s")
    sheet.table("whole models on the PTX machine, for sm_90", columns, rows)
    right = sum(not row[4] and row[5] <= TOLERANCE for row in rows)
    text = "whole models on the PTX machine, equal to ONNX Runtime's, pinned and ticketed, five adversaries"
    return [Bar(ISSUE, 2, text, "all", f"{right} of {len(rows)}", right == len(rows))]


def _rows(sheet: Sheet, name: str) -> list[tuple[Any, ...]]:
    proto, target = MODELS[name](), cuda("sm_90")
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
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(original).SerializeToString(), options)
    expected = session.run(None, feeds)
    description = TaskDescription.of(linked.listing, target, worker_count=WORKERS)
    program = EmulatedTasks(made.text, description, linked.weights)
    found = []
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
        found.append((name, way, len(lowered.regions), len(ORDERS), faults, difference, steps / 1e6, taken))
    return found


if __name__ == "__main__":
    main(measure)
