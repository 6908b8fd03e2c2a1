"""A detector with SiLU and three heads, in the manner of YOLOv8: boxes in pixels beside scores below 1.

Convolutions hold their batch normalizations already, which that exporter sees to.
"""

from __future__ import annotations

import numpy as np
import onnx

from models.families.network import SILU, Network

SIZES: dict[str, int] = {}
EDGE = 96  # of the image, in pixels
CLASSES, BINS = 8, 16  # a side of a box is the mean of a distribution over bins
STRIDES = (8, 16, 32)
ANCHORS = sum((EDGE // stride) ** 2 for stride in STRIDES)


def build(seed: int) -> onnx.ModelProto:
    """Backbone, pyramid and heads on an image of 96 by 96."""
    net = Network("silu_detector", seed)
    x = net.input("images", [1, 3, EDGE, EDGE])
    x = _conv(net, _conv(net, x, 3, 16, 3, 2), 16, 32, 3, 2)
    x = _split_blocks(net, x, 32, 32)
    eighth = _split_blocks(net, _conv(net, x, 32, 48, 3, 2), 48, 48)
    sixteenth = _split_blocks(net, _conv(net, eighth, 48, 64, 3, 2), 64, 64)
    x = _pools(net, _split_blocks(net, _conv(net, sixteenth, 64, 96, 3, 2), 96, 96), 96)
    last = x
    x = sixteenth = _split_blocks(net, net.op("Concat", _twice(net, x), sixteenth, axis=1), 160, 64, short=False)
    eighth = _split_blocks(net, net.op("Concat", _twice(net, x), eighth, axis=1), 112, 48, short=False)
    x = net.op("Concat", _conv(net, eighth, 48, 48, 3, 2), sixteenth, axis=1)
    sixteenth = _split_blocks(net, x, 112, 64, short=False)
    x = net.op("Concat", _conv(net, sixteenth, 64, 64, 3, 2), last, axis=1)
    last = _split_blocks(net, x, 160, 96, short=False)
    heads = [_head(net, x, inner) for x, inner in ((eighth, 48), (sixteenth, 64), (last, 96))]
    x = net.op("Concat", *heads, axis=2)
    bins, scores = net.ops("Split", x, net.ints(4 * BINS, CLASSES), outputs=2, axis=1)
    x = net.op("Concat", _boxes(net, bins), net.op("Sigmoid", scores), axis=1)
    return net.model(output0=(x, [1, 4 + CLASSES, ANCHORS]))


def _conv(net: Network, x: str, inner: int, outer: int, kernel: int = 1, stride: int = 1) -> str:
    return net.silu(net.conv(x, inner, outer, kernel, stride, gain=SILU))


def _split_blocks(net: Network, x: str, inner: int, outer: int, *, short: bool = True) -> str:
    """C2f: half of the channels pass by, and all that the other half becomes is concatenated."""
    half = outer // 2
    parts = net.ops("Split", _conv(net, x, inner, outer), net.ints(half, half), outputs=2, axis=1)
    x = _conv(net, _conv(net, parts[-1], half, half, 3), half, half, 3)
    parts.append(net.op("Add", parts[-1], x) if short else x)
    return _conv(net, net.op("Concat", *parts, axis=1), 3 * half, outer)


def _pools(net: Network, x: str, channels: int) -> str:
    """SPPF: three pools, one behind the other, side by side."""
    parts = [_conv(net, x, channels, channels // 2)]
    for _ in range(3):
        parts.append(net.op("MaxPool", parts[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    return _conv(net, net.op("Concat", *parts, axis=1), 2 * channels, channels)


def _twice(net: Network, x: str) -> str:
    scales = net.small(np.array([1, 1, 2, 2], np.float32))
    return net.op(
        "Resize", x, "", scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )


def _head(net: Network, x: str, inner: int) -> str:
    """Distributions of four sides, and scores, for every place."""
    sides = net.conv(_conv(net, x, inner, 48, 3), 48, 4 * BINS)
    scores = net.conv(_conv(net, x, inner, 48, 3), 48, CLASSES)
    x = net.op("Concat", sides, scores, axis=1)
    return net.op("Reshape", x, net.ints(1, 4 * BINS + CLASSES, -1))


def _boxes(net: Network, x: str) -> str:
    """Centres and extents in pixels, from distances to the four sides."""
    x = net.op("Transpose", net.op("Reshape", x, net.ints(1, 4, BINS, ANCHORS)), perm=[0, 2, 1, 3])
    bins = net.tensor(np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1))
    x = net.op("Conv", net.op("Softmax", x, axis=1), bins, kernel_shape=[1, 1])
    x = net.op("Reshape", x, net.ints(1, 4, ANCHORS))
    near = net.op("Slice", x, net.ints(0), net.ints(2), net.ints(1))
    far = net.op("Slice", x, net.ints(2), net.ints(4), net.ints(1))
    centres = net.small(_centres()[None])
    low, high = net.op("Sub", centres, near), net.op("Add", centres, far)
    middle = net.op("Div", net.op("Add", low, high), net.number(2.0))
    boxes = net.op("Concat", middle, net.op("Sub", high, low), axis=1)
    pixels = [np.full((EDGE // stride) ** 2, stride, np.float32) for stride in STRIDES]
    return net.op("Mul", boxes, net.small(np.concatenate(pixels)[None]))


def _centres() -> np.ndarray:
    """[2, anchors], in cells."""
    grids = [np.meshgrid(*[np.arange(EDGE // stride, dtype=np.float32) + 0.5] * 2) for stride in STRIDES]
    return np.concatenate([np.stack([x.ravel(), y.ravel()]) for x, y in grids], axis=1)
