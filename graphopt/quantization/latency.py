"""How long a node, or a model, takes in an engine: readings by turns, medians; and nodes as models of their own.

One thread: CPU time of this thread, which neighbours on the machine disturb less than the clock on the wall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
import onnx
from onnx import TensorProto, helper

from graphopt.check.feeds import Feed
from graphopt.quantization.apply import Ranges, quantized
from graphopt.quantization.formats import Candidate, Form
from graphopt.quantization.graph import CARRIERS, Graph
from graphopt.quantization.simulation import session_of

Engine = Literal["onnxruntime", "program"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
Call = Callable[[], object]
READING = 3e-3  # seconds of one reading, at least
ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Timed:
    """A model, and a feed to run it on."""

    proto: onnx.ModelProto
    feed: Feed


class Latency(Protocol):
    """Seconds that a run of each model takes, all measured by turns."""

    def __call__(self, models: Sequence[Timed]) -> list[list[float]]:
        """Readings of each, round by round."""
        ...


def readings(calls: Sequence[Call], threads: int = 1) -> list[list[float]]:
    """Seconds of a call of each, a reading a round, by turns."""
    clock = time.thread_time if threads == 1 else time.perf_counter

    def seconds(call: Call, repeats: int) -> float:
        started = clock()
        for _ in range(repeats):
            call()
        return (clock() - started) / repeats

    repeats = []
    for call in calls:
        call()
        repeats.append(max(1, int(READING / max(seconds(call, 2), 1e-7))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for place, call in enumerate(calls):
            found[place].append(seconds(call, repeats[place]))
    return found


class InOnnxRuntime:
    """Latency in ONNX Runtime with all of its optimizations."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def __call__(self, models: Sequence[Timed]) -> list[list[float]]:
        """Readings of each, round by round."""
        return readings([_bound(one, self._threads) for one in models], self._threads)


def _bound(one: Timed, threads: int) -> Call:
    session = session_of(one.proto, threads=threads)
    feed = dict(one.feed)
    return lambda: session.run(None, feed)


@dataclass(frozen=True, slots=True)
class Alone:
    """A node and the bounds behind it, cut out; whether what is around it would give and take bytes."""

    proto: onnx.ModelProto
    candidate: Candidate
    dims: tuple[int, ...]  # of its operand
    takes_bytes: bool
    gives_bytes: bool
    key: tuple[object, ...]  # equal for nodes of equal work

    def in_float(self) -> Timed:
        """The node as it is."""
        return Timed(self.proto, {self.candidate.x: _drawn(self.dims)})

    def in_form(self, form: Form, ranges: Ranges) -> Timed:
        """The node in a form; of a static one what its neighbours do is taken away."""
        made = quantized(self.proto, [self.candidate], {self.candidate.name: form}, ranges)
        feed: Feed = {self.candidate.x: _drawn(self.dims)}
        if form.format == "static":
            if self.takes_bytes:
                feed = {_without_first(made, self.candidate.x, self.dims): np.zeros(self.dims, np.uint8)}
            if self.gives_bytes:
                _without_last(made, self.candidate.y)
        return Timed(made, feed)


def _drawn(dims: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(dims).astype(np.float32)


def alone(
    graph: Graph, one: Candidate, candidates: Sequence[Candidate], dims: Mapping[str, tuple[int, ...]]
) -> Alone | None:
    """A candidate as a model of its own; None where the dims of its operand are not known."""
    if one.x not in dims:
        return None
    names = (one.name, one.tail)
    nodes = [node for node in graph.proto.graph.node if node.name in names]
    held = [graph.weights[name] for name in dict.fromkeys(n for node in nodes for n in node.input[0:] if n != one.x)
            if name in graph.weights]  # fmt: skip
    ends = [helper.make_tensor_value_info(one.x, TensorProto.FLOAT, dims[one.x]),
            helper.make_tensor_value_info(one.y, TensorProto.FLOAT, dims.get(one.y))]  # fmt: skip
    body = helper.make_graph(nodes, "alone", ends[:1], ends[1:], held)
    proto = helper.make_model(body, opset_imports=graph.proto.opset_import, ir_version=graph.proto.ir_version)
    inferred = onnx.shape_inference.infer_shapes(proto)
    static = {name for each in candidates if "static" in each.formats for name in (each.name, each.tail) if name}
    takes = _gives_bytes(graph, one.x, static)
    readers = graph.readers.get(one.y, [])
    gives = bool(readers) and one.y not in graph.kept and all(
        each.name in static or each.op_type in CARRIERS for each in readers
    )  # fmt: skip
    attributes = tuple(each.SerializeToString(deterministic=True) for node in nodes for each in node.attribute)
    work = (tuple(node.op_type for node in nodes), attributes, tuple(tuple(each.dims) for each in held))
    return Alone(inferred, one, dims[one.x], takes, gives, (*work, dims[one.x], takes, gives))


def _gives_bytes(graph: Graph, name: str, static: set[str]) -> bool:
    """Whether a tensor comes from a node that may be static, through any that compute in bytes between."""
    producer = graph.producer.get(name)
    while producer is not None and producer.name not in static and producer.op_type in CARRIERS:
        producer = graph.producer.get(producer.input[0])
    return producer is not None and producer.name in static


def _without_first(proto: onnx.ModelProto, x: str, dims: Sequence[int]) -> str:
    """Let a model take bytes in the place of floats; returns the name of its input then."""
    graph = proto.graph
    node = next(one for one in graph.node if one.op_type == "QuantizeLinear" and one.input[0] == x)
    name: str = node.output[0]
    graph.node.remove(node)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info(name, TensorProto.UINT8, dims))
    return name


def _without_last(proto: onnx.ModelProto, y: str) -> None:
    """Let a model give bytes in the place of floats."""
    graph = proto.graph
    node = next(one for one in graph.node if y in one.output)
    if node.op_type == "DequantizeLinear":
        graph.node.remove(node)
        del graph.output[:]
        graph.output.append(helper.make_tensor_value_info(node.input[0], TensorProto.UINT8, None))
