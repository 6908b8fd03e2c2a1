"""Layers between dequantized operands and a quantized result, as operators that sum integers.

    QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), DequantizeLinear(bias)))  -->  QLinearConv(x, w, bias)

So for MatMul and Gemm; a Relu or Clip on the way becomes a bound of the quantized result, since rounding keeps order.
The sums are exact and rounded once, where float32 would round every product and sum. Left alone are layers whose
weights, scales or zero points are no constants, whose bias is not in the scale of the sums, of other types than bytes,
and those whose result something else reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.nodes import float_attribute, input_at, int_attribute
from graphopt.model.operators import contrib

Array = npt.NDArray[Any]
BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
BOUNDS = ("Relu", "Clip")
SAME = 2.0**-20  # relative: the scale of a bias is a product of two that was rounded to float32
# The axis of the weights that their scales may lie along.
_AXES = {"Conv": 0, "MatMul": -1, "Gemm": -1}


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
            _replace(copy, facts, node, *found)
    for node in [node for node in copy.graph if node.op_type == "DequantizeLinear"]:
        if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            copy.graph.remove(node, safe=True)
    return copy


def _layer(facts: Facts, quantize: ir.Node) -> tuple[ir.Node, list[ir.Node], list[_Quantized]] | None:
    """The layer whose result a node quantizes, the bounds between, and its operands; None where there is none."""
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
    if node.op_type not in _AXES or facts.dtype(value) is not ir.DataType.FLOAT or not _is_plain(node):
        return None
    operands = [_dequantized(facts, one) for one in node.inputs if one is not None]
    if any(one is None for one in operands):
        return None
    given = [one for one in operands if one is not None]
    return (node, bounds, given) if _fits(facts, node, given) else None


def _is_per_tensor(facts: Facts, node: ir.Node) -> bool:
    numbers = [None if one is None else facts.array(one) for one in node.inputs[1:]]
    known = all(one is None or number is not None for one, number in zip(node.inputs[1:], numbers, strict=True))
    return (
        known and all(number is None or number.size == 1 for number in numbers)
        and facts.dtype(node.inputs[1]) is ir.DataType.FLOAT and not int_attribute(node, "precision", 0)
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


def _fits(facts: Facts, node: ir.Node, operands: list[_Quantized]) -> bool:
    x, weights, *bias = operands
    known, rank = facts.array(weights.value), len(facts.shape(x.value) or ())
    if known is None or facts.dtype(x.value) not in BYTES or facts.dtype(weights.value) not in BYTES:
        return False
    axis = 0 if int_attribute(node, "transB", 0) else _AXES[node.op_type] % known.ndim
    scale, zero = _numbers(facts, x), _numbers(facts, weights)
    if scale[0].size != 1 or (zero[0].size != 1 and (weights.axis % known.ndim != axis)):
        return False
    if node.op_type == "Conv" and not 3 <= rank <= 5 or node.op_type != "Conv" and known.ndim != 2:
        return False
    if not bias:
        return True
    added, outputs = facts.array(bias[0].value), known.shape[axis]
    if added is None or added.dtype != np.int32 or added.size != outputs or _numbers(facts, bias[0])[1].any():
        return False
    wanted = scale[0].astype(np.float64) * zero[0].astype(np.float64)
    return bool(np.allclose(_numbers(facts, bias[0])[0].astype(np.float64), wanted, rtol=SAME, atol=0.0))


def _numbers(facts: Facts, one: _Quantized) -> tuple[Array, Array]:
    """Scales and zero points as vectors."""
    scale = facts.array(one.scale)
    zero = np.zeros(1, np.int32) if one.zero is None else facts.array(one.zero)
    assert scale is not None and zero is not None, "they are constants"
    return scale.reshape(-1), zero.reshape(-1)


def _replace(
    model: ir.Model, facts: Facts, quantize: ir.Node, node: ir.Node, bounds: list[ir.Node], operands: list[_Quantized]
) -> None:
    graph, (x, weights, *bias) = model.graph, operands
    graph.opset_imports.setdefault(contrib.DOMAIN, 1)
    kind = facts.dtype(quantize.outputs[0])
    assert kind is not None, "it is of bytes"
    name = quantize.outputs[0].name or ""
    scale, zero = quantize.inputs[1], input_at(quantize, 2) or _constant(graph, f"{name}:zero", np.zeros((), kind.numpy()))
    given = [one for pair in ((x, _zero(graph, facts, x)), (weights, _zero(graph, facts, weights)))
             for one in (pair[0].value, pair[0].scale, pair[1])]  # fmt: skip
    result = [scale, zero]
    added = [one.value for one in bias]
    op_type, domain, attributes = "QLinearMatMul", "", {}
    if node.op_type == "Conv":
        op_type, attributes = "QLinearConv", dict(node.attributes)
        inputs = [*given, *result, *added]
    elif node.op_type == "Gemm":
        op_type, domain = "QGemm", contrib.DOMAIN
        attributes = {key: one for key, one in node.attributes.items() if key == "transB"}
        inputs = [*given, *(added or [None]), *result]
    else:
        inputs = [*given, *result]
    made = ir.node(op_type, inputs, attributes=None, domain=domain)
    made.attributes.update(attributes)
    made.name = node.name
    last = [made]
    for bound in reversed(bounds):
        last += _bounded(graph, facts, bound, quantize, last[-1].outputs[0], f"{name}:{len(last)}")
    graph.insert_before(quantize, last)
    new, old = last[-1].outputs[0], quantize.outputs[0]
    for one in last:
        one.outputs[0].type = ir.TensorType(kind)
        one.outputs[0].shape = old.shape
    ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
    new.name, old.name = old.name, f"{name}:old"
    graph.remove([quantize, *bounds, node], safe=True)


def _zero(graph: ir.Graph, facts: Facts, one: _Quantized) -> ir.Value:
    """A zero point; integer operators want one."""
    if one.zero is not None:
        return one.zero
    kind, scale = facts.dtype(one.value), facts.array(one.scale)
    assert kind is not None and scale is not None
    return _constant(graph, f"{one.scale.name}:zero", np.zeros(scale.shape, kind.numpy()))


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
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name), type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                     shape=ir.Shape(array.shape))  # fmt: skip
    graph.register_initializer(value)
    return value
