"""Convolutions of one value that are added up become one: the branches of a network that was trained so.

Networks of the RepVGG kind (Ding et al. 2021) add a 3x3 and a 1x1 convolution and a normalization of the same value.
A sum of linear maps is one linear map: the smaller window's weights are added into the larger one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.constants import Array
from graphopt.passes.weights.affine import as_scale_and_shift, constant_operand
from graphopt.passes.weights.batchnorm import require_inference, scale_and_shift
from graphopt.passes.weights.layer import Layer, claim, layer_at, per_channel
from graphopt.passes.weights.refit import COPY_LIMIT, rounded
from graphopt.rewrite.rule import Match, Refused, Replacement, Rule, any_node

MOST_TERMS = 32  # of a sum


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where the window of an output at 0 lies along one axis: its first tap, from one tap to the next, and taps."""

    first: int
    step: int
    count: int

    def place_of(self, other: _Axis) -> int | None:
        """The tap at which another window begins that lies on taps of this one; None where it does not."""
        place, rest = divmod(other.first - self.first, self.step)
        if rest or place < 0 or place + other.count > self.count:
            return None
        return place if other.count == 1 or other.step == self.step else None


@dataclass(frozen=True, slots=True)
class _Branch:
    """A term of a sum that is linear in `data`: a convolution, or numbers per channel."""

    term: int
    data: ir.Value
    layer: Layer | None  # None: `scale` of each channel, and `shift`
    strides: tuple[int, ...]
    axes: tuple[_Axis, ...]
    scale: Array | None = None
    shift: Array | None = None  # of each channel, or one for all


@any_node("Add", level=2, near=("Conv",))
def sum_of_branches(match: Match) -> Replacement:
    """Conv(x, V, a) + Conv(x, W, b)  -->  Conv(x, V + W, a + b)      (Conv(x, V, a) + BatchNormalization(x) or x * c)

    Also where other terms stand between them in a sum. The smaller window is filled up with zeros to the larger one.
    Leaves alone other strides and groups, windows of which none covers the other, terms that are read elsewhere or
    broadcast, weights that other nodes read, and a plain x.
    """
    terms = _terms(match)
    branches = [branch for term in range(len(terms)) for branch in _branch(match, terms, term)]
    for large in branches:
        for small in branches:
            if large is not small and large.data is small.data:
                places = _places(large, small)
                if places is not None:
                    return _merged(match, terms, large, small, places)
    match.refuse("no two convolutions of one value are added whose windows cover each other")


def _terms(match: Match) -> list[tuple[ir.Value, ir.Node]]:
    """The terms of the sum, none of which is broadcast, and who adds them."""
    match.require(match.opset >= 7, "before opset 7 operands are aligned by attributes")
    shape = match.shape(match.root.outputs[0])
    found: list[tuple[ir.Value, ir.Node]] = []
    waiting = [(value, match.root) for value in reversed(match.root.inputs)]
    while waiting:
        value, user = waiting.pop()
        match.require(value is not None and len(found) <= MOST_TERMS, "it has too many terms")
        assert value is not None, "both operands are given"
        match.require(match.shape(value) == shape, f"'{value.name}' is broadcast")
        inner = value.producer()
        if inner is not None and inner.op_type == "Add" and nodes.is_standard(inner) and _is_alone(value, inner, match):
            waiting += [(one, inner) for one in reversed(inner.inputs)]
        else:
            found.append((value, user))
    return found


def _is_alone(value: ir.Value, node: ir.Node, match: Match) -> bool:
    """Whether one node of the same graph reads a value."""
    return len(value.uses()) == 1 and not value.is_graph_output() and node.graph is match.root.graph


def _branch(match: Match, terms: Sequence[tuple[ir.Value, ir.Node]], term: int) -> Iterator[_Branch]:
    """A term as a linear map of some value, where it is one."""
    value, _ = terms[term]
    node = value.producer()
    if node is None or not nodes.is_standard(node) or not _is_alone(value, node, match):
        return
    try:
        if node.op_type == "Conv":
            yield _convolution(match, node, term)
        elif node.op_type in ("Mul", "Div", "BatchNormalization"):
            yield _per_channel(match, node, term)
    except Refused:
        return


