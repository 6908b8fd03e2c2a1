"""Networks of any depth, as they are before training: what sublinear memory is shown on.

Residual ones: He et al., "Identity Mappings in Deep Residual Networks", 2016, for small images: three stages of 16, 32
and 64 channels, in which a normalization and a ReLU stand before each convolution. Chen et al., "Training Deep Nets
with Sublinear Memory Cost", 2016, trains such a network of 1,000 layers.
"""

from __future__ import annotations

import numpy as np
import onnx

from models.families.network import RELU, Network

CHANNELS = (16, 32, 64)
EDGE, CLASSES = 32, 10
LEAST_DEPTH = 8


def depths(most: int, least: int = 50, count: int = 6) -> list[int]:
    """So many depths from the least to the most at equal ratios, as near as blocks allow."""
    return sorted({_blocks(round(one)) * 6 + 2 for one in np.geomspace(least, most, count)})


def build(depth: int, batch: int = 2, seed: int = 0) -> onnx.ModelProto:
    """A network of `depth` layers that have weights, rounded to blocks of two convolutions in three equal stages."""
    net = Network(f"residual_{depth}", seed)
    x, inner = net.conv(net.input("image", [batch, 3, EDGE, EDGE]), 3, CHANNELS[0], 3, bias=False), CHANNELS[0]
    for stage, outer in enumerate(CHANNELS):
        for block in range(_blocks(depth)):
            stride = 2 if stage and not block else 1
            ready = _ready(net, x, inner)
            short = x if inner == outer else net.conv(ready, inner, outer, 1, stride, bias=False)
            wide = net.conv(ready, inner, outer, 3, stride, bias=False)
            x = net.op("Add", net.conv(_ready(net, wide, outer), outer, outer, 3, bias=False), short)
            inner = outer
    x = net.op("Flatten", net.op("GlobalAveragePool", _ready(net, x, inner)), axis=1)
    return net.model(logits=(net.gemm(x, inner, CLASSES, RELU / 2), [batch, CLASSES]))


def perceptron(depth: int, batch: int, width: int, seed: int = 0) -> onnx.ModelProto:
    """A classifier of `depth` layers, all hidden ones of one width behind ReLUs."""
    net = Network(f"perceptron_{depth}", seed)
    x = net.input("x", [batch, width])
    for _ in range(depth - 1):
        x = net.op("Relu", net.gemm(x, width, width))
    return net.model(logits=(net.gemm(x, width, CLASSES, 1.0), [batch, CLASSES]))


def _blocks(depth: int) -> int:
    return max(1, (depth - 2) // 6)


def _ready(net: Network, x: str, width: int) -> str:
    numbers = [net.tensor(np.full(width, one, np.float32)) for one in (1, 0, 0, 1)]
    return net.op("Relu", net.op("BatchNormalization", x, *numbers, epsilon=1e-5, momentum=0.9))
