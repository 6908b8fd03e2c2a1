"""Stacks of convolution, relu and pooling in front of large products, in the manner of VGG (Simonyan, 2014)."""

from __future__ import annotations

import onnx

from models.families.network import Network

SIZES = {"batch": 1}
STAGES = (16, 32, 64)


def build(seed: int) -> onnx.ModelProto:
    """Three stacks on an image of 32 by 32, then 1024 numbers in two products."""
    net = Network("plain_stacks", seed)
    x, inner = net.input("image", ["batch", 3, 32, 32]), 3
    for channels in STAGES:
        for _ in range(2):
            x, inner = net.op("Relu", net.conv(x, inner, channels, 3)), channels
        x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x, inner = net.op("Flatten", x, axis=1), 16 * inner
    for _ in range(2):
        x, inner = net.op("Relu", net.gemm(x, inner, 512)), 512
    return net.model(logits=(net.gemm(x, inner, 10), ["batch", 10]))
