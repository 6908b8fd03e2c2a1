"""A graph in float64, node by node: quantization, products and convolutions in NumPy, the rest by ONNX's reference.

Integers stay integers and are summed in int64. What `given` has for a value takes the place of what was computed, so
that every region between two quantized tensors is evaluated from the same operands as in the run that `given` is of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]
Values = dict[str, Array]
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def evaluate(model: onnx.ModelProto, feed: Mapping[str, Array], given: Mapping[str, Array]) -> Values:
    """Every value that nodes of the main graph compute, before `given` takes its place for their readers.

    Raises NotImplementedError for operators that ONNX's reference does not have.
    """
    opsets = {one.domain: one.version for one in model.opset_import}
    known: Values = {one.name: _wide(numpy_helper.to_array(one)) for one in model.graph.initializer}
    known |= {name: _wide(np.asarray(array)) for name, array in feed.items()}
    computed: Values = {}
    for node in model.graph.node:
        operands = [known[name] if name else None for name in node.input]
        own = OPERATORS.get(node.op_type)
        results = _reference(node, operands, opsets) if own is None else own(node, operands)
        for name, result in zip(node.output, results, strict=False):
            computed[name] = result
            known[name] = given.get(name, result) if result.dtype.kind != "f" else _wide(given.get(name, result))
    return computed


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype in (np.float32, np.float16, ml_dtypes.bfloat16) else array


def _attribute(node: onnx.NodeProto, name: str, otherwise: Any) -> Any:
    return next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), otherwise)


def _reference(node: onnx.NodeProto, operands: Sequence[Array | None], opsets: dict[str, int]) -> Sequence[Array]:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for one in copy.attribute:
        if one.name == "to" and one.i in _FLOATS:
            one.i = TensorProto.DOUBLE
        if one.type == onnx.AttributeProto.GRAPH:
            raise NotImplementedError(f"{node.op_type} has a subgraph")
    feed = {name: one for name, one in zip(node.input, operands, strict=True) if name}
    given, results = ([onnx.ValueInfoProto(name=name) for name in names if name] for names in (feed, node.output))
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        alone = helper.make_model(helper.make_graph([copy], "alone", given, results), opset_imports=imports)
        found = ReferenceEvaluator(alone).run(None, feed)
    except Exception as error:  # its errors share no base class
        raise NotImplementedError(f"{node.op_type}: {str(error)[:100]}") from error
    return [_wide(np.asarray(one)) for one in found]


# -- quantization ---------------------------------------------------------------------------------------------------


def _along(node: onnx.NodeProto, number: Array, x: Array) -> Array:
    """A scale or zero point as it meets the elements of `x`."""
    block, axis = _attribute(node, "block_size", 0), _attribute(node, "axis", 1)
    if block:
        index = [slice(None)] * x.ndim
        index[axis] = slice(0, x.shape[axis])
        return number.repeat(block, axis)[tuple(index)]
    if number.size == 1:
        return number.reshape(())
    shape = [1] * x.ndim
    shape[axis] = number.size
    return number.reshape(shape)


def _rounded(value: Array, zero: Array, kind: np.dtype[Any]) -> Array:
    limits: Any = ml_dtypes.iinfo(kind)  # type: ignore[no-untyped-call]  # of integers shorter than a byte too
    whole: Array = np.nan_to_num(np.rint(value) + zero.astype(np.int64), nan=0.0)
    kept: Array = np.clip(whole, int(limits.min), int(limits.max)).astype(np.int64).astype(kind)
    return kept


def _quantize(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    x, scale, *rest = operands
    assert x is not None and scale is not None
    zero = rest[0] if rest else None
    named = _attribute(node, "output_dtype", 0)
    if zero is None:
        zero = np.zeros((), helper.tensor_dtype_to_np_dtype(named) if named else np.uint8)
    if zero.dtype.kind not in "iu" and "int" not in zero.dtype.name:
        raise NotImplementedError(f"QuantizeLinear to {zero.dtype}")
    return [_rounded(x / _along(node, scale, x), _along(node, zero, x), zero.dtype)]


def _dequantize(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    x, scale, *rest = operands
    assert x is not None and scale is not None
    wide = x.astype(np.int64)
    if rest and rest[0] is not None:
        wide = wide - _along(node, rest[0].astype(np.int64), x)
    return [wide * _along(node, scale, x)]


def _dynamic(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    (x,) = operands
    assert x is not None
    low, high = min(x.min(initial=0.0), 0.0), max(x.max(initial=0.0), 0.0)
    scale = np.float64((high - low) / 255 if high > low else 1.0)
    zero = np.asarray(np.clip(np.rint(-low / scale), 0, 255), np.uint8)
    return [_rounded(x / scale, zero, zero.dtype), np.asarray(scale), zero]


def _less(x: Array, zero: Array | None, shape: Sequence[int] = ()) -> Array:
    """An integer operand without its zero point, in int64."""
    wide = x.astype(np.int64)
    if zero is None:
        return wide
    return wide - (zero.astype(np.int64).reshape(shape or zero.shape) if zero.size > 1 else zero.item())


def _linear(total: Array, numbers: Sequence[Array], zero: Array, shape: Sequence[int] = ()) -> Array:
    """The sums of a QLinear operator in the scale of its result."""
    first, second, result, offset = (
        one.reshape(shape or one.shape) if one.size > 1 else one.reshape(()) for one in (*numbers, zero)
    )
    return _rounded(total * (first * second / result), offset, zero.dtype)


# -- products and convolutions ----------------------------------------------------------------------------------------


def _windows(node: onnx.NodeProto, x: Array, kernel: Sequence[int], fill: float) -> Array:
    """The windows of a padded image: (batch, channels, places..., taps...)."""
    rank = x.ndim - 2
    strides, dilations = (_attribute(node, name, [1] * rank) for name in ("strides", "dilations"))
    reach = [step * (taps - 1) + 1 for step, taps in zip(dilations, kernel, strict=True)]
    pads = list(_attribute(node, "pads", [0] * (2 * rank)))
    same = _attribute(node, "auto_pad", b"NOTSET").decode()
    if same.startswith("SAME"):
        totals = [
            max((-(-size // step) - 1) * step + taps - size, 0)
            for size, step, taps in zip(x.shape[2:], strides, reach, strict=True)
        ]
        small, large = [one // 2 for one in totals], [one - one // 2 for one in totals]
        pads = small + large if same == "SAME_UPPER" else large + small
    if _attribute(node, "ceil_mode", 0):  # windows that begin behind the image are none
        for at, (size, step, taps) in enumerate(zip(x.shape[2:], strides, reach, strict=True)):
            count = -(-(size + pads[at] + pads[rank + at] - taps) // step) + 1
            count -= (count - 1) * step >= size + pads[at]
            pads[rank + at] = max(pads[rank + at], (count - 1) * step + taps - size - pads[at])
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=fill)
    found = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(2, 2 + rank)))
    steps = [slice(None), slice(None), *(slice(None, None, one) for one in (*strides, *dilations))]
    return found[tuple(steps)]


def convolved(node: onnx.NodeProto, x: Array, weights: Array) -> Array:
    """The sums of a convolution in float64, which is exact for those of bytes; no bias."""
    rank, groups = x.ndim - 2, _attribute(node, "group", 1)
    windows = _windows(node, x.astype(np.float64), weights.shape[2:], 0.0)
    outputs, channels = weights.shape[0] // groups, weights.shape[1]
    parts = []
    for group in range(groups):
        mine = windows[:, group * channels : (group + 1) * channels]
        taps = weights[group * outputs : (group + 1) * outputs].astype(np.float64)
        over = [1, *range(2 + rank, 2 + 2 * rank)]
        parts.append(np.moveaxis(np.tensordot(mine, taps, (over, list(range(1, 2 + rank)))), -1, 1))
    return np.concatenate(parts, axis=1)


def _channels(number: Array, rank: int) -> Array:
    return number.reshape(-1, *(1,) * rank)


def _conv(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    x, weights, *rest = operands
    assert x is not None and weights is not None
    total = convolved(node, x, weights)
    return [total + _channels(rest[0], x.ndim - 2) if rest and rest[0] is not None else total]


def _conv_integer(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    x, weights, x_zero, w_zero = (*operands, None, None)[:4]
    assert x is not None and weights is not None
    total = convolved(node, _less(x, x_zero), _less(weights, w_zero, (-1, *(1,) * (x.ndim - 1))))
    return [total.astype(np.int64).astype(np.int32)]


def _qlinear_conv(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    x, x_scale, x_zero, weights, w_scale, w_zero, y_scale, y_zero, bias = (*operands, None)[:9]
    assert x is not None and weights is not None and y_zero is not None
    assert x_scale is not None and w_scale is not None and y_scale is not None
    rank = x.ndim - 2
    total = convolved(node, _less(x, x_zero), _less(weights, w_zero, (-1, *(1,) * (rank + 1))))
    total = total if bias is None else total + _channels(bias, rank)
    return [_linear(total, (x_scale, w_scale, y_scale), y_zero, (-1, *(1,) * rank))]


def _matmul_integer(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    a, b, a_zero, b_zero = (*operands, None, None)[:4]
    assert a is not None and b is not None
    found = _less(a, a_zero, (-1, 1)).astype(np.float64) @ _less(b, b_zero).astype(np.float64)
    return [found.astype(np.int64).astype(np.int32)]


def _qlinear_matmul(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
    assert a is not None and b is not None and y_zero is not None
    assert a_scale is not None and b_scale is not None and y_scale is not None
    total = _less(a, a_zero, (-1, 1)).astype(np.float64) @ _less(b, b_zero).astype(np.float64)
    return [_linear(total, (a_scale, b_scale, y_scale), y_zero)]


def _max_pool(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    (x,) = operands
    assert x is not None
    rank = x.ndim - 2
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    windows = _windows(node, x, _attribute(node, "kernel_shape", ()), low)
    return [windows.max(axis=tuple(range(2 + rank, 2 + 2 * rank)))]


def _average(node: onnx.NodeProto, operands: Sequence[Array | None]) -> list[Array]:
    (x,) = operands
    assert x is not None
    return [x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)]


OPERATORS: Mapping[str, Callable[[onnx.NodeProto, Sequence[Array | None]], list[Array]]] = {
    "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize, "DynamicQuantizeLinear": _dynamic,
    "Conv": _conv, "ConvInteger": _conv_integer, "QLinearConv": _qlinear_conv,
    "MatMulInteger": _matmul_integer, "QLinearMatMul": _qlinear_matmul,
    "MaxPool": _max_pool, "GlobalAveragePool": _average,
}  # fmt: skip
