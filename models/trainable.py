"""Networks as they are before training, with data that they can learn: small, seeded, the same bytes every time.

`NETWORKS[name]` builds a model for a batch of its own; `batches(name, count)` draws its batches, the target among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx

from models.families.network import RELU, Network

Name = Literal["mlp", "lstm", "bert", "resnet18", "mobilenet_v2"]
Batch = dict[str, npt.NDArray[np.generic]]
BATCH, CLASSES = 8, 10
EDGE = 64  # pixels
FEATURES, RESULTS = 16, 4  # of the perceptron
STEPS, CHANNELS, HIDDEN = 12, 8, 32  # of the recurrence
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, MARKS = 64, 16, 64, 4, 4, 4  # of the encoder; marks are its classes
# Channels behind each expansion, how often and with which first stride: Sandler et al., MobileNetV2 (2018), table 2.
INVERTED = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


def mlp(seed: int = 0) -> onnx.ModelProto:
    """Two hidden layers with tanh, for a regression."""
    net = Network("mlp", seed)
    x = net.op("Tanh", net.gemm(net.input("x", [BATCH, FEATURES]), FEATURES, 64, 1.0))
    x = net.op("Tanh", net.gemm(x, 64, 64, 1.0))
    return net.model(y=(net.gemm(x, 64, RESULTS, 1.0), [BATCH, RESULTS]))


def lstm(seed: int = 0) -> onnx.ModelProto:
    """A bidirectional LSTM whose last states are classified."""
    net = Network("lstm", seed)
    x = net.input("x", [STEPS, BATCH, CHANNELS])
    weights = net.normal([2, 4 * HIDDEN, CHANNELS], CHANNELS**-0.5)
    states = net.normal([2, 4 * HIDDEN, HIDDEN], HIDDEN**-0.5)
    biases = net.normal([2, 8 * HIDDEN], 0.1)
    _, last, _ = net.ops(
        "LSTM", x, weights, states, biases, outputs=3, hidden_size=HIDDEN, direction="bidirectional"
    )  # fmt: skip
    x = net.op("Reshape", net.op("Transpose", last, perm=[1, 0, 2]), net.ints(BATCH, 2 * HIDDEN))
    return net.model(logits=(net.gemm(x, 2 * HIDDEN, CLASSES, 1.0), [BATCH, CLASSES]))


def bert(seed: int = 0) -> onnx.ModelProto:
    """Four layers with normalization behind each sum, as in BERT, and a mask; the first word's state is classified."""
    return encoder(BATCH, LENGTH, WIDTH, seed)


def encoder(batch: int, length: int, width: int, seed: int = 0) -> onnx.ModelProto:
    """`bert` of any batch, length and width."""
    net = Network("bert", seed)
    ids = net.input("input_ids", [batch, length], np.int64)
    mask = net.op("Cast", net.input("attention_mask", [batch, length], np.int64), to=onnx.TensorProto.FLOAT)
    mask = net.op("Mul", net.op("Sub", net.number(1.0), mask), net.number(-10000.0))
    mask = net.op("Unsqueeze", mask, net.ints(1, 2))
    words = net.op("Gather", net.normal([VOCABULARY, width], 0.5), ids)
    x = net.layer_norm(net.op("Add", words, net.normal([length, width], 0.5)), width)
    for _ in range(LAYERS):
        x = net.layer_norm(net.op("Add", _attention(net, x, mask, width), x), width)
        inner = net.linear(net.gelu(net.linear(x, width, 4 * width)), 4 * width, width)
        x = net.layer_norm(net.op("Add", inner, x), width)
    first = net.op("Gather", x, net.small(np.array(0, np.int64)), axis=1)
    x = net.op("Tanh", net.gemm(first, width, width, 1.0))
    return net.model(logits=(net.gemm(x, width, MARKS, 1.0), [batch, MARKS]))


def _attention(net: Network, x: str, mask: str, width: int) -> str:
    inner = width // HEADS
    query, value = (net.heads(net.linear(x, width, width), HEADS, inner) for _ in range(2))
    key = net.heads(net.linear(x, width, width), HEADS, inner, (0, 2, 3, 1))
    scores = net.op("Div", net.op("MatMul", query, key), net.number(inner**0.5))
    shares = net.op("Softmax", net.op("Add", scores, mask), axis=-1)
    x = net.op("Transpose", net.op("MatMul", shares, value), perm=[0, 2, 1, 3])
    return net.linear(net.op("Reshape", x, net.ints(0, 0, width)), width, width)


def resnet18(seed: int = 0) -> onnx.ModelProto:
    """He et al., Deep residual learning for image recognition (2016), table 1, with a quarter of its channels."""
    net = Network("resnet18", seed)
    x = net.op("Relu", _conv_norm(net, net.input("image", [BATCH, 3, EDGE, EDGE]), 3, 16, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inner = 16
    for outer, first in ((16, 1), (32, 2), (64, 2), (128, 2)):
        for stride in (first, 1):
            short = x if stride == 1 and inner == outer else _conv_norm(net, x, inner, outer, 1, stride)
            wide = net.op("Relu", _conv_norm(net, x, inner, outer, 3, stride))
            x = net.op("Relu", net.op("Add", _conv_norm(net, wide, outer, outer, 3), short))
            inner = outer
    return _classified(net, x, inner)


def mobilenet_v2(seed: int = 0) -> onnx.ModelProto:
    """Inverted residuals with linear bottlenecks, on small images."""
    net = Network("mobilenet_v2", seed)

    def active(x: str) -> str:
        return net.op("Clip", x, net.number(0.0), net.number(6.0))

    x, inner = active(_conv_norm(net, net.input("image", [BATCH, 3, EDGE, EDGE]), 3, 32, 3, 2)), 32
    for factor, outer, count, first in INVERTED:
        for place in range(count):
            stride, wide = first if place == 0 else 1, inner * factor
            inside = x if factor == 1 else active(_conv_norm(net, x, inner, wide))
            inside = active(_conv_norm(net, inside, wide, wide, 3, stride, groups=wide))
            inside = _conv_norm(net, inside, wide, outer)
            x = net.op("Add", x, inside) if stride == 1 and inner == outer else inside
            inner = outer
    return _classified(net, active(_conv_norm(net, x, inner, 1280)), 1280)


def _conv_norm(
    net: Network, x: str, inner: int, outer: int, kernel: int = 1, stride: int = 1, *, groups: int = 1
) -> str:
    """A convolution by He's rule and a batch normalization that begins with ones, zeros and no statistics."""
    x = net.conv(x, inner, outer, kernel, stride, groups=groups, bias=False)
    numbers = [net.tensor(np.full(outer, one, np.float32)) for one in (1, 0, 0, 1)]
    return net.op("BatchNormalization", x, *numbers, epsilon=1e-5, momentum=0.9)


def _classified(net: Network, x: str, width: int) -> onnx.ModelProto:
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    return net.model(logits=(net.gemm(x, width, CLASSES, RELU / 2), [BATCH, CLASSES]))


NETWORKS: Mapping[Name, Callable[[int], onnx.ModelProto]] = {
    "mlp": mlp, "lstm": lstm, "bert": bert, "resnet18": resnet18, "mobilenet_v2": mobilenet_v2,
}  # fmt: skip


def batches(name: Name, count: int, seed: int = 0) -> Iterator[Batch]:
    """So many batches for a network, drawn anew each: rules with noise, whatever the network can see."""
    generator = np.random.default_rng([seed, 1])
    patterns = generator.standard_normal((CLASSES, *_DIMS[name]))
    teacher = generator.standard_normal((FEATURES, RESULTS)) / FEATURES**0.5
    for _ in range(count):
        if name == "mlp":
            x = generator.standard_normal((BATCH, FEATURES))
            yield {"x": x.astype(np.float32), "target": np.sin(2 * x @ teacher).astype(np.float32)}
        elif name == "bert":
            yield _marked(generator)
        else:
            target = generator.integers(0, CLASSES, BATCH)
            x = (0.5 * patterns[target] + generator.standard_normal((BATCH, *_DIMS[name]))).astype(np.float32)
            yield {"x": x.swapaxes(0, 1), "target": target} if name == "lstm" else {"image": x, "target": target}


_DIMS: Mapping[Name, tuple[int, ...]] = {
    "mlp": (0,), "bert": (0,), "lstm": (STEPS, CHANNELS), "resnet18": (3, EDGE, EDGE), "mobilenet_v2": (3, EDGE, EDGE),
}  # fmt: skip


def _marked(generator: np.random.Generator) -> Batch:
    """Words with one mark among them, which is the class; some sentences are short."""
    ids = generator.integers(MARKS, VOCABULARY, (BATCH, LENGTH))
    lengths = generator.integers(LENGTH // 2, LENGTH + 1, BATCH)
    target, places = generator.integers(0, MARKS, BATCH), generator.integers(1, LENGTH // 2, BATCH)
    ids[np.arange(BATCH), places] = target
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, "target": target}
