"""A decoder that reads a cache of keys and values and gives the longer one back, in the manner of GPT-2."""

from __future__ import annotations

import numpy as np
import onnx

from models.families.network import Network

SIZES = {"batch": 1, "seq": 4, "past": 12}
VOCABULARY, LONGEST, WIDTH, HEADS, LAYERS = 400, 64, 96, 3, 2
HEAD = WIDTH // HEADS


def build(seed: int) -> onnx.ModelProto:
    """Two layers behind a table of words that is also the last product."""
    net = Network("cached_decoder", seed)
    ids = net.input("input_ids", ["batch", "seq"], np.int64)
    cache: list[int | str] = ["batch", HEADS, "past", HEAD]
    pasts = [[net.input(f"past_{kind}_{layer}", cache) for kind in ("key", "value")] for layer in range(LAYERS)]
    past, fresh = _dim(net, pasts[0][0], 2), _dim(net, ids, 1)
    whole = net.op("Add", past, fresh)
    words = net.normal([VOCABULARY, WIDTH], 0.1)
    places = net.op("Range", _scalar(net, past), _scalar(net, whole), net.small(np.array(1, np.int64)))
    x = net.op("Add", net.op("Gather", words, ids), net.op("Gather", net.normal([LONGEST, WIDTH], 0.1), places))
    mask = _causal(net, past, whole)
    given: dict[str, tuple[str, list[int | str]]] = {}
    for layer, (key, value) in enumerate(pasts):
        attended, key, value = _attention(net, net.layer_norm(x, WIDTH), key, value, mask)
        x = net.op("Add", x, attended)
        inner = _gelu(net, net.linear(net.layer_norm(x, WIDTH), WIDTH, 4 * WIDTH))
        x = net.op("Add", x, net.linear(inner, 4 * WIDTH, WIDTH))
        longer: list[int | str] = ["batch", HEADS, "past + seq", HEAD]
        given |= {f"present_key_{layer}": (key, longer), f"present_value_{layer}": (value, longer)}
    x = net.op("MatMul", net.layer_norm(x, WIDTH), net.op("Transpose", words, perm=[1, 0]))
    return net.model(logits=(x, ["batch", "seq", VOCABULARY]), **given)


def _dim(net: Network, x: str, dim: int) -> str:
    """One dim as a vector of one element."""
    return net.op("Slice", net.op("Shape", x), net.ints(dim), net.ints(dim + 1))


def _scalar(net: Network, x: str) -> str:
    return net.op("Squeeze", x, net.ints(0))


def _causal(net: Network, past: str, whole: str) -> str:
    """The last rows of a lower triangle: true where a new place may look."""
    square = net.op("Concat", whole, whole, axis=0)
    ones = net.op("ConstantOfShape", square, value=onnx.numpy_helper.from_array(np.ones(1, np.float32)))
    lower = net.op("Cast", net.op("Trilu", ones, upper=0), to=onnx.TensorProto.BOOL)
    return net.op("Slice", lower, past, whole, net.ints(0))


def _attention(net: Network, x: str, key: str, value: str, mask: str) -> tuple[str, str, str]:
    parts = net.ops("Split", net.linear(x, WIDTH, 3 * WIDTH), net.ints(WIDTH, WIDTH, WIDTH), outputs=3, axis=2)
    query, new_key, new_value = (net.heads(part, HEADS, HEAD) for part in parts)
    key, value = net.op("Concat", key, new_key, axis=2), net.op("Concat", value, new_value, axis=2)
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = net.op("Div", scores, net.number(HEAD**0.5))
    scores = net.op("Where", mask, scores, net.number(-3.4028234663852886e38))
    x = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
    return net.linear(net.op("Reshape", x, net.ints(0, 0, WIDTH)), WIDTH, WIDTH), key, value


def _gelu(net: Network, x: str) -> str:
    """The one by a hyperbolic tangent, written out."""
    cube = net.op("Mul", net.op("Pow", x, net.number(3.0)), net.number(0.044715))
    tanh = net.op("Tanh", net.op("Mul", net.op("Add", x, cube), net.number((2 / np.pi) ** 0.5)))
    return net.op("Mul", net.op("Mul", x, net.number(0.5)), net.op("Add", tanh, net.number(1.0)))
