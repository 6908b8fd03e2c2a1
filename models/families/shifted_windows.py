"""Attention in windows, every second time in shifted ones, in the manner of Swin (Liu et al., 2021).

A shift is written with Slice and Concat; pairs that a shift brings into one window are masked with -100.
"""

from __future__ import annotations

import numpy as np
import onnx

from models.families.network import Network

SIZES: dict[str, int] = {}
EDGE, PATCH, WINDOW = 56, 4, 7  # pixels, pixels, patches
SHUT = -100.0


def build(seed: int) -> onnx.ModelProto:
    """Two blocks on 14 by 14 patches, merged, and one block on 7 by 7."""
    net = Network("shifted_windows", seed)
    x = net.input("image", [1, 3, EDGE, EDGE])
    edge, width = EDGE // PATCH, 96
    x = net.op(
        "Conv", x, net.normal([width, 3, PATCH, PATCH], 0.14), net.normal([width], 0.1),
        kernel_shape=[PATCH] * 2, strides=[PATCH] * 2,
    )  # fmt: skip
    x = net.op("Transpose", net.op("Reshape", x, net.ints(1, width, -1)), perm=[0, 2, 1])
    x = net.layer_norm(x, width)
    x = _block(net, x, edge, width, 0)
    x = _block(net, x, edge, width, WINDOW // 2)
    x, edge, width = _merged(net, x, edge, width), edge // 2, 2 * width
    x = net.layer_norm(_block(net, x, edge, width, 0), width)
    x = net.op("ReduceMean", x, axes=[1], keepdims=0)
    return net.model(logits=(net.gemm(x, width, 20, 1.0), [1, 20]))


def _block(net: Network, x: str, edge: int, width: int, shift: int) -> str:
    short = x
    x = net.op("Reshape", net.layer_norm(x, width), net.ints(1, edge, edge, width))
    x = _rolled(net, x, shift, edge) if shift else x
    count = edge // WINDOW
    x = net.op("Reshape", x, net.ints(1, count, WINDOW, count, WINDOW, width))
    x = net.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    x = _attention(net, net.op("Reshape", x, net.ints(-1, WINDOW**2, width)), edge, width, shift)
    x = net.op("Reshape", x, net.ints(1, count, count, WINDOW, WINDOW, width))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5]), net.ints(1, edge, edge, width))
    x = _rolled(net, x, edge - shift, edge) if shift else x
    x = net.op("Add", short, net.op("Reshape", x, net.ints(1, edge**2, width)))
    inner = net.gelu(net.linear(net.layer_norm(x, width), width, 4 * width))
    return net.op("Add", x, net.linear(inner, 4 * width, width, 2.0))


def _rolled(net: Network, x: str, shift: int, edge: int) -> str:
    """Rows and columns moved towards the origin by `shift`; what leaves comes in on the other side."""
    for axis in (1, 2):
        late = net.op("Slice", x, net.ints(shift), net.ints(edge), net.ints(axis))
        early = net.op("Slice", x, net.ints(0), net.ints(shift), net.ints(axis))
        x = net.op("Concat", late, early, axis=axis)
    return x


def _attention(net: Network, x: str, edge: int, width: int, shift: int) -> str:
    heads, places = width // 32, WINDOW**2
    x = net.op("Reshape", net.linear(x, width, 3 * width, 2.0), net.ints(-1, places, 3, heads, 32))
    x = net.op("Transpose", x, perm=[2, 0, 3, 1, 4])
    query, key, value = (net.op("Gather", x, net.small(np.array(part, np.int64)), axis=0) for part in range(3))
    query = net.op("Mul", query, net.number(32**-0.5))
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = net.op("Add", scores, net.normal([1, heads, places, places], 0.5))
    if shift:
        mask = net.small(_mask(edge, shift))
        windows = (edge // WINDOW) ** 2
        scores = net.op("Reshape", scores, net.ints(1, windows, heads, places, places))
        scores = net.op("Reshape", net.op("Add", scores, mask), net.ints(-1, heads, places, places))
    x = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3]), net.ints(-1, places, width))
    return net.linear(x, width, width)


def _mask(edge: int, shift: int) -> np.ndarray:
    """[1, windows, 1, places, places]: -100 between patches that were not neighbours before the shift."""
    bands = np.repeat([0, 1, 2], [edge - WINDOW, WINDOW - shift, shift])
    regions = bands[:, None] * 3 + bands[None]
    count = edge // WINDOW
    windows = regions.reshape(count, WINDOW, count, WINDOW).transpose(0, 2, 1, 3).reshape(-1, WINDOW**2)
    apart = windows[:, :, None] != windows[:, None, :]
    return np.where(apart, np.float32(SHUT), np.float32(0.0))[None, :, None]


def _merged(net: Network, x: str, edge: int, width: int) -> str:
    """Four neighbours as one patch of twice the width."""
    x = net.op("Reshape", x, net.ints(1, edge, edge, width))
    parts = [
        net.op("Slice", x, net.ints(row, column), net.ints(edge, edge), net.ints(1, 2), net.ints(2, 2))
        for column in range(2)
        for row in range(2)
    ]
    x = net.op("Reshape", net.op("Concat", *parts, axis=-1), net.ints(1, -1, 4 * width))
    return net.op("MatMul", net.layer_norm(x, 4 * width), net.normal([4 * width, 2 * width], (4 * width) ** -0.5))
