"""Pad in front of a convolution or a pooling becomes its `pads` attribute."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.operators.table import NOT_NEGATIVE
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

# Operators whose result is not negative when no input is.
KEEPS_SIGN = frozenset(
    {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity", "Reshape", "Transpose", "Concat",
     "Add", "Mul", "Max", "Split", "Slice", "Squeeze", "Unsqueeze", "Flatten"}
)  # fmt: skip
UNSIGNED = frozenset({ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64})
SEARCH_DEPTH = 6


@any_node("Conv", level=2)
def pad_into_conv(match: Match) -> Replacement:
    """Conv(Pad(x, p))  -->  Conv(x) with pads + p

    Only for zeros put around space. Leaves negative pads (crops) alone, and a Pad that something else than
    convolutions and pooling reads, since it would have to be computed all the same.
    """
    source, pads, value = _pad_in_front(match)
    match.require(value == 0, f"the padding is {value}, not 0")
    return match.op("Conv", source, *match.root.inputs[1:], attributes=_summed(match, pads), like=match.root)


@any_node("AveragePool", level=2)
def pad_into_average_pool(match: Match) -> Replacement:
    """AveragePool(Pad(x, p))  -->  AveragePool(x) with pads + p and count_include_pad=1

    The zeros were counted, and must be: what pads the pooling has itself must be none, or counted too. Leaves
    ceil_mode alone, whose last windows may lie outside of the padding, and pads as wide as the kernel, which are
    refused at run time.
    """
    root = match.root
    match.require(match.opset >= 7, "count_include_pad came with opset 7")
    source, pads, value = _pad_in_front(match)
    match.require(value == 0, f"the padding is {value}, not 0")
    match.require(nodes.int_attribute(root, "ceil_mode", 0) == 0, "the size is rounded up")
    counted = nodes.int_attribute(root, "count_include_pad", 0) == 1
    own = nodes.ints_attribute(root, "pads") or ()
    match.require(counted or not any(own), "the pooling has pads that it does not count")
    attributes = _summed(match, pads)
    _require_smaller_than_kernel(match, attributes["pads"])
    return match.op("AveragePool", source, attributes={**attributes, "count_include_pad": 1}, like=root)


@any_node("MaxPool", level=2)
def pad_into_max_pool(match: Match) -> Replacement:
    """MaxPool(Pad(x, p, lowest))  -->  MaxPool(x) with pads + p;   padding of 0 alike where x is not negative

    Leaves alone the indices output (it counts in the padded tensor), ceil_mode, dilations (a window could see padding
    alone) and pads as wide as the kernel, which are refused at run time.
    """
    root = match.root
    source, pads, value = _pad_in_front(match)
    match.require(len(root.outputs) == 1 or not nodes.is_used(root.outputs[1]), "its indices are read")
    kind = match.dtype(source)
    lowest = np.iinfo(kind.numpy()).min if kind.is_integer() else _LOWEST.get(kind, -math.inf)
    harmless = value <= lowest or (value <= 0 and _not_negative(match, source, SEARCH_DEPTH))
    match.require(harmless, f"the padding is {value}, which may exceed the data")
    match.require(nodes.int_attribute(root, "ceil_mode", 0) == 0, "the size is rounded up")
    match.require(set(nodes.ints_attribute(root, "dilations") or (1,)) == {1}, "its windows have gaps")
    attributes = _summed(match, pads)
    _require_smaller_than_kernel(match, attributes["pads"])
    return match.op("MaxPool", source, attributes=attributes, like=root)


def _pad_in_front(match: Match) -> tuple[ir.Value, tuple[int, ...], float]:
    """What the Pad in front reads, its pads over space (begins, then ends), and its number."""
    root = match.root
    value = root.inputs[0]
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type != "Pad" or not nodes.is_standard(node):
        match.refuse("no Pad stands in front")
    match.require(not nodes.has_reference_attributes(node), "the Pad has open attributes")
    match.require(node.graph is root.graph, "the Pad belongs to an outer graph")
    readers = all(user.op_type in ("Conv", "AveragePool", "MaxPool") for user in value.consumers())
    match.require(readers and not value.is_graph_output(), "the padded tensor is read elsewhere too")
    match.require(nodes.string_attribute(node, "mode", "constant") == "constant", "the Pad repeats the data")
    source = nodes.given_input(node)
    rank = match.rank(source)
    number = 0.0
    if match.opset < 11:
        given = nodes.ints_attribute(node, "pads") or nodes.ints_attribute(node, "paddings")
        number = nodes.float_attribute(node, "value", 0.0)
        if given is None:
            match.refuse("the Pad has no pads")
    else:
        given = match.ints(nodes.input_at(node, 1), "the pads")
        filler = nodes.input_at(node, 2)
        if filler is not None:
            found = match.facts.scalar(filler)
            if found is None:
                match.refuse("the number the Pad fills in is not constant")
            number = float(found)
    axes = tuple(range(rank))
    if nodes.input_at(node, 3) is not None:
        axes = tuple(axis % rank for axis in match.ints(nodes.input_at(node, 3), "the axes of the Pad"))
    match.require(len(given) == 2 * len(axes), "the pads do not fit the data")
    begins, ends = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        begins[axis], ends[axis] = given[place], given[place + len(axes)]
    match.require(min(begins + ends, default=0) >= 0, "the Pad crops")
    match.require(not any(begins[:2] + ends[:2]), "the Pad widens the batch or the channels")
    if node not in match.binding.inner:
        match.binding.inner.append(node)
    return source, (*begins[2:], *ends[2:]), number


def _summed(match: Match, pads: tuple[int, ...]) -> dict[str, tuple[int, ...] | None]:
    """The attributes of the padded operator: its own pads and those of the Pad together."""
    root = match.root
    mode = nodes.string_attribute(root, "auto_pad", "NOTSET")
    match.require(mode in ("NOTSET", "VALID"), f"auto_pad is {mode}")
    own = (0,) * len(pads) if mode == "VALID" else nodes.ints_attribute(root, "pads") or (0,) * len(pads)
    match.require(len(own) == len(pads), "the pads do not fit the data")
    return {"pads": tuple(a + b for a, b in zip(own, pads, strict=True)), "auto_pad": None}


def _require_smaller_than_kernel(match: Match, pads: tuple[int, ...] | None) -> None:
    kernel = nodes.ints_attribute(match.root, "kernel_shape") or ()
    fits = pads is not None and all(pad < size for pad, size in zip(pads, kernel * 2, strict=True))
    match.require(fits, "the pads would be as wide as the kernel")


# The number from which on a runtime takes padding for the smallest there is.
_LOWEST = {
    ir.DataType.FLOAT: float(np.finfo(np.float32).min),
    ir.DataType.DOUBLE: float(np.finfo(np.float64).min),
    ir.DataType.FLOAT16: float(np.finfo(np.float16).min),
}


def _not_negative(match: Match, value: ir.Value, depth: int) -> bool:
    """Whether no element of the tensor can be below zero, as far as the operators above it tell."""
    if match.facts.dtype(value) in UNSIGNED:
        return True
    producer = value.producer()
    if producer is None or depth == 0 or not nodes.is_standard(producer) or nodes.has_reference_attributes(producer):
        array = match.array(value) if producer is None and match.facts.is_constant(value) else None
        return array is not None and (constants.is_splat(array) or array.size <= 4096) and bool((array >= 0).all())
    if producer.op_type in NOT_NEGATIVE:
        return True
    if producer.op_type == "Clip":
        lower = match.facts.scalar(nodes.input_at(producer, 1))
        if match.facts.opset(producer) < 11:
            lower = nodes.float_attribute(producer, "min", -math.inf)
        return lower is not None and lower >= 0
    if producer.op_type in KEEPS_SIGN:
        tensors = producer.inputs if producer.op_type in ("Concat", "Add", "Mul", "Max") else producer.inputs[:1]
        return all(tensor is not None and _not_negative(match, tensor, depth - 1) for tensor in tensors)
    return False


RULES: tuple[Rule, ...] = (pad_into_conv, pad_into_average_pool, pad_into_max_pool)
