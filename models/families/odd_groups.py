"""Convolutions with 55 groups of 8 channels, in the manner of RegNet (Radosavovic et al., 2020): no power of two."""

from __future__ import annotations

import onnx

from models.families.network import Network

SIZES = {"batch": 1}
GROUPS, WIDTH = 55, 440


def build(seed: int) -> onnx.ModelProto:
    """A stem and two residual blocks on an image of 28 by 28."""
    net = Network("odd_groups", seed)
    x = net.input("image", ["batch", 3, 28, 28])
    x = net.op("Relu", net.conv_norm(x, 3, 32, 3, 2))
    x = _block(net, x, 32, 2)
    x = _block(net, x, WIDTH, 1)
    x = net.gemm(net.op("Flatten", net.op("GlobalAveragePool", x), axis=1), WIDTH, 10)
    return net.model(logits=(x, ["batch", 10]))


def _block(net: Network, x: str, inner: int, stride: int) -> str:
    short = x if inner == WIDTH else net.conv_norm(x, inner, WIDTH, 1, stride)
    x = net.op("Relu", net.conv_norm(x, inner, WIDTH))
    x = net.op("Relu", net.conv_norm(x, WIDTH, WIDTH, 3, stride, groups=GROUPS))
    return net.op("Relu", net.op("Add", net.conv_norm(x, WIDTH, WIDTH), short))
