"""Gradients by central differences in float64, with ONNX Runtime or ONNX's evaluator: nothing of ours computes here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from graphopt.gradient.differentiate import LossRequest, add_outputs, differentiate
from graphopt.model.load import load
from graphopt.model.nodes import remove_unused
from graphopt.model.save import to_proto

# A central difference is wrong by the square of its step, and by the rounding of the loss through it.
STEPS = {np.dtype(np.float64): (1e-5, 1e-6), np.dtype(np.float32): (1e-2, 1e-3)}  # step, and error allowed
Arrays = Mapping[str, np.ndarray]


def weighted(
    nodes: list[onnx.NodeProto], inputs: Arrays, results: list[str], wanted: list[str], opset: int,
    runnable: Callable[[onnx.ModelProto], onnx.ModelProto] = lambda model: model,
) -> onnx.ModelProto:  # fmt: skip
    """A model whose output `loss` is the sum of all elements of results, each times a weight of its own.

    What no gradient is taken to is a constant of the model. `runnable` makes a model one that the evaluators run.
    """
    kind = np.dtype(np.float32 if any(array.dtype == np.float32 for array in inputs.values()) else np.float64)
    graph = helper.make_graph(
        nodes, "g", [_port(name, array) for name, array in inputs.items() if name in wanted],
        [helper.make_tensor_value_info("loss", helper.np_dtype_to_tensor_dtype(kind), [])],
    )  # fmt: skip
    for name, array in inputs.items():
        if name not in wanted:
            graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    rng = np.random.default_rng(7)
    domains = {node.domain for node in nodes} - {""}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    plain = onnx.ModelProto.FromString(model.SerializeToString())
    plain.graph.output.pop()
    plain.graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
    made = runner(runnable(plain))(results, _fed(plain, inputs))
    totals = []
    for number, array in enumerate(made):
        weights = rng.uniform(0.5, 1.5, np.asarray(array).shape) * rng.choice([-1, 1], np.asarray(array).shape)
        graph.initializer.append(onnx.numpy_helper.from_array(weights.astype(kind), f"weights{number}"))
        graph.node.append(helper.make_node("Mul", [results[number], f"weights{number}"], [f"weighted{number}"]))
        graph.node.append(helper.make_node("ReduceSum", [f"weighted{number}"], [f"total{number}"], keepdims=0))
        totals.append(f"total{number}")
    graph.node.append(helper.make_node("Sum", totals, ["loss"]))
    model.graph.CopyFrom(graph)
    return model


def _fed(model: onnx.ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """What a run gives; other inputs have defaults."""
    return {value.name: inputs[value.name] for value in model.graph.input if value.name in inputs}


def _port(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def runner(model: onnx.ModelProto) -> Callable[[Sequence[str], Arrays], Sequence[np.ndarray]]:
    """ONNX Runtime, or ONNX's reference evaluator where that has no float64 for an operator."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return lambda names, feeds: ReferenceEvaluator(model).run(list(names), dict(feeds))
    return lambda names, feeds: session.run(list(names), dict(feeds))


def analytic(model: onnx.ModelProto, inputs: Arrays, wanted: list[str]) -> dict[str, np.ndarray]:
    """The gradients of `loss` by the model that we write, which the strict checker has passed."""
    work = load(model)
    done = differentiate(work, LossRequest("loss"), wanted)
    names = add_outputs(done)
    remove_unused(work.graph)
    proto = to_proto(work)
    onnx.checker.check_model(proto, full_check=True)
    found = runner(proto)([names[name] for name in wanted], _fed(model, inputs))
    return dict(zip(wanted, found, strict=True))


def numeric(model: onnx.ModelProto, inputs: Arrays, name: str) -> np.ndarray:
    """The gradient of `loss` to one input, element by element."""
    run = runner(model)
    base = inputs[name]
    width, _ = STEPS[base.dtype]
    found = np.zeros_like(base)
    for place in np.ndindex(base.shape):
        sides = []
        for step in (width, -width):
            moved = base.copy()
            moved[place] += step
            sides.append(float(run(["loss"], {**_fed(model, inputs), name: moved})[0]))
        found[place] = (sides[0] - sides[1]) / (2 * width)
    return found


def agree(nodes: list[onnx.NodeProto], inputs: Arrays, results: list[str], wanted: list[str], opset: int) -> None:
    """Compare the gradients with central differences, as exactly as these are of the largest element.

    Operators that neither evaluator computes in float64 are compared in float32.
    """
    model = weighted(nodes, inputs, results, wanted, opset)
    found = analytic(model, inputs, wanted)
    for name in wanted:
        expected = numeric(model, inputs, name)
        assert found[name].shape == expected.shape, name
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=STEPS[expected.dtype][1] * scale, err_msg=name)
