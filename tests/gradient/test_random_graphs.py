"""Gradients of graphs that hypothesis draws, in float64 against central differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, helper

from tests.gradient.differences import agree

UNARY = ("Tanh", "Sigmoid", "Sin", "Cos", "Atan", "Softplus", "Relu", "Abs", "Neg", "Identity", "LeakyRelu", "Elu")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp", "ReduceSumSquare")
MOVES = ("Transpose", "Reshape", "Slice", "Concat", "Gather", "Pad")
Value = tuple[str, tuple[int, ...]]


class Graph:
    """Grows node by node; no element becomes large, so that differences stay exact."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 10_000)))
        self.nodes: list[NodeProto] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.values: list[Value] = []
        self.read: set[str] = set()

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.uniform(-0.9, 0.9, shape))

    def constant(self, array: np.ndarray) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        return name

    def node(self, op_type: str, operands: list[str], shape: tuple[int, ...], **attributes: object) -> Value:
        name = f"{op_type}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, operands, [name], name=f"n{name}", **attributes))  # type: ignore[arg-type]
        self.read.update(operands)
        self.values.append((name, shape))
        return self.values[-1]

    def pick(self) -> Value:
        return self.draw(st.sampled_from(self.values))

    def axis(self, shape: tuple[int, ...]) -> int:
        return self.draw(st.integers(0, len(shape) - 1))


def _unary(graph: Graph) -> None:
    name, shape = graph.pick()
    graph.node(graph.draw(st.sampled_from(UNARY)), [name], shape)


def _binary(graph: Graph) -> None:
    """With a value of the same dims, or with a weight along the last axes; the product with something below 1."""
    name, shape = graph.pick()
    op_type = graph.draw(st.sampled_from(("Add", "Sub", "Mul", "Max", "Min", "Div")))
    others = [] if op_type == "Div" else [other for other, its in graph.values if its == shape]
    other = graph.draw(st.sampled_from([*others, None]))
    if other is None:
        sizes = [1 if graph.draw(st.booleans()) else size for size in shape[graph.axis(shape) :]]
        other = graph.constant(graph.rng.uniform(0.5, 1.5, sizes))
    elif op_type == "Mul":
        other = graph.node("Tanh", [other], shape)[0]
    graph.node(op_type, [name, other], shape)


def _product(graph: Graph) -> None:
    name, shape = graph.pick()
    size = graph.draw(st.integers(1, 3))
    graph.node("MatMul", [name, graph.weight(shape[-1], size)], (*shape[:-1], size))


def _square(graph: Graph) -> None:
    """A product of a value with itself turned."""
    name, shape = graph.pick()
    if len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        small = graph.node("Tanh", [name], shape)[0]
        turned = graph.node("Transpose", [small], tuple(shape[at] for at in order), perm=order)[0]
        graph.node("MatMul", [small, turned], (*shape[:-1], shape[-2]))


def _normal(graph: Graph) -> None:
    name, shape = graph.pick()
    if graph.draw(st.booleans()):
        graph.node("Softmax", [name], shape, axis=graph.axis(shape))
    else:
        graph.node("LayerNormalization", [name, graph.weight(shape[-1])], shape, axis=-1, epsilon=0.1)


def _reduced(graph: Graph) -> None:
    name, shape = graph.pick()
    op_type = graph.draw(
        st.sampled_from(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp", "ReduceSumSquare"))
    )
    if len(shape) > 1:
        axis = graph.axis(shape)
        small = graph.node("Tanh", [name], shape)[0]
        axes = graph.constant(np.array([axis], np.int64))
        graph.node(op_type, [small, axes], (*shape[:axis], *shape[axis + 1 :]), keepdims=0)


def _moved(graph: Graph) -> None:
    name, shape = graph.pick()
    kind, axis = (
        graph.draw(st.sampled_from(("Transpose", "Reshape", "Slice", "Concat", "Gather", "Pad"))),
        graph.axis(shape),
    )
    behind = shape[axis + 1 :]
    if kind == "Transpose":
        order = graph.draw(st.permutations(range(len(shape))))
        graph.node(kind, [name], tuple(shape[at] for at in order), perm=order)
    elif kind == "Reshape":
        sizes = (int(np.prod(shape[: axis + 1])), *behind)
        graph.node(kind, [name, graph.constant(np.array(sizes, np.int64))], sizes)
    elif kind == "Slice" and shape[axis] > 1:
        bounds = [graph.constant(np.array([number], np.int64)) for number in (1, shape[axis], axis)]
        graph.node(kind, [name, *bounds], (*shape[:axis], shape[axis] - 1, *behind))
    elif kind == "Concat":
        other = graph.weight(*shape)
        graph.node(kind, [name, other, name], (*shape[:axis], 3 * shape[axis], *behind), axis=axis)
    elif kind == "Gather":
        places = graph.rng.integers(0, shape[axis], 2)
        graph.node(kind, [name, graph.constant(places)], (*shape[:axis], 2, *behind), axis=axis)
    elif kind == "Pad":
        pads = np.zeros(2 * len(shape), np.int64)
        pads[axis] = 1
        graph.node(kind, [name, graph.constant(pads)], (*shape[:axis], shape[axis] + 1, *behind))


STEPS: tuple[Callable[[Graph], None], ...] = (_unary, _binary, _product, _square, _normal, _reduced, _moved)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_gradients_of_random_graphs_are_those_of_central_differences(data: st.DataObject) -> None:
    graph = Graph(data.draw)
    for shape in ((2, 3), (2, 1, 3)):
        graph.values.append((graph.weight(*shape), shape))
    for _ in range(data.draw(st.integers(2, 7))):
        step = data.draw(st.sampled_from(STEPS))
        if sum(int(np.prod(shape)) for _, shape in graph.values) < 400:
            step(graph)
    ends = [name for name, _ in graph.values if name not in graph.read and name not in graph.inputs]
    wanted = [name for name, array in graph.inputs.items() if array.dtype == np.float64 and name in graph.read]
    if ends:
        agree(graph.nodes, graph.inputs, ends, wanted, 18)
