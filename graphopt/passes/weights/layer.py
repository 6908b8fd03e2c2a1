"""Reading a linear layer with constant weights: Conv, ConvTranspose, Gemm or MatMul, its channels and its bias."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.constants import Array
from graphopt.passes.operands import FLOATS
from graphopt.rewrite.rule import Match

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Gemm takes integers too since opset 9, but ONNX Runtime has no kernel for them, while it has one for MatMul.
GEMM_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


@dataclass(frozen=True, slots=True)
class Layer:
    """One linear operator with a constant weight, with the Add of a constant that is a MatMul's bias."""

    node: ir.Node
    weight: ir.Value
    shape: tuple[int, ...]  # of the weight
    side: int  # which input the weight is: 0 for MatMul(W, x), else 1
    added: ir.Node | None  # the Add behind a MatMul
    bias: ir.Value | None
    group: int

    @property
    def kind(self) -> str:
        """The operator type."""
        return self.node.op_type

    @property
    def is_convolution(self) -> bool:
        """Whether channels lie on axis 1 and space behind them."""
        return self.kind in ("Conv", "ConvTranspose")

    @property
    def data(self) -> ir.Value:
        """The operand that is not the weight."""
        value = self.node.inputs[1 - self.side]
        assert value is not None, "both operands of a layer are given"
        return value

    @property
    def value(self) -> ir.Value:
        """The result, bias included."""
        return (self.added or self.node).outputs[0]

    @property
    def turned(self) -> bool:
        """Whether the weight of a Gemm is stored as [N, K]."""
        return self.kind == "Gemm" and nodes.int_attribute(self.node, "transB", 0) == 1

    @property
    def outputs(self) -> int:
        """How many output channels there are; 1 for a MatMul with a vector, whose result has no channel axis."""
        if self.kind == "Conv":
            return self.shape[0]
        if self.kind == "ConvTranspose":
            return self.shape[1] * self.group
        if self.kind == "Gemm":
            return self.shape[0 if self.turned else 1]
        return 1 if len(self.shape) == 1 else self.shape[-2 if self.side == 0 else -1]

    @property
    def inputs(self) -> int:
        """How many input channels there are."""
        if self.kind == "Conv":
            return self.shape[1] * self.group
        if self.kind == "ConvTranspose":
            return self.shape[0]
        if self.kind == "Gemm":
            return self.shape[1 if self.turned else 0]
        return self.shape[-1 if self.side == 0 or len(self.shape) == 1 else -2]

    @property
    def output_axis(self) -> int:
        """The channel axis of the result, counted from its end."""
        if self.is_convolution:
            return 1 - len(self.shape)
        return -2 if self.side == 0 else -1

    @property
    def input_axis(self) -> int:
        """The channel axis of the data, counted from its end."""
        if self.is_convolution:
            return 1 - len(self.shape)
        if self.kind == "Gemm":
            return -2 if nodes.int_attribute(self.node, "transA", 0) else -1
        return -2 if self.side == 0 else -1


# -- finding ----------------------------------------------------------------------------------------------------------
# Conditions here are written as `if ...: refuse`, since putting a reason into words costs more than asking.


def claim(match: Match, value: ir.Value, user: ir.Node) -> ir.Node:
    """The node that computes `value`, which is to vanish: `user` must be its only reader."""
    producer = _producer(match, value)
    alone = all(reader is user for reader in value.consumers()) and not value.is_graph_output()
    others = any(nodes.is_used(output) for output in producer.outputs if output is not value)
    if others or not alone:
        match.refuse(f"the result of {nodes.describe(producer)} is read elsewhere too")
    if producer not in match.binding.inner:
        match.binding.inner.append(producer)
    return producer


def claim_with_layers(match: Match, value: ir.Value, user: ir.Node, *, shift: bool) -> ir.Node:
    """As `claim`, where further readers are layers that can take the same factor (or shift), each for itself."""
    others = dict.fromkeys(reader for reader in value.consumers() if reader is not user)
    if not others:
        return claim(match, value, user)
    producer = _producer(match, value)
    match.require(not value.is_graph_output(), f"'{value.name}' is a result of the graph")
    for reader in (user, *others):
        if not _takes(match, reader, value, shift):
            match.refuse(f"{nodes.describe(reader)} reads '{value.name}' too")
    if producer not in match.binding.inner:
        match.binding.inner.append(producer)
    return producer


def _producer(match: Match, value: ir.Value) -> ir.Node:
    """The standard operator of the same graph that computes `value`, all of its attributes known."""
    producer = value.producer()
    if producer is None:
        match.refuse(f"'{value.name}' is an input or a constant")
    if producer.graph is not match.root.graph:
        match.refuse(f"{nodes.describe(producer)} belongs to an outer graph")
    if not nodes.is_standard(producer):
        match.refuse(f"{nodes.describe(producer)} is not a standard operator")
    if nodes.has_reference_attributes(producer):
        match.refuse(f"{nodes.describe(producer)} has open attributes")
    return producer


