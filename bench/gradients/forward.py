"""The oracle's own check: torch beside ONNX Runtime on the zoo and beside ONNX's node tests, and its gradients.

    .venv-torch/bin/python -m bench.gradients.forward

Both run in float32, ONNX Runtime without optimizations; an error is the largest difference over the largest number of
the output. Node tests that hold no floats of float32 or float64 have no gradient and are not counted. Gradients in
float64 are held to central differences along a random direction.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.gradients.beside import trained
from bench.gradients.node import UnsupportedError
from bench.gradients.torch_graph import Array, Graph, gradients
from bench.peers import OURS
from bench.script import main
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from models import families

ISSUE = 23
MOST = 1e-5  # relative error of an output; float32 beside float32
# Integers, tables and casts to eight bits: no float model of the zoo.
NOT_FLOAT = ("bert_small_dynquant", "resnet18_qdq", "resnet18_fp16", "masked_encoder_fp16")
# ONNX's evaluator divides by a length that is no whole number; ONNX Runtime and torch by the result's dim, as here.
OTHERWISE = ("test_resize_downsample_scales_cubic_align_corners", "test_resize_downsample_scales_linear_align_corners")
# Without ReLUs and pools, whose kinks a difference would step over.
DIFFERENTIATED = ("masked_encoder", "cached_decoder", "diffusion_unet", "lstm_bi_op", "gru_op")
STEP = 1e-6  # of a difference: its error is of the order of the square
QUICK = ("mlp_tiny", "squeezenet1_1", "lstm_bi_op", "gru_op", "diffusion_unet")


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """The zoo's float models and ONNX's node tests, evaluated by torch."""
    names = QUICK if quick else tuple(one for one in (*models.names(), *families.names()) if one not in NOT_FLOAT)
    rows = [(name, _model_error(name)) for name in names]
    sheet.table("torch beside ONNX Runtime", ("model", "error"), [(name, f"{error:.1e}") for name, error in rows])
    outcomes = dict(node_outcomes(1 if not quick else 10))
    kinds = Counter(outcome.partition(":")[0] for outcome in outcomes.values())
    sheet.table("torch on node tests", ("outcome", "tests"), sorted(kinds.items()))
    lacking = Counter(outcome for outcome in outcomes.values() if outcome.startswith("lacks"))
    sheet.table("what the oracle lacks", ("form", "tests"), sorted(lacking.items()))
    rest = [(name, one) for name, one in outcomes.items() if one.startswith(("differs", "fault"))]
    sheet.table("node tests that differ", ("test", "outcome"), rest)
    slopes = [(name, difference_error(name)) for name in DIFFERENTIATED]
    sheet.table("gradients beside differences", ("model", "error"), [(name, f"{one:.1e}") for name, one in slopes])
    worst, steepest = max(error for _, error in rows), max(error for _, error in slopes)
    figure = f"{worst:.1e} on {len(rows)} models; {kinds['right']} node tests right, {len(rest)} differ; "
    figure += f"gradients {steepest:.1e} from differences"
    met = worst <= MOST and not rest and steepest <= MOST
    return [Bar(ISSUE, 9, "oracle: torch's forward beside ONNX Runtime", f"<= {MOST:g}, none differ", figure, met)]


def _model_and_feed(name: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    family = name in families.names()
    model = families.build(name) if family else models.load(name)
    sizes = families.sizes(name) if family else models.sizes(name)
    return model, dict(make_feed(inputs_of(graphopt.load(model)), sizes, "normal"))


def _model_error(name: str) -> float:
    model, feed = _model_and_feed(name)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        values = Graph(model, torch.float32).evaluate(feed)
    names = [port.name for port in model.graph.output]
    return max(error(values[one].numpy(), want) for one, want in zip(names, session.run(names, feed), strict=True))


def difference_error(name: str) -> float:
    """How far the slope along a random direction of all weights is from a central difference, relative to it."""
    model, feed = _model_and_feed(name)
    names = trained(model)
    generator = np.random.default_rng(ISSUE)
    given = Graph(model).initializers
    way = {one: generator.standard_normal(tuple(given[one].shape)) for one in names}
    output = model.graph.output[0].name

    def moved(step: float) -> float:
        with torch.no_grad():
            values = Graph(model).evaluate({**feed, **{one: given[one].numpy() + step * way[one] for one in names}})
        return float((values[output] ** 2).sum())

    _, found = gradients(model, feed, names, loss=lambda values: (values[output] ** 2).sum())
    slope = sum(float((found[one] * way[one]).sum()) for one in found)
    difference = (moved(STEP) - moved(-STEP)) / (2 * STEP)
    return abs(slope - difference) / abs(difference)


def error(found: Array, wanted: Array) -> float:
    """The largest difference over the largest finite number that is wanted; infinite where dims or NaN differ."""
    if found.shape != wanted.shape:
        return float("inf")
    if not wanted.size:
        return 0.0
    wide, want = found.astype(np.float64), wanted.astype(np.float64)
    same = (wide == want) | (np.isnan(wide) & np.isnan(want))
    if same.all():
        return 0.0
    scale = np.abs(want[np.isfinite(want)]).max(initial=0.0) or 1.0
    largest = float(np.where(same, 0.0, np.abs(wide - want)).max() / scale)
    return float("inf") if np.isnan(largest) else largest


def node_outcomes(step: int) -> Iterator[tuple[str, str]]:
    """Every `step`-th node test that counts, and what became of it: right, lacks, differs or fault, with the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests overflow on purpose
        cases: list[Any] = sorted(load_model_tests(kind="node"), key=lambda case: case.name)
    for case in cases[::step]:
        if case.name in OTHERWISE or not _counts(case.model):
            continue
        for inputs, outputs in case.data_sets:
            ports = [port.name for port in case.model.graph.input]
            feed = dict(zip(ports, map(_array, inputs), strict=False))
            yield case.name, _outcome(case, feed, [_array(one) for one in outputs])


def _outcome(case: Any, feed: Mapping[str, Array], wanted: Sequence[Array]) -> str:
    dtype = torch.float64 if any(one.dtype == np.float64 for one in feed.values()) else torch.float32
    try:
        with torch.no_grad():
            values = Graph(case.model, dtype).evaluate(feed)
        found = [values[port.name].numpy() for port in case.model.graph.output]
    except UnsupportedError as reason:
        return f"lacks: {reason}"
    except Exception as reason:  # torch's errors share no base class with ours
        return f"fault: {type(reason).__name__} {str(reason)[:80]}"
    for one, want in zip(found, wanted, strict=True):
        if one.shape != want.shape:
            return f"differs: dims {one.shape}, not {want.shape}"
        if not np.allclose(one.astype(np.float64), want.astype(np.float64), case.rtol, max(case.atol, 1e-6), True):
            return f"differs: {error(one, want):.1e}"
    return "right"


def _counts(model: onnx.ModelProto) -> bool:
    """Whether all ports are tensors, none of text or short floats, and some float comes in and goes out."""
    if any(one.domain not in ("", "ai.onnx") for one in model.opset_import):
        return False
    kinds = []
    for ports in (model.graph.input, model.graph.output):
        if any(not port.type.HasField("tensor_type") for port in ports):
            return False
        kinds.append({port.type.tensor_type.elem_type for port in ports})
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}
    plain = floats | {onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL}
    return all(found & floats and found <= plain for found in kinds)


def _array(value: Any) -> Array:
    array: Array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return array


if __name__ == "__main__":
    main(measure)
