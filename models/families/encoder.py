"""A masked encoder in the manner of BERT, exported with TorchScript: the mask becomes huge negative numbers.

In float16 the layer normalizations compute in float32 between Casts.
"""

from __future__ import annotations

import numpy as np
import onnx

from models.families.network import Network

SIZES = {"batch": 1, "seq": 24}
VOCABULARY, LONGEST, WIDTH, HEADS, LAYERS = 500, 64, 96, 3, 2
LEAST = {np.float32: -3.4028234663852886e38, np.float16: -65504.0}  # of the numbers of a type
TENTHOUSAND = -10000.0  # what older exports add


def build(seed: int) -> onnx.ModelProto:
    """Two layers; masked scores are moved by the least float32."""
    return _encoder(Network("masked_encoder", seed, opset=14, legacy=True), LEAST[np.float32])


def build_older(seed: int) -> onnx.ModelProto:
    """The same; masked scores are moved by -10000."""
    return _encoder(Network("masked_encoder_10000", seed, opset=14, legacy=True), TENTHOUSAND)


def build_half(seed: int) -> onnx.ModelProto:
    """The same in float16."""
    return _encoder(Network("masked_encoder_fp16", seed, opset=14, dtype=np.float16, legacy=True), LEAST[np.float16])


def _encoder(net: Network, shut: float) -> onnx.ModelProto:
    ids = net.input("input_ids", ["batch", "seq"], np.int64)
    mask = net.input("attention_mask", ["batch", "seq"], np.int64)
    mask = net.op("Unsqueeze", net.op("Unsqueeze", mask, net.ints(1)), net.ints(2))
    mask = net.op("Cast", mask, to=_type(net.dtype))
    mask = net.op("Mul", net.op("Sub", net.number(1.0), mask), net.number(shut))
    words = net.op("Gather", net.normal([VOCABULARY, WIDTH], 0.5), ids)
    length = net.op("Gather", net.op("Shape", ids), net.small(np.array(1, np.int64)), axis=0)
    places = net.op(
        "Slice", net.small(np.arange(LONGEST)[None]), net.ints(0),
        net.op("Unsqueeze", length, net.ints(0)), net.ints(1), net.ints(1),
    )  # fmt: skip
    x = _norm(net, net.op("Add", words, net.op("Gather", net.normal([LONGEST, WIDTH], 0.5), places)))
    for _ in range(LAYERS):
        x = _norm(net, net.op("Add", _attention(net, x, mask), x))
        inner = net.gelu(net.linear(x, WIDTH, 4 * WIDTH))
        x = _norm(net, net.op("Add", net.linear(inner, 4 * WIDTH, WIDTH, 2.0), x))
    first = net.op("Gather", x, net.small(np.array(0, np.int64)), axis=1)
    pooled = net.op("Tanh", net.gemm(first, WIDTH, WIDTH, 1.0))
    return net.model(hidden=(x, ["batch", "seq", WIDTH]), pooled=(pooled, ["batch", WIDTH]))


def _attention(net: Network, x: str, mask: str) -> str:
    width = WIDTH // HEADS
    query = net.heads(net.linear(x, WIDTH, WIDTH, 2.0), HEADS, width)
    key = net.heads(net.linear(x, WIDTH, WIDTH, 2.0), HEADS, width, (0, 2, 3, 1))
    value = net.heads(net.linear(x, WIDTH, WIDTH), HEADS, width)
    scores = net.op("Div", net.op("MatMul", query, key), net.number(width**0.5))
    shares = net.op("Softmax", net.op("Add", scores, mask), axis=-1)
    x = net.op("Transpose", net.op("MatMul", shares, value), perm=[0, 2, 1, 3])
    return net.linear(net.op("Reshape", x, net.ints(0, 0, WIDTH)), WIDTH, WIDTH)


def _norm(net: Network, x: str) -> str:
    """Layer normalization written out; its scale and shift are of the network's type."""
    half = net.dtype is np.float16
    x = net.op("Cast", x, to=onnx.TensorProto.FLOAT) if half else x
    centred = net.op("Sub", x, net.op("ReduceMean", x, axes=[-1]))
    square = net.op("Pow", centred, net.small(np.array(2, np.float32)))
    spread = net.op("Add", net.op("ReduceMean", square, axes=[-1]), net.small(np.array(1e-5, np.float32)))
    x = net.op("Div", centred, net.op("Sqrt", spread))
    x = net.op("Cast", x, to=_type(net.dtype)) if half else x
    x = net.op("Mul", x, net.normal([WIDTH], 0.2, 1.0))
    return net.op("Add", x, net.normal([WIDTH], 0.1))


def _type(dtype: type) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
