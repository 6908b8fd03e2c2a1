"""A U-Net with group normalization and a time embedding, in the manner of diffusion models.

Exporters write group normalization as an InstanceNormalization between Reshapes; from opset 21 on it is an operator.
"""

from __future__ import annotations

import numpy as np
import onnx

from models.families.network import SILU, Network

SIZES = {"batch": 1}
EDGE, GROUPS = 16, 8
NARROW, WIDE, TIME = 32, 64, 128  # channels, channels, numbers that say the time


def build(seed: int) -> onnx.ModelProto:
    """Group normalization as an InstanceNormalization between Reshapes."""
    return _unet(Network("diffusion_unet", seed))


def build_newer(seed: int) -> onnx.ModelProto:
    """Group normalization as an operator."""
    return _unet(Network("diffusion_unet_opset21", seed, opset=21))


def _unet(net: Network) -> onnx.ModelProto:
    sample = net.input("sample", ["batch", 4, EDGE, EDGE])
    time = _embedded(net, net.input("timestep", ["batch"], np.int64))
    x = outer = _residual(net, net.conv(sample, 4, NARROW, 3, gain=1.0), NARROW, NARROW, time)
    x = net.conv(x, NARROW, NARROW, 3, 2, gain=1.0)
    x = inner = _residual(net, x, NARROW, WIDE, time)
    x = net.conv(x, WIDE, WIDE, 3, 2, gain=1.0)
    x = _residual(net, x, WIDE, WIDE, time)
    x = _attention(net, x, EDGE // 4)
    x = _residual(net, x, WIDE, WIDE, time)
    x = net.op("Concat", net.conv(_twice(net, x), WIDE, WIDE, 3, gain=1.0), inner, axis=1)
    x = _residual(net, x, 2 * WIDE, WIDE, time)
    x = net.op("Concat", net.conv(_twice(net, x), WIDE, NARROW, 3, gain=1.0), outer, axis=1)
    x = _residual(net, x, 2 * NARROW, NARROW, time)
    x = net.conv(net.silu(_norm(net, x, NARROW)), NARROW, 4, 3, gain=1.0)
    return net.model(noise=(x, ["batch", 4, EDGE, EDGE]))


def _embedded(net: Network, time: str) -> str:
    """Sines and cosines of the time at many frequencies, through two layers."""
    rates = np.exp(-np.log(10000.0) * np.arange(16) / 16).astype(np.float32)
    time = net.op("Cast", net.op("Unsqueeze", time, net.ints(1)), to=onnx.TensorProto.FLOAT)
    angles = net.op("Mul", time, net.small(rates[None]))
    waves = net.op("Concat", net.op("Cos", angles), net.op("Sin", angles), axis=-1)
    return net.silu(net.gemm(net.silu(net.gemm(waves, 32, TIME)), TIME, TIME, SILU))


def _residual(net: Network, x: str, inner: int, outer: int, time: str) -> str:
    short = x if inner == outer else net.conv(x, inner, outer, gain=1.0)
    x = net.conv(net.silu(_norm(net, x, inner)), inner, outer, 3, gain=SILU)
    moved = net.op("Unsqueeze", net.gemm(time, TIME, outer, 1.0), net.ints(2, 3))
    x = net.silu(_norm(net, net.op("Add", x, moved), outer))
    return net.op("Add", net.conv(x, outer, outer, 3, gain=SILU), short)


def _norm(net: Network, x: str, channels: int) -> str:
    if net.opset >= 21:
        scale, shift = net.normal([channels], 0.2, 1.0), net.normal([channels], 0.1)
        return net.op("GroupNormalization", x, scale, shift, num_groups=GROUPS, epsilon=1e-5)
    ones, zeros = net.tensor(np.ones(GROUPS, np.float32)), net.tensor(np.zeros(GROUPS, np.float32))
    rows = net.op("Reshape", x, net.ints(0, GROUPS, -1))
    rows = net.op("InstanceNormalization", rows, ones, zeros, epsilon=1e-5)
    x = net.op("Mul", net.op("Reshape", rows, net.op("Shape", x)), net.normal([channels, 1, 1], 0.2, 1.0))
    return net.op("Add", x, net.normal([channels, 1, 1], 0.1))


def _attention(net: Network, x: str, edge: int) -> str:
    """Every place looks at every other, with one head."""
    rows = net.op("Reshape", _norm(net, x, WIDE), net.ints(0, WIDE, -1))
    rows = net.op("Transpose", rows, perm=[0, 2, 1])
    query, key, value = (net.linear(rows, WIDE, WIDE, gain) for gain in (2.0, 2.0, 1.0))
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 1]))
    shares = net.op("Softmax", net.op("Mul", scores, net.number(WIDE**-0.5)), axis=-1)
    rows = net.linear(net.op("MatMul", shares, value), WIDE, WIDE)
    image = net.op("Reshape", net.op("Transpose", rows, perm=[0, 2, 1]), net.ints(0, WIDE, edge, edge))
    return net.op("Add", image, x)


def _twice(net: Network, x: str) -> str:
    scales = net.small(np.array([1, 1, 2, 2], np.float32))
    return net.op(
        "Resize", x, "", scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )
