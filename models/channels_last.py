"""Convolutional networks as channels-last frameworks export them, each with its least number of Transposes.

tf2onnx and keras keep every tensor in [N, H, W, C] and put a Transpose in front of and behind each operator that the
ONNX standard defines for [N, C, H, W]. Between them stand biases, normalizations, activations, sums, concats, pads and
reductions over the axes of channels last. The weights are seeded and small.

The least number counts the Transposes that no optimizer can avoid without functions: one where an image comes in, one
where an image goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # to channels first, to channels last
Dims = Sequence[int | str]


@dataclass
class Writer:
    """Writes nodes as such an exporter does: values are names of [N, H, W, C] tensors."""

    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """One node; gives its first result, the others end in _1, _2 ..."""
        name = f"{kind}_{len(self.nodes)}"
        results = [name, *(f"{name}_{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), results, name=name, **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        """An initializer."""
        name = f"const_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def drawn(self, *shape: int, scale: float = 0.3) -> str:
        """A weight."""
        return self.constant((self.generator.standard_normal(shape) * scale).astype(np.float32))

    def number(self, value: float) -> str:
        """A float of rank 0."""
        return self.constant(np.array(value, np.float32))

    def ints(self, *numbers: int) -> str:
        """An int64 vector."""
        return self.constant(np.array(numbers, np.int64))

    # -- what an exporter writes for one layer ------------------------------------------------------------------------

    def first(self, x: str) -> str:
        """To channels first."""
        return self.op("Transpose", x, perm=FIRST)

    def last(self, x: str) -> str:
        """To channels last."""
        return self.op("Transpose", x, perm=LAST)

    def conv(self, x: str, given: int, wanted: int, kernel: int = 3, stride: int = 1, group: int = 1) -> str:
        """Convolution with padding SAME, without bias."""
        weight = self.drawn(wanted, given // group, kernel, kernel)
        y = self.op(
            "Conv", self.first(x), weight, auto_pad="SAME_UPPER", kernel_shape=[kernel] * 2, strides=[stride] * 2,
            dilations=[1, 1], group=group,
        )  # fmt: skip
        return self.last(y)

    def bias(self, x: str, channels: int) -> str:
        """A bias, added over the last axis."""
        return self.op("Add", x, self.drawn(channels))

    def norm(self, x: str, channels: int) -> str:
        """A batch normalization at inference: a factor and a summand for each channel, over the last axis."""
        scaled = self.op("Mul", x, self.constant(self.generator.uniform(0.5, 1.5, channels).astype(np.float32)))
        return self.op("Add", scaled, self.drawn(channels))

    def relu6(self, x: str) -> str:
        """Min(Max(x, 0), 6)"""
        return self.op("Min", self.op("Max", x, self.number(0.0)), self.number(6.0))

    def unit(self, x: str, given: int, wanted: int, kernel: int = 3, stride: int = 1) -> str:
        """Convolution, normalization, Relu."""
        return self.op("Relu", self.norm(self.conv(x, given, wanted, kernel, stride), wanted))

    def pool(self, x: str, kind: str = "MaxPool", size: int = 2, stride: int = 2) -> str:
        """A pool with padding SAME."""
        return self.last(
            self.op(kind, self.first(x), kernel_shape=[size] * 2, strides=[stride] * 2, auto_pad="SAME_UPPER")
        )

    def mean(self, x: str, keepdims: int = 0) -> str:
        """The mean over height and width."""
        return self.op("ReduceMean", x, axes=[1, 2], keepdims=keepdims)

    def dense(self, x: str, given: int, wanted: int) -> str:
        """A matrix and a bias."""
        return self.op("Add", self.op("MatMul", x, self.drawn(given, wanted)), self.drawn(wanted))

    def resize(self, x: str, factor: float = 2.0, mode: str = "linear") -> str:
        """Upsampling, which exporters do in channels first."""
        scales = self.constant(np.array([1, 1, factor, factor], np.float32))
        return self.last(self.op("Resize", self.first(x), "", scales, mode=mode, **_SAMPLING[mode]))

    def quantized(self, x: str, scale: float = 0.05) -> str:
        """QuantizeLinear and DequantizeLinear."""
        given = (self.number(scale), self.constant(np.array(0, np.int8).reshape(())))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *given), *given)

    def model(self, result: str, given: Dims, wanted: Dims) -> onnx.ModelProto:
        """The finished model, with the result called `output`."""
        self.nodes.append(helper.make_node("Identity", [result], ["output"], name="result"))
        graph = helper.make_graph(
            self.nodes, "channels_last",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, given)],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, wanted)], self.weights,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


_SAMPLING: dict[str, dict[str, Any]] = {
    "linear": {"coordinate_transformation_mode": "half_pixel"},
    "nearest": {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
}


def _plain(batch: int | str, side: int | str) -> onnx.ModelProto:
    w = Writer()
    x = w.op("Relu", w.bias(w.conv("input", 3, 8), 8))
    x = w.pool(w.op("Relu", w.bias(w.conv(x, 8, 12), 12)))
    x = w.op("LeakyRelu", w.norm(w.conv(x, 12, 16, 1), 16), alpha=0.1)
    x = w.op("Softmax", w.dense(w.mean(x), 16, 10), axis=-1)
    return w.model(x, [batch, side, side, 3], [batch, 10])


def _flattened(batch: int | str, side: int | str) -> onnx.ModelProto:
    w = Writer()
    x = w.pool(w.op("Relu", w.bias(w.conv("input", 3, 4), 4)), size=4, stride=4)
    x = w.op("Reshape", x, w.ints(-1, 64))
    return w.model(w.dense(x, 64, 10), [batch, side, side, 3], [batch, 10])


def _residual(batch: int | str, side: int | str) -> onnx.ModelProto:
    w = Writer()
    x = w.unit("input", 3, 8)
    for _ in range(2):
        y = w.norm(w.conv(w.unit(x, 8, 8), 8, 8), 8)
        x = w.op("Relu", w.op("Add", x, y))
    short = w.norm(w.conv(x, 8, 16, 1, 2), 16)
    y = w.norm(w.conv(w.unit(x, 8, 16, 3, 2), 16, 16), 16)
    x = w.op("Relu", w.op("Add", y, short))
    return w.model(w.dense(w.mean(x), 16, 10), [batch, side, side, 3], [batch, 10])


def _inception(batch: int | str, side: int | str) -> onnx.ModelProto:
    w = Writer()
    x = w.unit("input", 3, 8)
    for channels in (8, 20):
        branches = (
            w.unit(x, channels, 4, 1),
            w.unit(w.unit(x, channels, 4, 1), 4, 6),
            w.unit(w.unit(x, channels, 3, 1), 3, 4, 5),
            w.unit(w.pool(x, "AveragePool", 3, 1), channels, 6, 1),
        )
        x = w.op("Concat", *branches, axis=3)
    x = w.op("Squeeze", w.last(w.op("GlobalAveragePool", w.first(x))), w.ints(1, 2))
    return w.model(w.dense(x, 20, 10), [batch, side, side, 3], [batch, 10])


def _unet(batch: int | str, side: int | str) -> onnx.ModelProto:
    w = Writer()
    one = w.unit(w.unit("input", 3, 6), 6, 6)
    two = w.unit(w.pool(one), 6, 12)
    low = w.unit(w.pool(two), 12, 16)
    for skip, given, wanted in ((two, 16, 12), (one, 12, 6)):
        weight = w.drawn(given, wanted, 2, 2)
        up = w.last(w.op("ConvTranspose", w.first(low), weight, kernel_shape=[2, 2], strides=[2, 2]))
        low = w.unit(w.op("Concat", w.bias(up, wanted), skip, axis=-1), 2 * wanted, wanted)
    x = w.op("Sigmoid", w.bias(w.conv(low, 6, 2, 1), 2))
    return w.model(x, [batch, side, side, 3], [batch, side, side, 2])


def _mobilenet(batch: int | str, side: int | str) -> onnx.ModelProto:
    w = Writer()
    x = w.relu6(w.norm(w.conv("input", 3, 8, 3, 2), 8))
    for stride in (1, 2):
        y = w.relu6(w.norm(w.conv(x, 8, 24, 1), 24))
        if stride == 2:
            y = w.op("Pad", y, w.ints(0, 0, 0, 0, 0, 1, 1, 0))
            depthwise = w.op(
                "Conv", w.first(y), w.drawn(24, 1, 3, 3), strides=[2, 2], group=24, kernel_shape=[3, 3],
                dilations=[1, 1],
            )  # fmt: skip
            y = w.last(depthwise)
        else:
            y = w.conv(y, 24, 24, 3, 1, 24)
        y = w.op("Clip", w.norm(y, 24), w.number(0.0), w.number(6.0))
        y = w.norm(w.conv(y, 24, 8, 1), 8)
        x = w.op("Add", x, y) if stride == 1 else y
    x = w.op("Reshape", w.mean(x, 1), w.ints(-1, 8))
    return w.model(w.op("Softmax", w.dense(x, 8, 10), axis=-1), [batch, side, side, 3], [batch, 10])


def _squeeze_excite(batch: int | str, side: int | str) -> onnx.ModelProto:
    w = Writer()
    x = w.unit("input", 3, 8)
    for _ in range(2):
        y = w.op("Mul", w.norm(w.conv(x, 8, 8), 8), w.op("Sigmoid", w.conv(x, 8, 8, 1)))
        gate = w.op("Relu", w.bias(w.conv(w.mean(y, 1), 8, 4, 1), 4))
        gate = w.op("HardSigmoid", w.bias(w.conv(gate, 4, 8, 1), 8))
        x = w.op("Add", x, w.op("Mul", y, gate))
    return w.model(w.dense(w.mean(x), 8, 10), [batch, side, side, 3], [batch, 10])


def _segmentation(batch: int | str, side: int | str) -> onnx.ModelProto:
    w = Writer()
    high = w.unit("input", 3, 8, 3, 2)
    low = w.unit(high, 8, 12, 3, 2)
    pooled = w.op("Relu", w.bias(w.conv(w.mean(low, 1), 12, 12, 1), 12))
    low = w.op("Mul", low, w.op("Sigmoid", pooled))
    x = w.op("Concat", w.resize(low, 2.0), w.unit(high, 8, 6, 1), axis=3)
    x = w.resize(w.bias(w.conv(x, 18, 5), 5), 2.0, "nearest")
    return w.model(w.op("Softmax", x, axis=-1), [batch, side, side, 3], [batch, side, side, 5])


def _quantized(batch: int | str, side: int | str) -> onnx.ModelProto:
    w = Writer()

    def conv(x: str, given: int, wanted: int) -> str:
        weight = w.constant(w.generator.integers(-100, 100, (wanted, given, 3, 3)).astype(np.int8))
        scales = w.constant(w.generator.uniform(0.002, 0.004, wanted).astype(np.float32))
        zeros = w.constant(np.zeros(wanted, np.int8))
        kernel = w.op("DequantizeLinear", weight, scales, zeros, axis=0)
        y = w.last(w.op("Conv", w.first(x), kernel, pads=[1, 1, 1, 1], kernel_shape=[3, 3]))
        return w.op("Add", y, w.drawn(wanted))

    def by_channel(x: str, channels: int) -> str:
        given = (
            w.constant(w.generator.uniform(0.04, 0.06, channels).astype(np.float32)),
            w.constant(np.zeros(channels, np.int8)),
        )
        return w.op("DequantizeLinear", w.op("QuantizeLinear", x, *given, axis=3), *given, axis=3)

    x = w.quantized(w.op("Relu", conv(w.quantized("input"), 3, 8)))
    for _ in range(2):
        y = by_channel(w.op("Relu", conv(x, 8, 8)), 8)
        x = w.quantized(w.op("Relu", w.op("Add", w.quantized(conv(y, 8, 8)), x)))
    return w.model(w.dense(w.mean(x), 8, 10), [batch, side, side, 3], [batch, 10])


@dataclass(frozen=True)
class Builder:
    """A network: how it is built from batch size and image side (a name makes it dynamic), and its least number."""

    name: str
    build: Callable[[int | str, int | str], onnx.ModelProto]
    side: int
    least: int  # Transposes
    dynamic: bool = True  # whether height and width may be dynamic


BUILDERS: tuple[Builder, ...] = (
    Builder("plain", _plain, 16, 1),
    Builder("flattened", _flattened, 16, 1, dynamic=False),
    Builder("residual", _residual, 16, 1),
    Builder("inception", _inception, 12, 1),
    Builder("unet", _unet, 16, 2),
    Builder("mobilenet", _mobilenet, 16, 1),
    Builder("squeeze_excite", _squeeze_excite, 12, 1),
    Builder("segmentation", _segmentation, 16, 2),
    Builder("quantized", _quantized, 12, 1),
)


def variants() -> dict[str, tuple[onnx.ModelProto, int]]:
    """Every network with fixed dims, with a dynamic batch, and with dynamic images, and the least number for each."""
    found: dict[str, tuple[onnx.ModelProto, int]] = {}
    for builder in BUILDERS:
        found[builder.name] = builder.build(1, builder.side), builder.least
        found[f"{builder.name}_batch"] = builder.build("N", builder.side), builder.least
        if builder.dynamic:
            found[f"{builder.name}_image"] = builder.build("N", "side"), builder.least
    return found
