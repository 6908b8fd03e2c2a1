"""Layers between dequantized operands and a quantized result, as operators that sum integers.

    QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), DequantizeLinear(bias)))  -->  QLinearConv(x, w, bias)

So for MatMul and Gemm; a Relu or Clip on the way becomes a bound of the quantized result, since rounding keeps order.
The sums are exact and rounded once, where float32 would round every product and sum. The operators are of a domain of
their own (`model/operators/quantized.py`): their bias is an attribute of float64, as it need not be in the scale of the
sums. Operands and results of 16 bits are two bytes, each with sums of its own, which are joined in float64 by operators
of the standard. Left alone are layers whose weights, bias, scales or zero points are no constants, of other types, and
those whose result something else reads.
"""

from __future__ import annotations

from collections.abc import Callable
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
WORDS = (ir.DataType.UINT16, ir.DataType.INT16)
SHORTER = {  # integers of weights that become bytes
    ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8, ir.DataType.INT2: np.int8, ir.DataType.UINT2: np.uint8,
}  # fmt: skip
BOUNDS = ("Relu", "Clip")
SUMS = {"Conv": "ConvInteger", "MatMul": "MatMulInteger", "Gemm": "MatMulInteger"}
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
            kinds = facts.dtype(node.outputs[0]), facts.dtype(found.x.value)
            (_replace if all(kind in BYTES for kind in kinds) else _spell_out)(copy, facts, node, found)
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
    if quantize.domain or kind not in (*BYTES, *WORDS) or not _is_per_tensor(facts, quantize):
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
    if facts.dtype(x.value) not in (*BYTES, *WORDS) or facts.dtype(weights.value) not in (*BYTES, *SHORTER):
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
    """One operator in the place of a layer whose operand and result are bytes."""
    graph, node, kind = model.graph, layer.node, facts.dtype(quantize.outputs[0])
    graph.opset_imports.setdefault(IN_BYTES, 1)
    assert kind is not None, "it is of bytes"
    name, scale, zero = quantize.outputs[0].name or "", quantize.inputs[1], input_at(quantize, 2)
    zero = zero or _constant(graph, f"{name}:zero", np.zeros((), kind.numpy()))
    given = [one for each in (layer.x, layer.weights) for one in (each.value, each.scale, _zero(graph, facts, each))]
    shape = facts.static_shape(node.outputs[0])
    assert shape is not None, "the caller has looked"
    made = ir.node(OPERATORS[node.op_type], [*(_in_bytes(graph, facts, one) for one in given), scale, zero],
                   domain=IN_BYTES)  # fmt: skip
    made.attributes.update(_attributes(node))
    made.attributes[DIMS] = ir.AttrInt64s(DIMS, shape)
    if layer.bias is not None:
        made.attributes[BIAS] = ir.AttrTensor(BIAS, ir.tensor(layer.bias))
    made.name = node.name
    last = [made]
    for bound in reversed(layer.bounds):
        last += _bounded(graph, facts, bound, quantize, last[-1].outputs[0], f"{name}:{len(last)}")
    for one in last:
        one.outputs[0].type = ir.TensorType(kind)
    _put(graph, quantize, layer, last)


def _put(graph: ir.Graph, quantize: ir.Node, layer: _Layer, made: list[ir.Node]) -> None:
    """New nodes in the place of a layer and what quantizes it."""
    graph.insert_before(quantize, made)
    new, old = made[-1].outputs[0], quantize.outputs[0]
    new.shape, name = old.shape, old.name
    ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
    new.name, old.name = name, f"{name}:old"
    graph.remove([quantize, *layer.bounds, layer.node], safe=True)


def _attributes(node: ir.Node) -> dict[str, ir.Attr]:
    return {key: one for key, one in node.attributes.items() if key not in ("alpha", "beta")}


