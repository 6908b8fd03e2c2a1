"""Rebuilding a linear layer with other numbers.

For such a layer `scale * layer(x) + shift` and `layer(scale * x + shift)`, with one number per channel, are the same
layer with other weights. All arithmetic is done in float64 and rounded once. Weights that are one repeated value
(splats) stay so; where they could not, the fold is refused, since it would write out what the file does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.constants import Array
from graphopt.passes.weights.layer import Layer, may_be_gemm, uniform
from graphopt.rewrite.rule import Match

# A weight that others read too, or that is a splat, is copied up to this size; above it the file would grow.
COPY_LIMIT = 4096  # elements
LARGE = 1 << 16  # elements; from here on a weight is multiplied when it is needed
BLOCK = 1 << 15  # elements that are computed at once


def with_outputs(match: Match, layer: Layer, scale: Array | None, shift: Array | None) -> ir.Value:
    """scale * layer(x) + shift as one layer, with numbers per output channel."""
    _require_bias(match, layer, shift)
    bias = _bias(match, layer)
    if bias is not None and scale is not None:
        bias = _combined(match, layer, bias, scale, np.multiply)
    if shift is not None:
        if bias is None:
            bias = _at_axis(layer, shift)
        else:
            bias = _combined(match, layer, bias, shift, np.add)
    weight = layer.weight if scale is None else _multiplied(match, layer, _over_weight(layer, scale, of_inputs=False))
    return _rebuild(match, layer, layer.data, weight, bias)


def with_inputs(match: Match, layer: Layer, data: ir.Value, scale: Array | None, shift: Array | None) -> ir.Value:
    """layer(scale * data + shift) as one layer of `data`, with numbers per input channel."""
    _require_bias(match, layer, shift)
    bias = _bias(match, layer) if shift is not None else None
    if shift is not None:
        moved = shift_through(match, layer, shift)
        if bias is None:
            bias = _at_axis(layer, moved)
        else:
            bias = _combined(match, layer, bias, moved, np.add)
    weight = layer.weight if scale is None else _multiplied(match, layer, _over_weight(layer, scale, of_inputs=True))
    return _rebuild(match, layer, data, weight, bias)


def _require_bias(match: Match, layer: Layer, shift: Array | None) -> None:
    """Refuse a shift where the layer has no bias to hold it; said before any weight is read."""
    if shift is not None and layer.kind == "MatMul" and layer.added is None:
        match.require(may_be_gemm(match, layer.node), "a MatMul of more than two dims has no bias to fold into")


def _bias(match: Match, layer: Layer) -> Array | None:
    """The constant added to the product, in float64 (`beta` of a Gemm applied); None where there is none."""
    if layer.bias is None:
        return None
    match.require(match.facts.is_constant(layer.bias), f"the bias of {nodes.describe(layer.node)} is not a constant")
    beta = nodes.float_attribute(layer.node, "beta", 1.0) if layer.kind == "Gemm" else 1.0
    return constants.elementwise(lambda array: array.astype(np.float64) * beta, match.array(layer.bias))


def _at_axis(layer: Layer, vector: Array) -> Array:
    """Numbers per output channel, shaped to broadcast over the layer's bias."""
    if layer.is_convolution:
        return constants.splat(vector[0], (layer.outputs,)) if vector.size == 1 else vector
    return vector.reshape(-1, 1) if layer.output_axis == -2 and vector.size > 1 else vector


def _combined(match: Match, layer: Layer, bias: Array, vector: Array, how: Callable[[Array, Array], Array]) -> Array:
    other = vector if layer.is_convolution else _at_axis(layer, vector)
    result = constants.elementwise(how, bias, other)
    match.require(
        constants.is_splat(result) or result.size <= max(bias.size, other.size, COPY_LIMIT),
        "the folded bias would be larger than the two it replaces",
    )
    return result


def _rebuild(match: Match, layer: Layer, data: ir.Value, weight: ir.Value, bias: Array | None) -> ir.Value:
    """The layer with other operands; no bias keeps what is there. A `bias` comes with `beta` applied."""
    dtype = match.dtype(layer.weight)
    added = layer.bias
    if bias is not None:
        added = match.constant(rounded(match, bias, dtype), dtype)
    becomes_gemm = bias is not None and layer.kind == "MatMul" and layer.added is None
    operands = (weight, data) if layer.side == 0 else (data, weight)
    if becomes_gemm:
        result = match.op("Gemm", *operands, added)
    elif layer.kind == "MatMul":
        result = match.op("MatMul", *operands, like=layer.node)
        if layer.added is not None:
            result = match.op("Add", result, added)
    elif layer.kind == "Gemm":
        beta = {} if bias is None else {"beta": None}  # applied already
        result = match.op("Gemm", *operands, added, like=layer.node, attributes=beta)
    else:
        result = match.op(layer.kind, *operands, added, like=layer.node)
    if match.facts.shape(layer.value) is not None:
        match.facts.set_known(result, match.facts.known(layer.value))
    return result


