"""An InstanceNormalization whose operand is made again for each of its passes, so that none needs all of it at once.

    conv -> InstanceNormalization  -->  conv -> mean of windows -> mean
                                        conv -> minus the mean -> squares -> mean of windows -> variance
                                        conv -> minus the mean -> times the factor -> plus the bias

Every pass goes through tiles along the last axis, and what the first two join is small: a mean for each of some windows
of that axis, the last of which is filled up with zeros. That is done where the operand is large, and made again from
what the caller gave in little time, as by the first convolution of a network for speech. Sums are in another order, so
that this is for programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod

import numpy as np
import onnx_ir as ir

from graphopt.memory.tensors import ModelMemory
from graphopt.memory.tiling.names import names_of, new_name
from graphopt.model import constants, nodes
from graphopt.model.facts import Facts

MOST_TIME = 0.15  # of the whole model's time, for what makes operands again, twice
MOST_MAKERS = 4
LARGE = 0.4  # of the budget: an operand that is as large is in the way


def with_statistics_apart(model: ir.Model, memory: ModelMemory, budget: int) -> ir.Model:
    """A copy of `model` with such normalizations in passes; the same model where it has none."""
    whole = sum(one.time for one in memory.graph.operators)
    times = {memory.nodes[one.name]: one.time for one in memory.graph.operators}
    facts = Facts(model)
    chosen: dict[ir.Node, list[ir.Node]] = {}
    for node in model.graph:
        makers = _makers(facts, node, budget)
        if makers and 2 * sum(times.get(one, 0.0) for one in makers) <= MOST_TIME * whole:
            chosen[node] = makers
    if not chosen:
        return model
    copy, names = model.clone(), names_of(model)
    there = dict(zip(model.graph, copy.graph, strict=True))
    for node, makers in chosen.items():
        _Passes(copy, Facts(copy), there[node], [there[one] for one in makers], names).write()
    return copy


def _makers(facts: Facts, node: ir.Node, budget: int) -> list[ir.Node]:
    """The nodes that make the operand of such a normalization, in their order; empty where it is none."""
    if node.op_type != "InstanceNormalization" or node.domain or node.inputs[0] is None:
        return []
    x = node.inputs[0]
    shape, dtype = facts.static_shape(x), facts.dtype(x)
    parameters = [None if value is None else constants.of_initializer(value) for value in node.inputs[1:3]]
    if shape is None or dtype != ir.DataType.FLOAT or len(shape) != 3 or None in parameters:
        return []
    if prod(shape) * dtype.itemsize < LARGE * budget:
        return []
    found: list[ir.Node] = []
    maker = x.producer()
    while maker is not None:
        made = [value for value in maker.inputs if value is not None and value.producer() is not None]
        if len(found) == MOST_MAKERS or len(made) > 1 or nodes.has_subgraphs(maker) or not facts.is_pure(maker):
            return []
        found.insert(0, maker)
        maker = made[0].producer() if made else None
    return found


class _Passes:
    def __init__(
        self, model: ir.Model, facts: Facts, node: ir.Node, makers: Sequence[ir.Node], names: set[str]
    ) -> None:
        self._graph, self._node, self._makers, self._names = model.graph, node, makers, names
        shape = facts.static_shape(makers[-1].outputs[0])
        assert shape is not None, "it was looked at"
        self._channels, self._length = shape[1], shape[2]

    def write(self) -> None:
        output = self._node.outputs[0]
        factor, bias = (constants.of_initializer(value) for value in self._node.inputs[1:3] if value is not None)
        assert factor is not None and bias is not None, "they were looked at"
        mean = self._mean(self._operand())
        apart = self._add("Sub", [self._operand(), mean])
        variance = self._mean(self._add("Mul", [apart, apart]))
        epsilon = nodes.float_attribute(self._node, "epsilon", 1e-5)
        deviation = self._add("Sqrt", [self._add("Add", [variance, self._constant(np.float32(epsilon))])])
        times = self._add("Div", [self._constant(_column(factor)), deviation])
        scaled = self._add("Mul", [self._add("Sub", [self._operand(), mean]), times])
        result = self._add("Add", [scaled, self._constant(_column(bias))])
        result.shape = output.shape
        ir.convenience.replace_all_uses_with([output], [result], replace_graph_outputs=True)
        result.name, output.name = output.name, None
        self._graph.remove(self._node, safe=True)
        for maker in reversed(self._makers):
            if not nodes.used_outputs(maker):
                self._graph.remove(maker, safe=True)

    def _operand(self) -> ir.Value:
        """What was normalized, made again."""
        made: dict[ir.Value, ir.Value] = {}
        for maker in self._makers:
            inputs = [None if one is None else made.get(one, one) for one in maker.inputs]
            again = ir.Node(
                maker.domain, maker.op_type, inputs, list(maker.attributes.values()), overload=maker.overload,
                num_outputs=len(maker.outputs), name=new_name(maker.name or maker.op_type, self._names),
                metadata_props={**maker.metadata_props, nodes.RECOMPUTED: maker.name or maker.op_type},
            )  # fmt: skip
            for mine, theirs in zip(again.outputs, maker.outputs, strict=True):
                mine.name = new_name(theirs.name, self._names) if theirs.name else ""
                mine.type, mine.shape = theirs.type, theirs.shape
                made[theirs] = mine
            self._graph.insert_before(self._node, again)
        return made[self._makers[-1].outputs[0]]

    def _mean(self, value: ir.Value) -> ir.Value:
        """Along the last axis, from those of windows."""
        window = isqrt(self._length)
        count = -(-self._length // window)
        filled = count * window
        attributes = [
            ir.AttrInt64s("kernel_shape", [window]), ir.AttrInt64s("strides", [window]),
            ir.AttrInt64s("pads", [0, filled - self._length]), ir.AttrInt64("count_include_pad", 1),
        ]  # fmt: skip
        windows = self._add("AveragePool", [value], attributes)
        mean = self._add("GlobalAveragePool", [windows])
        return self._add("Mul", [mean, self._constant(np.float32(filled / self._length))])

    def _add(self, operator: str, inputs: Sequence[ir.Value], attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        name = new_name(f"{self._node.outputs[0].name}_{operator.lower()}", self._names)
        node = ir.Node("", operator, list(inputs), list(attributes), name=name)
        node.outputs[0].name, node.outputs[0].type = name, ir.TensorType(ir.DataType.FLOAT)
        self._graph.insert_before(self._node, node)
        return node.outputs[0]

    def _constant(self, array: np.ndarray | np.float32) -> ir.Value:
        name = new_name(f"{self._node.outputs[0].name}_number", self._names)
        held = ir.Tensor(np.asarray(array, np.float32), name=name)
        value = ir.Value(name=name, shape=held.shape, type=ir.TensorType(held.dtype), const_value=held)
        self._graph.register_initializer(value)
        return value


def _column(tensor: ir.TensorProtocol) -> np.ndarray:
    """A number for each channel, as it is broadcast along the last axis."""
    return np.asarray(tensor.numpy(), np.float32).reshape(1, -1, 1)