def _spell_out(model: ir.Model, facts: Facts, quantize: ir.Node, layer: _Layer) -> None:
    """The sums of each byte of the operand, joined and rounded in float64: exact for sums below 2**53."""
    graph, node, name = model.graph, layer.node, quantize.outputs[0].name or ""
    kind, (scale, zero) = facts.dtype(quantize.outputs[0]), _numbers(facts, layer.x)
    assert kind is not None and quantize.inputs[1] is not None, "the caller has looked"
    made: list[ir.Node] = []

    def add(
        op_type: str, inputs: list[ir.Value], to: ir.DataType, attributes: dict[str, Any] | None = None
    ) -> ir.Value:
        made.append(ir.node(op_type, inputs, attributes))
        made[-1].name = made[-1].outputs[0].name = f"{name}:{op_type}{len(made)}"
        made[-1].outputs[0].type = ir.TensorType(to)
        return made[-1].outputs[0]

    def number(value: object) -> ir.Value:
        array = np.asarray(value)
        return _constant(graph, f"{name}:number{len(graph.initializers)}", array)

    weights, columns = layer.weights, facts.array(layer.weights.value)
    assert columns is not None, "they are constants"
    operand = _in_bytes(graph, facts, weights.value)
    if int_attribute(node, "transB", 0):
        operand = number(columns.astype(facts.array(operand).dtype).T)  # type: ignore[union-attr]
    weights_zero = _in_bytes(graph, facts, _zero(graph, facts, weights))
    total: ir.Value | None = None
    for part, offset, worth in _parts(facts, layer.x, zero, add, number):
        attributes = _attributes(node) if node.op_type == "Conv" else {}
        sums = add(SUMS[node.op_type], [part, operand, number(offset), weights_zero], ir.DataType.INT32)
        made[-1].attributes.update(attributes)
        wide = add("Cast", [sums], ir.DataType.DOUBLE, {"to": int(ir.DataType.DOUBLE)})
        wide = wide if worth == 1 else add("Mul", [wide, number(np.float64(worth))], ir.DataType.DOUBLE)
        total = wide if total is None else add("Add", [total, wide], ir.DataType.DOUBLE)
    behind = (-1, *(1,) * (columns.ndim - 2)) if node.op_type == "Conv" else (-1,)
    step = facts.array(quantize.inputs[1])
    result_zero = None if input_at(quantize, 2) is None else facts.array(quantize.inputs[2])
    assert total is not None and step is not None
    of_step = step.reshape(()).astype(np.float64)
    factor = scale.astype(np.float64) * _numbers(facts, weights)[0] / of_step
    value = add("Mul", [total, number(factor.reshape(behind))], ir.DataType.DOUBLE)
    if layer.bias is not None:
        value = add("Add", [value, number((layer.bias / of_step).reshape(behind))], ir.DataType.DOUBLE)
    for bound in reversed(layer.bounds):
        for op_type, limit in _limits(facts, bound):
            value = add(op_type, [value, number(np.float64(limit) / of_step)], ir.DataType.DOUBLE)
    value, limits = add("Round", [value], ir.DataType.DOUBLE), np.iinfo(kind.numpy())
    if result_zero is not None:
        value = add("Add", [value, number(result_zero.reshape(()).astype(np.float64))], ir.DataType.DOUBLE)
    for op_type, edge in (("Max", limits.min), ("Min", limits.max)):
        value = add(op_type, [value, number(np.float64(edge))], ir.DataType.DOUBLE)
    add("Cast", [value], kind, {"to": int(kind)})
    _put(graph, quantize, layer, made)


def _parts(
    facts: Facts, x: _Quantized, zero: Array, add: Callable[..., ir.Value], number: Callable[[object], ir.Value]
) -> list[tuple[ir.Value, Array, int]]:
    """The bytes of an operand with their zero points, and what they are worth: all of it, or a high and a low one."""
    kind, offset, value = facts.dtype(x.value), int(zero[0]), x.value
    if kind in BYTES:
        return [(value, np.asarray(offset, kind.numpy()), 1)]
    if kind is ir.DataType.INT16:  # as unsigned words, half the range above
        words = add("Cast", [value], ir.DataType.UINT16, {"to": int(ir.DataType.UINT16)})
        value, offset = add("Add", [words, number(np.uint16(1 << 15))], ir.DataType.UINT16), offset + (1 << 15)
    shifted = add("BitShift", [value, number(np.uint16(8))], ir.DataType.UINT16, {"direction": "RIGHT"})
    high, low = (add("Cast", [one], ir.DataType.UINT8, {"to": int(ir.DataType.UINT8)}) for one in (shifted, value))
    return [(high, np.asarray(offset >> 8, np.uint8), 256), (low, np.asarray(offset & 255, np.uint8), 1)]


def _zero(graph: ir.Graph, facts: Facts, one: _Quantized) -> ir.Value:
    """A zero point; integer operators want one."""
    if one.zero is not None:
        return one.zero
    kind, scale = facts.dtype(one.value), facts.array(one.scale)
    assert kind is not None and scale is not None
    name = f"{one.scale.name}:{kind.name} zero"
    return graph.initializers.get(name) or _constant(graph, name, np.zeros(scale.shape, kind.numpy()))


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
    kind = facts.dtype(quantize.outputs[0])
    assert kind is not None
    scale, zero = (facts.array(one) if one is not None else None for one in (*quantize.inputs[1:], None, None)[:2])
    assert scale is not None
    limits = np.iinfo(kind.numpy())
    made = []
    for op_type, limit in _limits(facts, bound):
        offset = 0 if zero is None else int(zero.reshape(-1)[0])
        whole = np.rint(np.float32(limit) / scale.astype(np.float32).reshape(-1)[0]) + offset
        number = np.asarray(np.clip(whole, limits.min, limits.max), kind.numpy()).reshape(())
        made.append(ir.node(op_type, [value, _constant(graph, f"{name}:{op_type}", number)]))
        value = made[-1].outputs[0]
        made[-1].name = value.name = f"{name}:{op_type} of it"
    return made


def _limits(facts: Facts, bound: ir.Node) -> list[tuple[str, Array]]:
    """What a Relu or Clip does: Max and Min with constants."""
    if bound.op_type == "Relu":
        return [("Max", np.zeros((), np.float32))]
    given = [None if input_at(bound, at) is None else facts.array(bound.inputs[at]) for at in (1, 2)]
    return [(op_type, one) for op_type, one in zip(("Max", "Min"), given, strict=True) if one is not None]


def _constant(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
    graph.register_initializer(value)
    return value
