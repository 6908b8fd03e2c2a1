"""A mobile network with squeeze-and-excitation, in the manner of MobileNetV3 (Howard et al., 2019).

As trained and exported: batch normalizations stay, and x * relu6(x + 3) / 6 is written out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx

from models.families.network import Network

SIZES = {"batch": 1}
CLASSES = 100
Gate = Literal["HardSigmoid", "Sigmoid"]


@dataclass(frozen=True, slots=True)
class Block:
    """One inverted residual."""

    kernel: int
    wide: int
    outer: int
    stride: int
    swish: bool
    gate: Gate | None = None


BLOCKS = (
    Block(3, 16, 16, 2, False, "HardSigmoid"),
    Block(3, 72, 24, 2, False),
    Block(3, 88, 24, 1, False),
    Block(5, 96, 40, 2, True, "HardSigmoid"),
    Block(5, 240, 40, 1, True, "Sigmoid"),
    Block(5, 120, 48, 1, True, "HardSigmoid"),
    Block(5, 144, 48, 1, True, "Sigmoid"),
)


def build(seed: int) -> onnx.ModelProto:
    """Seven inverted residuals on an image of 64 by 64."""
    net = Network("squeeze_excite", seed)
    x = net.input("image", ["batch", 3, 64, 64])
    x, channels = _hard_swish(net, net.conv_norm(x, 3, 16, 3, 2)), 16
    for block in BLOCKS:
        x, channels = _inverted_residual(net, x, channels, block), block.outer
    x = _hard_swish(net, net.conv_norm(x, channels, 192))
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    x = net.gemm(_hard_swish(net, net.gemm(x, 192, 256)), 256, CLASSES)
    return net.model(logits=(x, ["batch", CLASSES]))


def _inverted_residual(net: Network, x: str, inner: int, block: Block) -> str:
    short = x

    def active(x: str) -> str:
        return _hard_swish(net, x) if block.swish else net.op("Relu", x)

    if block.wide != inner:
        x = active(net.conv_norm(x, inner, block.wide))
    x = active(net.conv_norm(x, block.wide, block.wide, block.kernel, block.stride, groups=block.wide))
    if block.gate is not None:
        x = _excited(net, x, block.wide, block.gate)
    x = net.conv_norm(x, block.wide, block.outer)
    return net.op("Add", x, short) if (block.stride, block.outer) == (1, inner) else x


def _excited(net: Network, x: str, channels: int, gate: Gate) -> str:
    """Channels scaled by what their means say."""
    if gate == "HardSigmoid":
        pooled = net.op("GlobalAveragePool", x)
    else:
        pooled = net.op("ReduceMean", x, axes=[2, 3], keepdims=1)
    narrow = max(8, channels // 4)
    inner = net.op("Relu", net.conv(pooled, channels, narrow))
    outer = net.conv(inner, narrow, channels)
    scale = net.op("HardSigmoid", outer, alpha=1 / 6) if gate == "HardSigmoid" else net.op("Sigmoid", outer)
    return net.op("Mul", scale, x)


def _hard_swish(net: Network, x: str) -> str:
    clipped = net.op("Clip", net.op("Add", x, net.number(3.0)), net.number(0.0), net.number(6.0))
    return net.op("Mul", x, net.op("Div", clipped, net.small(np.array(6.0, np.float32))))
