"""Layers between dequantized operands and a quantized result, as operators that sum integers.

    QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), DequantizeLinear(bias)))  -->  QLinearConv(x, w, bias)

So for MatMul and Gemm; a Relu or Clip on the way becomes a bound of the quantized result, since rounding keeps order.
The sums are exact and rounded once, where float32 would round every product and sum. The operators are of a domain of
their own (`model/operators/quantized.py`): their bias is an attribute of float64, as it need not be in the scale of the
sums. Left alone are layers whose weights, bias, scales or zero points are no constants, of other types than bytes, and
those whose result something else reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.nodes import float_attribute, input_at, int_attribute, required_input
from graphopt.model.operators.quantized import BIAS, DIMS, IN_BYTES

Array = npt.NDArray[Any]
BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
SHORTER = {  # integers of weights that become bytes
    ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8, ir.DataType.INT2: np.int8, ir.DataType.UINT2: np.uint8,
}  # fmt: skip
BOUNDS = ("Relu", "Clip")
OPERATORS = {"Conv": "QLinearConv", "MatMul": "QLinearMatMul", "Gemm": "QLinearMatMul"}


@dataclass(frozen=True, slots=True)
class _Quantized:
    """A quantized tensor with one scale, or one for each place of an axis."""

    value: ir.Value
    scale: ir.Value
    zero: ir.Value | None
    axis: int


def in_integers(model: ir.Model) -> ir.Model:
    """A model in which such layers are integer operators; the same one where there are none."""
    facts = Facts(model)
    if not any(_layer(facts, node) for node in model.graph if node.op_type == "QuantizeLinear"):
        return model
    copy = model.clone()
    facts = Facts(copy)
    for node in [node for node in copy.graph if node.op_type == "QuantizeLinear"]:
        found = _layer(facts, node)
        if found is not None:
            _replace(copy, facts, node, found)
    for node in [node for node in copy.graph if node.op_type == "DequantizeLinear"]:
        if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            copy.graph.remove(node, safe=True)
    return copy


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer whose result is quantized, and the bounds between."""

    node: ir.Node
    bounds: tuple[ir.Node, ...]  # from the last one to the first
    x: _Quantized
    weights: _Quantized
    bias: Array | None  # float64


def _layer(facts: Facts, quantize: ir.Node) -> _Layer | None:
    """The layer whose result a node quantizes; None where there is none that bytes compute."""
    kind = facts.dtype(quantize.outputs[0])
    if quantize.domain or kind not in BYTES or not _is_per_tensor(facts, quantize):
        return None
    bounds: list[ir.Node] = []
    value = quantize.inputs[0]
    while True:
        node = None if value is None else value.producer()
        if node is None or value is None or len(value.uses()) != 1 or value.is_graph_output() or node.domain:
            return None
        if node.op_type not in BOUNDS:
            break
        if not all(one is None or facts.array(one) is not None for one in node.inputs[1:]):
            return None
        bounds.append(node)
        value = node.inputs[0]
    if node.op_type not in OPERATORS or facts.dtype(value) is not ir.DataType.FLOAT or not _is_plain(node):
        return None
    x, weights = (None if one is None else _dequantized(facts, one) for one in node.inputs[:2])
    if x is None or weights is None or not _fits(facts, node, x, weights):
        return None
    added = input_at(node, 2)
    bias = None if added is None else _worth(facts, added)
    outputs = (facts.shape(weights.value) or ())[_axis(node)]
    if added is not None and (bias is None or bias.size != outputs):
        return None
    return _Layer(node, tuple(bounds), x, weights, bias)


def _axis(node: ir.Node) -> int:
    """The axis of the weights that counts the results."""
    return 0 if node.op_type == "Conv" or int_attribute(node, "transB", 0) else -1


def _worth(facts: Facts, bias: ir.Value) -> Array | None:
    """What a constant bias is worth, as a vector of float64."""
    known, dequantized = facts.array(bias), _dequantized(facts, bias)
    if known is None and dequantized is not None:
        known, (scale, zero) = facts.array(dequantized.value), _numbers(facts, dequantized)
        known = None if known is None else (known.reshape(-1) - zero.astype(np.int64)) * scale.astype(np.float64)
    return None if known is None else known.reshape(-1).astype(np.float64)


def _is_per_tensor(facts: Facts, node: ir.Node) -> bool:
    numbers = [None if one is None else facts.array(one) for one in node.inputs[1:]]
    known = all(one is None or number is not None for one, number in zip(node.inputs[1:], numbers, strict=True))
    return (
        known and all(number is None or number.size == 1 for number in numbers)
        and facts.dtype(required_input(node, 1)) is ir.DataType.FLOAT and not int_attribute(node, "precision", 0)
    )  # fmt: skip


def _is_plain(node: ir.Node) -> bool:
    """Whether a Gemm only multiplies and adds, with a first operand that lies in rows."""
    return (
        float_attribute(node, "alpha", 1.0) == 1.0 and float_attribute(node, "beta", 1.0) == 1.0
        and not int_attribute(node, "transA", 0)
    )  # fmt: skip


def _dequantized(facts: Facts, value: ir.Value) -> _Quantized | None:
    node = value.producer()
    if node is None or node.op_type != "DequantizeLinear" or int_attribute(node, "block_size", 0):
        return None
    x, scale = node.inputs[0], node.inputs[1]
    zero = input_at(node, 2)
    if x is None or scale is None or facts.dtype(scale) is not ir.DataType.FLOAT:
        return None
    if facts.array(scale) is None or (zero is not None and facts.array(zero) is None):
        return None
    return _Quantized(x, scale, zero, int_attribute(node, "axis", 1))


def _fits(facts: Facts, node: ir.Node, x: _Quantized, weights: _Quantized) -> bool:
    known, rank = facts.array(weights.value), len(facts.shape(x.value) or ())
    if facts.static_shape(node.outputs[0]) is None or known is None:
        return False
    if facts.dtype(x.value) not in BYTES or facts.dtype(weights.value) not in (*BYTES, *SHORTER):
        return False
    along = weights.axis % known.ndim == _axis(node) % known.ndim
    if _numbers(facts, x)[0].size != 1 or (_numbers(facts, weights)[0].size != 1 and not along):
        return False
    return 3 <= rank <= 5 if node.op_type == "Conv" else known.ndim == 2 and rank > 0


def _numbers(facts: Facts, one: _Quantized) -> tuple[Array, Array]:
    """Scales and zero points as vectors."""
    scale = facts.array(one.scale)
    zero = np.zeros(1, np.int32) if one.zero is None else facts.array(one.zero)
    assert scale is not None and zero is not None, "they are constants"
    return scale.reshape(-1), zero.reshape(-1)


def _replace(model: ir.Model, facts: Facts, quantize: ir.Node, layer: _Layer) -> None:
    graph, node, kind = model.graph, layer.node, facts.dtype(quantize.outputs[0])
    graph.opset_imports.setdefault(IN_BYTES, 1)
    assert kind is not None, "it is of bytes"
    name = quantize.outputs[0].name or ""
    scale, zero = (
        quantize.inputs[1],
        input_at(quantize, 2) or _constant(graph, f"{name}:zero", np.zeros((), kind.numpy())),
    )
    given = [one for each in (layer.x, layer.weights) for one in (each.value, each.scale, _zero(graph, facts, each))]
    given = [_in_bytes(graph, facts, one) for one in given]
    shape = facts.static_shape(node.outputs[0])
    assert shape is not None, "the caller has looked"
    made = ir.node(OPERATORS[node.op_type], [*given, scale, zero], domain=IN_BYTES)
    made.attributes.update({key: one for key, one in node.attributes.items() if key not in ("alpha", "beta")})
    made.attributes[DIMS] = ir.AttrInt64s(DIMS, shape)
    if layer.bias is not None:
        made.attributes[BIAS] = ir.AttrTensor(BIAS, ir.tensor(layer.bias))
    made.name = node.name
    last = [made]
    for bound in reversed(layer.bounds):
        last += _bounded(graph, facts, bound, quantize, last[-1].outputs[0], f"{name}:{len(last)}")
    graph.insert_before(quantize, last)
    new, old = last[-1].outputs[0], quantize.outputs[0]
    for one in last:
        one.outputs[0].type = ir.TensorType(kind)
        one.outputs[0].shape = old.shape
    ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
    new.name, old.name = old.name, f"{name}:old"
    graph.remove([quantize, *layer.bounds, node], safe=True)


def _zero(graph: ir.Graph, facts: Facts, one: _Quantized) -> ir.Value:
    """A zero point; integer operators want one."""
    if one.zero is not None:
        return one.zero
    kind, scale = facts.dtype(one.value), facts.array(one.scale)
    assert kind is not None and scale is not None
    return _constant(graph, f"{one.scale.name}:zero", np.zeros(scale.shape, kind.numpy()))


def _in_bytes(graph: ir.Graph, facts: Facts, value: ir.Value) -> ir.Value:
    kind, known = facts.dtype(value), facts.array(value)
    if kind not in SHORTER or known is None:
        return value
    return graph.initializers.get(f"{value.name}:bytes") or _constant(
        graph, f"{value.name}:bytes", known.astype(SHORTER[kind])
    )


def _bounded(
    graph: ir.Graph, facts: Facts, bound: ir.Node, quantize: ir.Node, value: ir.Value, name: str
) -> list[ir.Node]:
    """Max and Min with the quantized bounds of a Relu or a Clip."""
    low, high = (
        (np.float32(0), None) if bound.op_type == "Relu"
        else tuple(None if input_at(bound, at) is None else facts.array(bound.inputs[at]) for at in (1, 2))
    )  # fmt: skip
    kind = facts.dtype(quantize.outputs[0])
    assert kind is not None
    scale, zero = (facts.array(one) if one is not None else None for one in (*quantize.inputs[1:], None, None)[:2])
    assert scale is not None
    limits = np.iinfo(kind.numpy())
    made = []
    for op_type, limit in (("Max", low), ("Min", high)):
        if limit is None:
            continue
        offset = 0 if zero is None else int(zero.reshape(-1)[0])
        whole = np.rint(np.float32(limit) / scale.astype(np.float32).reshape(-1)[0]) + offset
        number = np.asarray(np.clip(whole, limits.min, limits.max), kind.numpy()).reshape(())
        made.append(ir.node(op_type, [value, _constant(graph, f"{name}:{op_type}", number)]))
        value = made[-1].outputs[0]
        made[-1].name = value.name = f"{name}:{op_type} of it"
    return made


def _constant(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
    graph.register_initializer(value)
    return value
