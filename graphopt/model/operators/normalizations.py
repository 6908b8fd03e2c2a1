"""Softmax and normalisations."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge
from graphopt.model.operators.axes import Axes, channels_first, counted, named_axis, rank_of
from graphopt.model.operators.gradients import elementwise
from graphopt.model.operators.gradients import normalizations as gradients
from graphopt.model.operators.gradients.backward import GradientRule
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.parts import Part, Range, Wanted
from graphopt.model.operators.record import Operator, Storage, per_element
from graphopt.model.operators.shapes import same_as_first


def _softmax_axes(node: ir.Node, facts: Knowledge) -> Axes:
    """Before opset 13 all axes from `axis` on are one."""
    if facts.opset(node) >= 13:
        return named_axis(-1)(node, facts)
    rank = rank_of(facts, node)
    first = nodes.int_attribute(node, "axis", 1) % max(rank, 1)
    return Axes(rank, frozenset(range(first, rank)), fixed="it flattens its operand before opset 13")


def _last_axes(node: ir.Node, facts: Knowledge) -> Axes:
    """All axes from `axis` on."""
    if any(nodes.is_used(output) for output in node.outputs[1:]):
        raise Unclear("it has several results")
    rank = rank_of(facts, node)
    first = nodes.int_attribute(node, "axis", -1) % max(rank, 1)
    for value in node.inputs[1:]:
        shape = () if value is None else facts.shape(value)
        if shape is None or any(dim != 1 for dim in shape[: first - rank]):
            raise Unclear("its scale or bias may differ along other axes")
    return Axes(rank, frozenset(range(first, rank)), fixed="it works on the last axes")


def _channel_axes(node: ir.Node, facts: Knowledge) -> Axes:
    """BatchNormalization: numbers of its own for each channel."""
    if nodes.int_attribute(node, "training_mode", 0):
        raise Unclear("it trains")
    return channels_first(1, 2)(node, facts)


def _listed_axes(node: ir.Node, facts: Knowledge) -> Axes:
    """MeanVarianceNormalization<axes>(x)"""
    rank = rank_of(facts, node)
    axes = nodes.ints_attribute(node, "axes") or (0, 2, 3)
    if max(axes) >= rank:
        raise Unclear("its axes lie outside")
    names = counted(axes, rank)
    return Axes(rank, frozenset(names), names, "axes")


def _softmax(
    name: str, gradient: GradientRule, storage: Storage = "in place", *, flops: int = 5, not_negative: bool = False
) -> Operator:
    return Operator(
        name=name, shape=same_as_first, flops=per_element(flops), storage=storage, axes=_softmax_axes,
        epilogue=storage == "in place", not_negative=not_negative,
        gradient=gradient,
    )  # fmt: skip


def _rotary_part(wanted: Wanted) -> Part | None:
    """The same batches, positions or heads; angles are those of the positions."""
    axis, rank, reach = wanted.axis, len(wanted.result), wanted.range
    angles, ids = wanted.shapes[1], nodes.input_at(wanted.node, 3)
    if axis in (0, rank - 2):  # of dims [batch, (heads,) positions, size]
        at = 0 if axis == 0 else 1
        same = Range(at, *reach[1:])
        cut = same if ids is None and len(angles) == 3 and angles[at] > 1 else None
        return Part((reach, cut, cut, *((same,) if ids is not None else (None,) * (len(wanted.shapes) - 3))), reach[1:])
    if rank == 4:
        return wanted.same() if axis == 1 else None
    heads = nodes.int_attribute(wanted.node, "num_heads", 0)
    if not heads:
        return None
    width = wanted.result[axis] // heads
    low, high = reach.low // width, -(-reach.high // width)
    made = (low * width, high * width)
    return Part((Range(axis, *made), *(None,) * (len(wanted.shapes) - 1)), made, {"num_heads": high - low})


OPERATORS = (
    _softmax("Softmax", gradients.softmax, not_negative=True),
    _softmax("LogSoftmax", gradients.log_softmax),
    _softmax("Hardmax", elementwise.nothing, "own", flops=2),
    Operator(
        name="BatchNormalization", flops=per_element(2), storage="in place", purity="training", axes=_channel_axes,
        images=(0,), gradient=gradients.batch,
    ),
    Operator(
        name="InstanceNormalization", shape=same_as_first, flops=per_element(8), epilogue=True,
        axes=channels_first(1), images=(0,), gradient=gradients.instance,
    ),
    Operator(
        name="GroupNormalization", shape=same_as_first, flops=per_element(8), epilogue=True, images=(0,),
        gradient=gradients.group,
    ),
    Operator(
        name="LayerNormalization", flops=per_element(8), epilogue=True, axes=_last_axes, gradient=gradients.layer
    ),
    Operator(
        name="RMSNormalization", shape=same_as_first, flops=per_element(5), epilogue=True, axes=_last_axes,
        gradient=gradients.root_mean_square,
    ),
    Operator(
        name="LpNormalization", shape=same_as_first, flops=per_element(4), axes=named_axis(-1),
        gradient=gradients.length,
    ),
    Operator(
        name="LRN", shape=same_as_first, flops=per_element(5), images=(0,), gradient=gradients.local_response
    ),
    Operator(
        name="MeanVarianceNormalization", shape=same_as_first, flops=per_element(8), epilogue=True, axes=_listed_axes
    ),
    Operator(name="RotaryEmbedding", flops=per_element(3), part=_rotary_part),
)  # fmt: skip