def _takes(match: Match, reader: ir.Node, value: ir.Value, shift: bool) -> bool:
    """Whether a product of `value` with a constant that nobody else reads can take a factor (or shift) of it."""
    if reader.op_type not in ("MatMul", "Gemm") or reader.graph is not match.root.graph:
        return False
    if not nodes.is_standard(reader) or nodes.has_reference_attributes(reader):
        return False
    weight = reader.inputs[1]
    if reader.inputs[0] is not value or weight is None or not match.facts.is_constant(weight):
        return False
    if len(weight.uses()) != 1 or weight.is_graph_output() or match.facts.rank(weight) != 2:
        return False
    if not shift:
        return True
    if reader.op_type == "Gemm":
        bias = nodes.input_at(reader, 2)
        return bias is None or match.facts.is_constant(bias)
    product = reader.outputs[0]
    users = list(product.consumers())
    if len(users) != 1 or users[0].op_type != "Add" or product.is_graph_output():
        return False
    return any(operand is not None and match.facts.is_constant(operand) for operand in users[0].inputs)


def layer_before(match: Match, value: ir.Value, user: ir.Node) -> Layer:
    """The layer that computes `value` and that nothing but `user` reads."""
    return layer_at(match, claim(match, value, user))


def layer_at(match: Match, node: ir.Node) -> Layer:
    """The layer that is `node`, or that ends in `node` when it is the Add of a constant behind a MatMul."""
    if node.op_type == "Add":
        match.require(match.opset >= 7, "before opset 7 operands are aligned by attributes")
        for index in (0, 1):
            bias, product = node.inputs[index], node.inputs[1 - index]
            if bias is None or product is None or not match.facts.is_constant(bias):
                continue
            producer = product.producer()
            if producer is not None and producer.op_type == "MatMul":
                return _read(match, claim(match, product, node), node, bias)
        match.refuse(f"{nodes.describe(node)} does not add a constant to a MatMul")
    if node.op_type not in LAYERS:
        match.refuse(f"{nodes.describe(node)} is no layer with weights")
    return _read(match, node, None, None)


def _read(match: Match, node: ir.Node, added: ir.Node | None, bias: ir.Value | None) -> Layer:
    side = 1
    if node.op_type == "MatMul" and node.inputs[0] is not None and match.facts.is_constant(node.inputs[0]):
        side = 0
    weight = node.inputs[side]
    if weight is None or not match.facts.is_constant(weight):
        match.refuse(f"the weight of {nodes.describe(node)} is not a constant")
    if match.dtype(weight) not in FLOATS:
        match.refuse(f"{nodes.describe(node)} does not compute with floating point")
    match.require(node.op_type != "Gemm" or match.opset >= 7, "before opset 7 Gemm broadcasts by an attribute")
    shape = match.static_shape(weight)
    if math.prod(shape) == 0:
        match.refuse(f"the weight of {nodes.describe(node)} is empty")
    if node.op_type != "MatMul":
        bias = nodes.input_at(node, 2)
    return Layer(node, weight, shape, side, added, bias, nodes.int_attribute(node, "group", 1))


# -- numbers per channel ----------------------------------------------------------------------------------------------


def per_channel(match: Match, array: Array, axis: int, rank: int, channels: int) -> Array:
    """A broadcast constant as float64 numbers, one per channel (or one for all); `axis` counts from the end.

    Refuses what varies along another axis and what would widen the tensor it is combined with.
    """
    match.require(array.size > 0, "the constant is empty")
    match.require(array.ndim <= rank, "the constant has more dims than the tensor")
    for place, size in enumerate(array.shape):
        here = place - array.ndim == axis
        match.require(size == 1 or (here and size == channels), "the constant differs along an axis besides channels")
    return uniform(match, array)


def uniform(match: Match, array: Array) -> Array:
    """The numbers of an array as a float64 vector; a single one where all are equal."""
    if constants.is_splat(array):
        array = array[(slice(0, 1),) * array.ndim]
    vector = np.asarray(array.reshape(-1), dtype=np.float64)
    match.require(np.isfinite(vector).all(), "a number to fold is infinite or not a number")
    return vector[:1] if vector.size > 1 and bool((vector == vector[0]).all()) else vector


def output_rank(match: Match, layer: Layer) -> int:
    """The number of dims of the layer's result."""
    if layer.is_convolution:
        return len(layer.shape)
    return 2 if layer.kind == "Gemm" else match.rank(layer.value)


def may_be_gemm(match: Match, node: ir.Node) -> bool:
    """Whether a MatMul is one that Gemm can say: two matrices of a type that runtimes have a Gemm for."""
    left, right = node.inputs[0], node.inputs[1]
    if left is None or right is None or match.opset < 7:
        return False
    matrices = match.facts.rank(left) == 2 and match.facts.rank(right) == 2
    return matrices and match.facts.dtype(left) in GEMM_TYPES