def _over_weight(layer: Layer, vector: Array, of_inputs: bool) -> Array:
    """The numbers of input or output channels, shaped so that they broadcast over the weight."""
    if vector.size == 1:
        return vector.reshape(())
    tail = (1,) * (len(layer.shape) - 2)
    if layer.is_convolution:
        # [M, C/group, k...] for Conv, [C, M/group, k...] for ConvTranspose: the first axis runs over all channels, the
        # second over those of one group.
        if of_inputs == (layer.kind == "ConvTranspose"):
            return vector.reshape(-1, 1, *tail)
        first, second = layer.shape[:2]
        grouped = np.broadcast_to(vector.reshape(layer.group, 1, second), (layer.group, first // layer.group, second))
        return grouped.reshape(first, second, *tail)
    if layer.kind == "Gemm":
        return vector.reshape(-1, 1) if layer.turned != of_inputs else vector.reshape(1, -1)
    if len(layer.shape) == 1:
        return vector
    on_rows = of_inputs == (layer.side == 1)
    return vector.reshape(-1, 1) if on_rows else vector


def _multiplied(match: Match, layer: Layer, factor: Array) -> ir.Value:
    """The weight times `factor` (float64, broadcasting), rounded once to the weight's type.

    A large weight is multiplied when it is first needed: for verification, or when the model is saved.
    """
    size = math.prod(layer.shape)
    dtype = match.dtype(layer.weight)
    tensor = match.readable(layer.weight)
    is_splat = tensor is None
    others = layer.weight.is_graph_output() or any(user is not layer.node for user in layer.weight.consumers())
    match.require(
        not others or is_splat or size <= COPY_LIMIT,
        f"'{layer.weight.name}' ({size} elements) is read elsewhere too, and a copy would make the file grow",
    )
    match.require(
        not is_splat or factor.size == 1 or size <= COPY_LIMIT,
        f"'{layer.weight.name}' is one number repeated {size} times and would have to be written out",
    )
    if tensor is not None and size > LARGE and dtype == ir.DataType.FLOAT:
        return match.deferred(layer.shape, dtype, lambda: _times(tensor.numpy(), factor))
    weight = match.array(layer.weight)
    with np.errstate(over="ignore"):
        result = constants.elementwise(_times, weight, factor)
    if size <= COPY_LIMIT or weight.dtype.itemsize < 4:
        fits = np.isfinite(_stored(result).astype(np.float64)).all()
        match.require(fits, f"the folded weight does not fit {dtype.name}")
    if weight.dtype == np.float16:
        _require_normal(match, result)
    return match.constant(result, dtype)


def _times(left: Array, right: Array) -> Array:
    """The product of a weight and float64 factors, rounded once."""
    if left.dtype == np.float32 and left.ndim:
        narrow = right.astype(np.float32)
        if (narrow == right).all():
            return np.asarray(left * narrow)  # the product of two floats is rounded once as it is
        if right.ndim == 0 or right.shape[0] == 1 or right.ndim < left.ndim:
            # Block by block: a copy of a large weight in float64 would not stay in the cache.
            result = np.empty(left.shape, np.float32)
            step = max(1, BLOCK // max(math.prod(left.shape[1:]), 1))
            for start in range(0, left.shape[0], step):
                rows = slice(start, start + step)
                result[rows] = left[rows].astype(np.float64) * right
            return result
    return np.asarray(left.astype(np.float64) * right).astype(left.dtype)


def _require_normal(match: Match, weight: Array) -> None:
    """Refuse a float16 weight that has become so small that its digits are lost."""
    largest = float(np.abs(_stored(weight).astype(np.float64)).max())
    match.require(largest == 0 or largest >= 2.0**-10, "the folded weight is too small for FLOAT16")


def rounded(match: Match, array: Array, dtype: ir.DataType) -> Array:
    """Float64 numbers rounded to `dtype`; refuses those that do not fit."""
    target = dtype.numpy()
    with np.errstate(over="ignore"):
        result = constants.elementwise(lambda numbers: numbers.astype(target), array)
    match.require(np.isfinite(_stored(result).astype(np.float64)).all(), f"a folded number does not fit {dtype.name}")
    return result


def _stored(array: Array) -> Array:
    """The array itself, or the one number of a splat."""
    return np.asarray(array[(0,) * array.ndim]) if constants.is_splat(array) else array


def shift_through(match: Match, layer: Layer, shift: Array) -> Array:
    """What a shift of the input channels adds to each output channel: `layer(shift)` without its bias."""
    weight = match.array(layer.weight)
    match.require(layer.kind != "ConvTranspose", "a ConvTranspose does not apply all its weights at the border")
    match.require(len(layer.shape) == 2 or layer.kind == "Conv", "the weight is no matrix")
    if layer.kind == "Conv":
        first, second, *kernel = layer.shape
        if constants.is_splat(weight):
            sums: Array = np.full((first, second), float(_stored(weight)) * math.prod(kernel))
        else:
            sums = weight.reshape(first, second, -1).sum(axis=2, dtype=np.float64)
        of_group = np.broadcast_to(shift, (layer.inputs,)).reshape(layer.group, 1, second)
        of_all = np.broadcast_to(of_group, (layer.group, first // layer.group, second)).reshape(first, second)
        return uniform(match, (sums * of_all).sum(axis=1))
    full = np.broadcast_to(shift, (layer.inputs,))
    if constants.is_splat(weight):
        moved: Array = np.full(1, float(_stored(weight)) * full.sum())
    elif layer.turned or layer.side == 0:
        moved = weight.astype(np.float64) @ full
    else:
        moved = full @ weight.astype(np.float64)
    return uniform(match, moved * nodes.float_attribute(layer.node, "alpha", 1.0))
