"""Layers in QDQ form that ONNX Runtime does not turn into their quantized operators."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.fusion.private import made_by
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

NEAR = 1e-5  # relative; scales that are products agree to a rounding


@any_node("Conv", level=2)
def bias_of_other_scale(match: Match) -> Replacement:
    """Conv(DequantizeLinear(x, s), DequantizeLinear(W, t), DequantizeLinear(b, u)), u != s t  -->  Conv(..., b * u)

    The bias is written out, bit for bit what the operator would compute. ONNX Runtime then quantizes it with s t and
    the Conv runs on integers; with another scale it computes the whole Conv in float (resnet18_qdq: 1.9 times faster).
    Leaves alone biases whose scale is the product.
    """
    scales = []
    for index in (0, 1, 2):
        source = nodes.input_at(match.root, index)
        dequantize = made_by(source, "DequantizeLinear")
        scale = None if dequantize is None else dequantize.inputs[1]
        if scale is None:
            match.refuse("not everything it reads is dequantized")
        scales.append(match.array(scale))
    bias = match.root.inputs[2]
    dequantize = made_by(bias, "DequantizeLinear")
    assert dequantize is not None and bias is not None, "required just now"
    number = nodes.given_input(dequantize)
    match.require(match.dtype(number) == ir.DataType.INT32, "the bias is no int32")
    match.require(match.dtype(bias) == ir.DataType.FLOAT, "the bias is no float")
    zero = nodes.input_at(dequantize, 2)
    match.require(zero is None or not match.array(zero).any(), "the bias has a zero point")
    match.require(scales[0].size == 1, "the input has more than one scale")
    sizes = (1, match.array(number).size)
    match.require(scales[1].size in sizes and scales[2].size in sizes, "weights or bias are quantized in blocks")
    product = scales[0].reshape(-1).astype(np.float64) * scales[1].reshape(-1).astype(np.float64)
    match.require(not np.allclose(product, scales[2].reshape(-1), rtol=NEAR, atol=0), "its scale is the product")
    written = match.array(number).astype(np.float32) * scales[2].reshape(-1).astype(np.float32)
    operands = [*match.root.inputs[:2], match.constant(written, ir.DataType.FLOAT)]
    return match.op("Conv", *operands, like=match.root)


RULES: tuple[Rule, ...] = (bias_of_other_scale,)
