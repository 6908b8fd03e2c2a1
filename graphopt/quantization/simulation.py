"""What quantizing one node, or some, changes at the outputs: the model in float32 with a switch at every candidate.

    y = Relu(Conv(x, w))  -->  y = If(on, round(Relu(Conv(If(on, round(x), x), w))), Relu(Conv(...)))

`round` is a QuantizeLinear and a DequantizeLinear, by a scale that is an input or by that of DynamicQuantizeLinear;
rounded weights are given with a run in the place of the others. One session measures every choice so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from graphopt.check.feeds import Feed
from graphopt.quantization.apply import Ranges, quantized
from graphopt.quantization.calibration import scale_of
from graphopt.quantization.errors import Array, Error, error_of
from graphopt.quantization.formats import BITS, Candidate, Choice, Form
from graphopt.quantization.graph import Graph, array_of, output_axis

LEVELS = 127  # of weights of int8 on either side of zero


class Simulation:
    """A model that rounds what a run asks for."""

    def __init__(
        self, proto: onnx.ModelProto, candidates: Sequence[Candidate], ranges: Ranges, feeds: Sequence[Feed]
    ) -> None:
        self._graph, self._ranges, self._feeds = Graph(proto), ranges, feeds
        self._candidates = {one.name: one for one in candidates}
        self._rounded: dict[tuple[str, Form], Array] = {}
        self._session = session_of(with_switches(proto, candidates))
        self._outputs = [one.name for one in proto.graph.output]
        self._wanted = self._runs({})

    def error(self, choice: Choice) -> Error:
        """The error of a model with these nodes quantized, over all feeds."""
        given: dict[str, Array] = {}
        for name, form in choice.items():
            given |= self._switched(self._candidates[name], form)
        return error_of(self._wanted, self._runs(given))

    def _runs(self, given: Mapping[str, Array]) -> list[list[Array]]:
        return [self._session.run(self._outputs, {**feed, **given}) for feed in self._feeds]

    def _switched(self, one: Candidate, form: Form) -> dict[str, Array]:
        key = (one.name, form if form.ranges is None else Form(form.format))
        if key not in self._rounded:
            self._rounded[key] = self._weights(one, form)
        given: dict[str, Array] = {switch(one, "weights"): self._rounded[key]}
        if form.format == "dynamic":
            given |= {switch(one, "on"): np.array(True), switch(one, "own"): np.array(True)}
        elif form.ranges is not None:
            for tensor, what in ((one.x, ""), (one.y, "result ")):
                scale = scale_of(self._ranges[form.ranges], tensor)
                if scale is not None:
                    given |= {switch(one, f"{what}scale"): scale[0], switch(one, f"{what}zero"): scale[1]}
                    given[switch(one, f"{what}on")] = np.array(True)
        return given

    def _weights(self, one: Candidate, form: Form) -> Array:
        """The weights as a node of this form multiplies by them."""
        weights = array_of(self._graph.weights[one.weights])
        if form.format in BITS:
            return _as_multiplied(self._graph, one, form)
        axis = output_axis(self._graph, one)
        others = tuple(place for place in range(weights.ndim) if place != axis)
        scale = np.abs(weights).max(others, keepdims=True) / LEVELS
        scale[scale == 0] = 1
        return np.asarray(np.clip(np.round(weights / scale), -LEVELS, LEVELS) * scale, np.float32)


def _as_multiplied(graph: Graph, one: Candidate, form: Form) -> Array:
    """Weights in blocks, by what the quantized node makes of an identity."""
    node = next(each for each in graph.readers[one.weights] if each.name == one.name)
    weights = array_of(graph.weights[one.weights])
    turned = output_axis(graph, one) == 0
    depth = weights.shape[1 if turned else 0]
    product = helper.make_node(node.op_type, ["x", "w"], ["y"], one.name)
    product.attribute.extend(each for each in node.attribute if each.name == "transB")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    body = helper.make_graph([product], "product", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(body, opset_imports=graph.proto.opset_import, ir_version=graph.proto.ir_version)
    alone = Candidate(one.name, one.op_type, "x", "w", "y", None, one.formats)
    session = session_of(quantized(model, [alone], {one.name: form}, {}))
    found = np.asarray(session.run(None, {"x": np.eye(depth, dtype=np.float32)})[0])
    return np.ascontiguousarray(found.T) if turned else found


def switch(one: Candidate, what: str) -> str:
    """The name of an input that says what becomes of a candidate."""
    return f"{one.name}:{what}"


def session_of(proto: onnx.ModelProto, *, optimized: bool = True, threads: int = 0) -> ort.InferenceSession:
    """A session of ONNX Runtime's CPU provider, with all of its optimizations or none."""
    options, levels = ort.SessionOptions(), ort.GraphOptimizationLevel
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # what fails is raised
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def with_switches(proto: onnx.ModelProto, candidates: Sequence[Candidate]) -> onnx.ModelProto:
    """A copy with inputs, all of which have defaults, that say what of each candidate is rounded."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    graph = made.graph
    nodes = {node.name: node for node in graph.node}
    weights = {one.name: one for one in graph.initializer}
    before: dict[str, list[onnx.NodeProto]] = {}
    behind: dict[str, list[onnx.NodeProto]] = {}

    def given(one: Candidate, what: str, value: Array) -> str:
        graph.initializer.append(numpy_helper.from_array(value, switch(one, what)))
        kind, dims = graph.initializer[-1].data_type, value.shape
        graph.input.append(helper.make_tensor_value_info(switch(one, what), kind, dims))
        return switch(one, what)

    def parts(one: Candidate, what: str) -> tuple[str, str, str]:
        scale, zero = np.array(1, np.float32), np.array(0, np.uint8)
        return tuple(
            given(one, f"{what}{name}", value)
            for name, value in (("on", np.array(False)), ("scale", scale), ("zero", zero))
        )  # type: ignore[return-value]

    for one in candidates:
        node, last = nodes[one.name], nodes[one.tail or one.name]
        node.input[1] = given(one, "weights", array_of(weights[one.weights]))
        if "static" not in one.formats and "dynamic" not in one.formats:
            continue
        on, scale, zero = parts(one, "")
        own = given(one, "own", np.array(False))
        node.input[0] = switch(one, "x")
        before[one.name] = [_rounding(one.x, node.input[0], on, scale, zero, own)]
        if "static" in one.formats:
            last.output[0] = switch(one, "y")
            behind[last.name] = [_rounding(last.output[0], one.y, *parts(one, "result "), None)]
    in_order = [each for node in graph.node for each in (*before.get(node.name, ()), node, *behind.get(node.name, ()))]
    del graph.node[:]
    graph.node.extend(in_order)
    read = {name for node in graph.node for name in node.input}
    for weight in [one for one in graph.initializer if one.name in weights and one.name not in read | _inner(graph)]:
        graph.initializer.remove(weight)
    return made


def _inner(graph: onnx.GraphProto) -> set[str]:
    """Names that subgraphs, or the outputs, read."""
    found = {one.name for one in graph.output}
    for node in graph.node:
        for one in node.attribute:
            if one.type == onnx.AttributeProto.GRAPH:
                found |= {name for inner in one.g.node for name in inner.input} | _inner(one.g)
    return found


def _rounding(x: str, y: str, on: str, scale: str, zero: str, own: str | None) -> onnx.NodeProto:
    """y = x, or x through bytes where `on`; by a scale of its own where `own`."""
    nodes = []
    if own is not None:
        nodes = [
            helper.make_node("DynamicQuantizeLinear", [x], [f"{y}:bytes", f"{y}:scale", f"{y}:zero"]),
            helper.make_node("Where", [own, f"{y}:scale", scale], [f"{y}:used scale"]),
            helper.make_node("Cast", [f"{y}:zero"], [f"{y}:zero as int"], to=TensorProto.INT32),
            helper.make_node("Cast", [zero], [f"{y}:given as int"], to=TensorProto.INT32),
            helper.make_node("Where", [own, f"{y}:zero as int", f"{y}:given as int"], [f"{y}:used as int"]),
            helper.make_node("Cast", [f"{y}:used as int"], [f"{y}:used zero"], to=TensorProto.UINT8),
        ]
        scale, zero = f"{y}:used scale", f"{y}:used zero"
    rounded = [
        *nodes,
        helper.make_node("QuantizeLinear", [x, scale, zero], [f"{y}:rounded"]),
        helper.make_node("DequantizeLinear", [f"{y}:rounded", scale, zero], [f"{y}:then"]),
    ]
    kept = [helper.make_node("Identity", [x], [f"{y}:else"])]
    branches = {
        name: helper.make_graph(body, name, [], [helper.make_tensor_value_info(end, TensorProto.FLOAT, None)])
        for name, body, end in (("then", rounded, f"{y}:then"), ("else", kept, f"{y}:else"))
    }
    return helper.make_node("If", [on], [y], then_branch=branches["then"], else_branch=branches["else"])
