"""Training graphs as Checkmate has them: a node for each layer, the loss, and a node for each layer's gradient.

A gradient reads the gradients of the layers that read its layer, their results and its layer's own, has the size of
its layer's result and takes twice its time; the loss takes neither time nor bytes that count. Times are operations.
The networks are those of the paper and their like, on images of its sizes: VGG and FCN with the activation inside the
convolution, and ResNet, MobileNet and U-Net, each of whose steps is a layer of its own where the original has it so.

Source: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from memplan.graph import Graph, Operator, Value

FLOAT = 4  # bytes
Shape = tuple[int, int, int]  # channels, rows, columns


class Layers:
    """Layers in the order of the calls; each call gives the number of its layer."""

    def __init__(self, batch: int, image: int) -> None:
        self.batch = batch
        self.shapes: list[Shape] = []
        self.reads: list[tuple[int, ...]] = []
        self.operations: list[float] = []
        self._image: Shape = (3, image, image)

    def shape(self, x: int) -> Shape:
        """The shape of a layer's result, -1 for the image."""
        return self._image if x < 0 else self.shapes[x]

    def conv(self, x: int, channels: int, kernel: int = 3, stride: int = 1, *, groups: int = 1) -> int:
        """A convolution, with its activation."""
        wide, rows, columns = self.shape(x)
        shape = (channels, -(-rows // stride), -(-columns // stride))
        return self._add((x,), shape, 2.0 * math.prod(shape) * wide // groups * kernel * kernel)

    def up(self, x: int, channels: int, kernel: int = 2, stride: int = 2) -> int:
        """A transposed convolution."""
        _, rows, columns = self.shape(x)
        shape = (channels, rows * stride, columns * stride)
        return self._add((x,), shape, 2.0 * math.prod(self.shape(x)) * channels * kernel * kernel)

    def pool(self, x: int, stride: int = 2) -> int:
        """The largest of each window."""
        channels, rows, columns = self.shape(x)
        shape = (channels, rows // stride, columns // stride)
        return self._add((x,), shape, float(math.prod(self.shape(x))))

    def each(self, *xs: int) -> int:
        """What takes an operation for each element: activation, normalization, addition."""
        return self._add(xs, self.shape(xs[0]), float(len(xs) * math.prod(self.shape(xs[0]))))

    def concat(self, *xs: int) -> int:
        """Channels side by side."""
        _, rows, columns = self.shape(xs[0])
        shape = (sum(self.shape(x)[0] for x in xs), rows, columns)
        return self._add(xs, shape, float(math.prod(shape)))

    def dense(self, x: int, features: int) -> int:
        """A matrix product of all that an image has."""
        return self._add((x,), (features, 1, 1), 2.0 * math.prod(self.shape(x)) * features)

    def training(self) -> Graph:
        """Layers, loss, gradients from the last layer to the first."""
        count = len(self.shapes)
        users: list[list[int]] = [[] for _ in range(count)]
        for one, reads in enumerate(self.reads):
            for x in dict.fromkeys(reads):
                if x >= 0:
                    users[x].append(one)
        sizes = [FLOAT * self.batch * math.prod(shape) for shape in self.shapes]
        times = [self.batch * operations for operations in self.operations]
        values = [Value(f"layer{one}", sizes[one]) for one in range(count)]
        operators = []
        for one, reads in enumerate(self.reads):
            operands = tuple(f"layer{x}" for x in dict.fromkeys(reads) if x >= 0)
            operators.append(Operator(f"layer{one}", operands, (f"layer{one}",), times[one]))
        values.append(Value("loss", FLOAT))
        operators.append(Operator("loss", (f"layer{count - 1}",), ("loss",), 0.0))
        for one in range(count - 1, -1, -1):
            wanted = [f"layer{one}", *(name for user in users[one] for name in (f"gradient{user}", f"layer{user}"))]
            wanted += ["loss"] if one == count - 1 else []
            values.append(Value(f"gradient{one}", sizes[one]))
            operators.append(Operator(f"gradient{one}", tuple(wanted), (f"gradient{one}",), 2.0 * times[one]))
        return Graph(tuple(values), tuple(operators))

    def _add(self, reads: tuple[int, ...], shape: Shape, operations: float) -> int:
        self.shapes.append(shape)
        self.reads.append(reads)
        self.operations.append(operations)
        return len(self.shapes) - 1


def _vgg(net: Layers, convolutions: tuple[int, ...]) -> list[int]:
    """The pooled results of the stages."""
    x, scales = -1, []
    for stage, many in enumerate(convolutions):
        for _ in range(many):
            x = net.conv(x, min(64 << stage, 512))
        x = net.pool(x)
        scales.append(x)
    return scales


def vgg16(net: Layers) -> None:
    """Simonyan and Zisserman, 2014, configuration D."""
    x = _vgg(net, (2, 2, 3, 3, 3))[-1]
    net.dense(net.dense(net.dense(x, 4096), 4096), 1000)


def vgg19(net: Layers) -> None:
    """Configuration E."""
    x = _vgg(net, (2, 2, 4, 4, 4))[-1]
    net.dense(net.dense(net.dense(x, 4096), 4096), 1000)


def fcn8(net: Layers) -> None:
    """Long et al., 2015, on VGG-16: the sum of three scales, enlarged to the image."""
    scales = _vgg(net, (2, 2, 3, 3, 3))
    x = net.conv(net.conv(net.conv(scales[-1], 4096, 7), 4096, 1), 21, 1)
    x = net.each(net.up(x, 21, 4), net.conv(scales[3], 21, 1))
    x = net.each(net.up(x, 21, 4), net.conv(scales[2], 21, 1))
    net.each(net.up(x, 21, 16, 8))


def unet(net: Layers) -> None:
    """Ronneberger et al., 2015, padded so that sizes stay."""
    x, skips = -1, []
    for stage in range(5):
        x = net.conv(net.conv(x, 64 << stage), 64 << stage)
        if stage < 4:
            skips.append(x)
            x = net.pool(x)
    for stage in reversed(range(4)):
        x = net.concat(skips[stage], net.up(x, 64 << stage))
        x = net.conv(net.conv(x, 64 << stage), 64 << stage)
    net.conv(x, 2, 1)


def mobilenet(net: Layers) -> None:
    """Howard et al., 2017: convolution, normalization and activation are layers of their own."""
    x = net.each(net.each(net.conv(-1, 32, 3, 2)))
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    channels = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
    for stride, wide in zip(strides, channels, strict=True):
        before = net.shape(x)[0]
        x = net.each(net.each(net.conv(x, before, 3, stride, groups=before)))
        x = net.each(net.each(net.conv(x, wide, 1)))
    net.dense(net.pool(x, net.shape(x)[1]), 1000)


def resnet50(net: Layers) -> None:
    """He et al., 2015: convolution, normalization, activation and addition are layers of their own."""
    _resnet(net, (3, 4, 6, 3))


def resnet152(net: Layers) -> None:
    """The same with 50 blocks: about a thousand nodes."""
    _resnet(net, (3, 8, 36, 3))


def _resnet(net: Layers, blocks: tuple[int, ...]) -> None:
    x = net.pool(net.each(net.each(net.conv(-1, 64, 7, 2))))
    for stage, many in enumerate(blocks):
        for block in range(many):
            wide, stride = 64 << stage, 2 if stage > 0 and block == 0 else 1
            branch = net.each(net.each(net.conv(x, wide, 1, stride)))
            branch = net.each(net.each(net.conv(branch, wide)))
            branch = net.each(net.conv(branch, 4 * wide, 1))
            shortcut = net.each(net.conv(x, 4 * wide, 1, stride)) if block == 0 else x
            x = net.each(net.each(branch, shortcut))
    net.dense(net.pool(x, net.shape(x)[1]), 1000)


# Batch and rows of the image.
NETWORKS: Mapping[str, tuple[Callable[[Layers], None], int, int]] = {
    "vgg16": (vgg16, 256, 224),
    "vgg19": (vgg19, 256, 224),
    "fcn8": (fcn8, 32, 416),
    "unet": (unet, 32, 416),
    "mobilenet": (mobilenet, 512, 224),
    "resnet50": (resnet50, 256, 224),
    "resnet152": (resnet152, 256, 224),
}


def checkmate_graph(name: str) -> Graph:
    """The training graph of one of `NETWORKS`."""
    build, batch, image = NETWORKS[name]
    net = Layers(batch, image)
    build(net)
    return net.training()
