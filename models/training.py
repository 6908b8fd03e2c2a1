"""Builds networks as graphs for memplan: a forward pass layer by layer, and the training graph that mirrors it.

    net = Network(batch=32)
    x = net.relu(net.batch_norm(net.conv(net.input(3, 224, 224), 64, kernel=7, stride=2)))
    net.linear(net.global_pool(x), 1000)
    net.training()

Feature maps are float32, N x C x H x W. Weights are constants. The training graph runs the forward operators, the loss,
and then the layers' backward operators from last to first, each reading what a framework saves for it: a convolution
its input and weights, relu its output, batch normalisation its input, max pooling its input and output, average
pooling, addition and concatenation nothing. The gradient of an addition is passed on as it is; where several layers
read a value, its gradients are summed as they come.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from memplan.graph import Graph, Kind, Operator, Share, Value

FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class Speed:
    """What turns operations and bytes into nanoseconds."""

    flops: float = 3e12  # per second
    bandwidth: float | None = 300e9  # bytes per second; None: reading and writing take no time (tiers add their own)

    def nanoseconds(self, flops: float, moved: int) -> float:
        """The time of that many operations and of reading and writing that many bytes."""
        return 1e9 * (flops / self.flops + (moved / self.bandwidth if self.bandwidth is not None else 0.0))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A feature map: the name of its value and its shape, batch first."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * FLOAT


@dataclass(frozen=True, slots=True)
class _Layer:
    """One forward operator and what its backward operator is like."""

    name: str
    reads: tuple[Tensor, ...]  # feature maps
    weights: tuple[Value, ...]
    makes: Tensor
    flops: float
    saves: tuple[Tensor, ...]  # feature maps that the backward operator reads
    backward: float = 1.0  # its operations, as a multiple of the forward operator's
    in_place: bool = False  # the result may take an operand's bytes
    slices: bool = False  # a concatenation, whose operands are parts of the result
    passes: bool = False  # an addition, whose gradient is that of its operands


Kernel = int | tuple[int, int]


class Network:
    """Layers in the order of the calls. Operators and their results are named by kind and number: conv1, relu2."""

    def __init__(self, batch: int, speed: Speed | None = None) -> None:
        self.batch = batch
        self.speed = Speed() if speed is None else speed
        self._inputs: list[Tensor] = []
        self._layers: list[_Layer] = []
        self._numbers: dict[str, int] = {}

    def input(self, channels: int, height: int, width: int) -> Tensor:
        """An input of the network."""
        made = Tensor(self._name("input"), (self.batch, channels, height, width))
        self._inputs.append(made)
        return made

    def conv(
        self, x: Tensor, channels: int, kernel: Kernel = 3, stride: int = 1, *, padding: Kernel | None = None,
        groups: int = 1,
    ) -> Tensor:  # fmt: skip
        """A convolution without bias; the padding is half of the kernel unless given."""
        name, (high, wide) = self._name("conv"), _pair(kernel)
        shape = (x.shape[0], channels, *_window(x, kernel, stride, padding))
        weights = Value(f"{name}.weight", channels * x.shape[1] // groups * high * wide * FLOAT, "constant")
        flops = 2.0 * math.prod(shape) * x.shape[1] // groups * high * wide
        return self._add(_Layer(name, (x,), (weights,), Tensor(name, shape), flops, (x,), 2.0))

    def batch_norm(self, x: Tensor) -> Tensor:
        """Batch normalisation, scale and shift."""
        name = self._name("norm")
        weights = Value(f"{name}.weight", 2 * x.shape[1] * FLOAT, "constant")
        flops = 4.0 * math.prod(x.shape)
        return self._add(_Layer(name, (x,), (weights,), Tensor(name, x.shape), flops, (x,), 2.0, in_place=True))

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        made = Tensor(self._name("relu"), x.shape)
        return self._add(_Layer(made.name, (x,), (), made, math.prod(x.shape), (made,), in_place=True))

    def pool(
        self, x: Tensor, kernel: Kernel = 3, stride: int = 2, *, padding: Kernel | None = None,
        kind: Literal["max", "average"] = "max",
    ) -> Tensor:  # fmt: skip
        """Pooling; the padding is half of the kernel unless given."""
        made = Tensor(self._name("pool"), (*x.shape[:2], *_window(x, kernel, stride, padding)))
        flops = float(math.prod(made.shape) * math.prod(_pair(kernel)))
        return self._add(_Layer(made.name, (x,), (), made, flops, (x, made) if kind == "max" else ()))

    def global_pool(self, x: Tensor) -> Tensor:
        """The mean of each channel: N x C."""
        made = Tensor(self._name("pool"), x.shape[:2])
        return self._add(_Layer(made.name, (x,), (), made, math.prod(x.shape), ()))

    def upsample(self, x: Tensor, factor: int = 2) -> Tensor:
        """Each pixel repeated `factor` times in both directions."""
        made = Tensor(self._name("upsample"), (*x.shape[:2], x.shape[2] * factor, x.shape[3] * factor))
        return self._add(_Layer(made.name, (x,), (), made, math.prod(made.shape), ()))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """The sum of two feature maps of one shape."""
        if a.shape != b.shape:
            raise ValueError(f"'{a.name}' {a.shape} and '{b.name}' {b.shape} cannot be added.")
        made = Tensor(self._name("add"), a.shape)
        layer = _Layer(made.name, (a, b), (), made, math.prod(a.shape), (), in_place=True, passes=True)
        return self._add(layer)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """Channels side by side."""
        shape = list(parts[0].shape)
        if any(part.shape[0] != shape[0] or part.shape[2:] != parts[0].shape[2:] for part in parts):
            raise ValueError(f"{[part.shape for part in parts]} cannot stand side by side.")
        shape[1] = sum(part.shape[1] for part in parts)
        made = Tensor(self._name("concat"), tuple(shape))
        return self._add(_Layer(made.name, tuple(parts), (), made, 0.0, (), slices=True))

    def linear(self, x: Tensor, features: int) -> Tensor:
        """A matrix product with bias of all that an image has: N x features."""
        name, each = self._name("linear"), math.prod(x.shape[1:])
        weights = Value(f"{name}.weight", (each + 1) * features * FLOAT, "constant")
        made = Tensor(name, (x.shape[0], features))
        return self._add(_Layer(name, (x,), (weights,), made, 2.0 * x.shape[0] * each * features, (x,), 2.0))

    def inference(self) -> Graph:
        """The forward pass; what no layer reads is an output."""
        graph = _Parts(self.speed)
        self._forward(graph)
        read = {tensor.name for layer in self._layers for tensor in layer.reads}
        return graph.graph({layer.makes.name for layer in self._layers} - read)

    def training(self, *, weight_gradients: bool = False) -> Graph:
        """Forward pass, loss and backward pass of the last layer's result.

        The gradients of weights are outputs, or left out: they do not belong to the feature maps, and have their place
        beside the weights.
        """
        graph = _Parts(self.speed)
        self._forward(graph)
        last = self._layers[-1].makes
        reads = (last.name, graph.value("labels", self.batch * FLOAT, "input"))
        flops = 5.0 * math.prod(last.shape)
        graph.operate("loss", reads, (graph.value("loss", FLOAT, "output"),), flops)
        gradients = {last.name: graph.value(f"{last.name}.grad", last.size)}
        graph.operate("loss.backward", reads, (gradients[last.name],), flops)
        for layer in reversed(self._layers):
            if layer.makes.name in gradients:
                self._backward(graph, layer, gradients, weight_gradients)
        return graph.graph()

    def _forward(self, graph: _Parts) -> None:
        for tensor in self._inputs:
            graph.value(tensor.name, tensor.size, "input")
        for layer in self._layers:
            for weights in layer.weights:
                graph.value(weights.name, weights.size, "constant")
            graph.value(layer.makes.name, layer.makes.size)
            reads = (*(tensor.name for tensor in layer.reads), *(weights.name for weights in layer.weights))
            graph.operate(layer.name, reads, (layer.makes.name,), layer.flops)
            if layer.in_place:
                graph.shares += [Share(layer.makes.name, tensor.name, overwrites=True) for tensor in layer.reads]
            if layer.slices and self.batch == 1:  # otherwise each image has its own part of every operand
                at = 0
                for tensor in layer.reads:
                    graph.shares.append(Share(tensor.name, layer.makes.name, at))
                    at += tensor.size

    def _backward(self, graph: _Parts, layer: _Layer, gradients: dict[str, str], weight_gradients: bool) -> None:
        inputs = {tensor.name for tensor in self._inputs}
        wanted = [tensor for tensor in layer.reads if tensor.name not in inputs]
        incoming = gradients[layer.makes.name]
        if layer.passes:
            for tensor in wanted:
                _accumulate(graph, gradients, tensor, incoming)
            return
        if not wanted and not layer.weights:
            return
        parts = []
        for tensor in wanted:
            name = f"{tensor.name}.grad.{layer.name}" if tensor.name in gradients else f"{tensor.name}.grad"
            parts.append(graph.value(name, tensor.size))
        makes = list(parts)
        if weight_gradients:
            makes += [graph.value(f"{weights.name}.grad", weights.size, "output") for weights in layer.weights]
        reads = (incoming, *(tensor.name for tensor in layer.saves), *(weights.name for weights in layer.weights))
        graph.operate(f"{layer.name}.backward", reads, makes, layer.backward * layer.flops)
        if layer.in_place and parts:
            graph.shares.append(Share(parts[0], incoming, overwrites=True))
        for tensor, part in zip(wanted, parts, strict=True):
            _accumulate(graph, gradients, tensor, part)

    def _add(self, layer: _Layer) -> Tensor:
        self._layers.append(layer)
        return layer.makes

    def _name(self, kind: str) -> str:
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return f"{kind}{self._numbers[kind]}"


class _Parts:
    """A graph in the making."""

    def __init__(self, speed: Speed) -> None:
        self.speed = speed
        self.values: dict[str, Value] = {}
        self.operators: list[Operator] = []
        self.shares: list[Share] = []

    def value(self, name: str, size: int, kind: Kind = "temporary") -> str:
        """Add a value; a name that is taken gets a number."""
        number, free = 2, name
        while free in self.values:
            number, free = number + 1, f"{name}{number}"
        self.values[free] = Value(free, size, kind)
        return free

    def operate(self, name: str, reads: Sequence[str], makes: Sequence[str], flops: float) -> None:
        once = tuple(dict.fromkeys(reads))
        moved = sum(self.values[value].size for value in (*once, *makes))
        self.operators.append(Operator(name, once, tuple(makes), self.speed.nanoseconds(flops, moved)))

    def graph(self, outputs: Collection[str] = ()) -> Graph:
        values = (replace(one, kind="output") if one.name in outputs else one for one in self.values.values())
        return Graph(tuple(values), tuple(self.operators), tuple(self.shares))


def _accumulate(graph: _Parts, gradients: dict[str, str], tensor: Tensor, part: str) -> None:
    """Take `part` as the gradient of a value, or add it to what is there."""
    if tensor.name not in gradients:
        gradients[tensor.name] = part
        return
    before = gradients[tensor.name]
    total = graph.value(f"{tensor.name}.grad.sum", tensor.size)
    graph.operate(total, (before, part), (total,), math.prod(tensor.shape))
    graph.shares += [Share(total, one, overwrites=True) for one in dict.fromkeys((before, part))]
    gradients[tensor.name] = total


def _pair(kernel: Kernel) -> tuple[int, int]:
    return kernel if isinstance(kernel, tuple) else (kernel, kernel)


def _window(x: Tensor, kernel: Kernel, stride: int, padding: Kernel | None) -> tuple[int, int]:
    high, wide = _pair(kernel)
    above, beside = (high // 2, wide // 2) if padding is None else _pair(padding)
    return (x.shape[2] + 2 * above - high) // stride + 1, (x.shape[3] + 2 * beside - wide) // stride + 1


def resnet(blocks_per_stage: Sequence[int], batch: int, image: int = 224, *, speed: Speed | None = None) -> Network:
    """A residual network of bottleneck blocks of four stages' kind: 64, 128, 256, ... channels, four times that out.

    [83, 83, 83, 83] is the network of about 1,000 layers of Chen et al., "Training Deep Nets with Sublinear Memory
    Cost", 2016, trained with batch 32 on images of 224 x 224: 332 blocks of three convolutions, and six layers more.

    Memory is counted in feature maps. Batch normalisation, relu and addition in place need no counting of their own
    for what is kept from the forward to the backward pass: relu's gradient reads its output and batch normalisation's
    its input, so that what stands between the two is dropped as soon as relu has run. In place only saves the one map
    that is written while the other is read.
    """
    net = Network(batch, speed)
    x = net.relu(net.batch_norm(net.conv(net.input(3, image, image), 64, 7, 2)))
    x = net.pool(x, 3, 2)
    for stage, blocks in enumerate(blocks_per_stage):
        for block in range(blocks):
            x = _bottleneck(net, x, 64 << stage, stride=2 if stage > 0 and block == 0 else 1, project=block == 0)
    net.linear(net.global_pool(x), 1000)
    return net


def _bottleneck(net: Network, x: Tensor, channels: int, *, stride: int, project: bool) -> Tensor:
    branch = net.relu(net.batch_norm(net.conv(x, channels, 1)))
    branch = net.relu(net.batch_norm(net.conv(branch, channels, 3, stride)))
    branch = net.batch_norm(net.conv(branch, 4 * channels, 1))
    shortcut = net.batch_norm(net.conv(x, 4 * channels, 1, stride)) if project else x
    return net.relu(net.add(branch, shortcut))