def _convolution(match: Match, node: ir.Node, term: int) -> _Branch:
    layer = layer_at(match, node)
    match.require(layer.bias is None or match.facts.is_constant(layer.bias), "the bias is computed")
    rank = len(layer.shape) - 2
    pads = nodes.ints_attribute(node, "pads", (0,) * (2 * rank))
    match.require(nodes.string_attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID"), "the padding is automatic")
    dilations = nodes.ints_attribute(node, "dilations", (1,) * rank)
    windows = zip(pads[:rank], dilations, layer.shape[2:], strict=True)
    axes = tuple(_Axis(-before, step, count) for before, step, count in windows)
    return _Branch(term, layer.data, layer, nodes.ints_attribute(node, "strides", (1,) * rank), axes)


def _per_channel(match: Match, node: ir.Node, term: int) -> _Branch:
    if node.op_type == "BatchNormalization":
        require_inference(match, node)
        data, scale, shift = nodes.given_input(node), *scale_and_shift(match, node)
    else:
        data, constant, swapped = constant_operand(match, node)
        shape = match.shape(data)
        channels = shape[1]
        match.require(isinstance(channels, int), "the number of channels is not known")
        assert isinstance(channels, int), "it is required"
        vector = per_channel(match, constant, 1 - len(shape), len(shape), channels)
        found, _ = as_scale_and_shift(match, node.op_type, vector, swapped)
        assert found is not None, "a product has a scale"
        scale, shift = found, np.zeros(1)
    rank = match.rank(data) - 2
    return _Branch(term, data, None, (1,) * rank, (_Axis(0, 1, 1),) * rank, scale, shift)


def _places(large: _Branch, small: _Branch) -> tuple[int, ...] | None:
    """Where the small window begins in the large one, along each axis; None where they cannot be one."""
    layer, other = large.layer, small.layer
    if layer is None or large.strides != small.strides:
        return None
    if other is None and layer.inputs != layer.outputs:
        return None
    if other is not None and (other.group != layer.group or other.shape[:2] != layer.shape[:2]):
        return None
    places = [one.place_of(two) for one, two in zip(large.axes, small.axes, strict=True)]
    return None if None in places else tuple(place for place in places if place is not None)


def _merged(
    match: Match, terms: Sequence[tuple[ir.Value, ir.Node]], large: _Branch, small: _Branch, places: tuple[int, ...]
) -> ir.Value:
    """The sum with one term less: the two branches as one convolution."""
    layer = large.layer
    assert layer is not None, "the larger one is a convolution"
    size = int(np.prod(layer.shape))
    for one in (large, small):
        if one.layer is not None:
            weight = one.layer.weight
            others = len(weight.uses()) > 1 or weight.is_graph_output()
            match.require(not others or size <= COPY_LIMIT, f"'{weight.name}' is read elsewhere too")
    for _, user in terms:
        if user is not match.root and user not in match.binding.inner:
            match.binding.inner.append(user)
    for one in (large, small):
        claim(match, *terms[one.term])
    dtype = match.dtype(layer.weight)
    weight = match.constant(rounded(match, _weight(match, layer, small, places), dtype), dtype)
    added = _bias(match, large) + _bias(match, small)
    bias = match.constant(rounded(match, np.broadcast_to(added, (layer.outputs,)).copy(), dtype), dtype)
    total = match.op("Conv", large.data, weight, bias, like=layer.node)
    for term, (value, _) in enumerate(terms):
        if term not in (large.term, small.term):
            total = match.op("Add", value, total)
    return total


def _weight(match: Match, layer: Layer, small: _Branch, places: tuple[int, ...]) -> Array:
    """The sum of both weights, in float64."""
    found = np.array(match.array(layer.weight), np.float64)
    counts = [axis.count for axis in small.axes]
    window = [slice(place, place + count) for place, count in zip(places, counts, strict=True)]
    taps = found[(slice(None), slice(None), *window)]
    if small.layer is not None:
        taps += match.array(small.layer.weight)
        return found
    assert small.scale is not None, "numbers per channel"
    channels = np.arange(layer.outputs)
    taps[channels, channels % layer.shape[1]] += small.scale.reshape(-1, *(1,) * len(counts))
    return found


def _bias(match: Match, branch: _Branch) -> Array:
    """What a branch adds to each channel, in float64."""
    if branch.layer is None:
        return np.zeros(1) if branch.shift is None else branch.shift
    bias = branch.layer.bias
    return np.zeros(1) if bias is None else np.asarray(match.array(bias), np.float64)


RULES: tuple[Rule, ...] = (sum_of_branches,)
