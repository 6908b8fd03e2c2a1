"""The networks of AutoTM as training graphs, with its batches: problems for the placement in tiers.

Source: Hildebrand et al., "AutoTM: Automatic Tensor Movement in Heterogeneous Memory Systems using Integer Linear
Programming", ASPLOS 2020: Inception-v4 (batch 1024), ResNet-200 (512), VGG-19 (2048), DenseNet-264 (512), whose DRAM is
replaced by slower memory to 50 to 80 %. It reports a geometric mean of 27.7 % of the performance lost, and 71.9 % for
first touch, on a machine of its own; what is computed from these graphs is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memplan.graph import Graph
from models.training import Network, Speed, Tensor, resnet

BATCHES: Mapping[str, int] = {"inception_v4": 1024, "resnet200": 512, "vgg19": 2048, "densenet264": 512}


def training_graph(name: str, peak_flops: float, batch: int | None = None) -> Graph:
    """One training step of a network of `BATCHES`, gradients of weights included.

    Operators take compute time only (flops by the peak, per second): tiers add what reading and writing takes.
    """
    speed = Speed(peak_flops, bandwidth=None)
    return NETWORKS[name](BATCHES[name] if batch is None else batch, speed).training(weight_gradients=True)


def vgg19(batch: int, speed: Speed) -> Network:
    """Simonyan and Zisserman, 2014, configuration E."""
    net = Network(batch, speed)
    x = net.input(3, 224, 224)
    for stage, convolutions in enumerate((2, 2, 4, 4, 4)):
        for _ in range(convolutions):
            x = net.relu(net.conv(x, min(64 << stage, 512), 3))
        x = net.pool(x, 2, 2, padding=0)
    for _ in range(2):
        x = net.relu(net.linear(x, 4096))
    net.linear(x, 1000)
    return net


def resnet200(batch: int, speed: Speed) -> Network:
    """He et al., 2016: 3, 24, 36 and 3 bottleneck blocks."""
    return resnet((3, 24, 36, 3), batch, speed=speed)


def densenet264(batch: int, speed: Speed) -> Network:
    """Huang et al., 2017: dense blocks of 6, 12, 64 and 48 layers that each add 32 channels."""
    net, growth = Network(batch, speed), 32
    x = net.pool(_conv(net, net.input(3, 224, 224), 2 * growth, 7, 2), 3, 2)
    for block, layers in enumerate((6, 12, 64, 48)):
        for _ in range(layers):
            narrow = net.conv(net.relu(net.batch_norm(x)), 4 * growth, 1)
            x = net.concat([x, net.conv(net.relu(net.batch_norm(narrow)), growth, 3)])
        if block < 3:
            x = net.conv(net.relu(net.batch_norm(x)), x.shape[1] // 2, 1)
            x = net.pool(x, 2, 2, padding=0, kind="average")
    net.linear(net.global_pool(net.relu(net.batch_norm(x))), 1000)
    return net


def inception_v4(batch: int, speed: Speed) -> Network:
    """Szegedy et al., "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning", 2016."""
    net = Network(batch, speed)
    x = _inception_stem(net, net.input(3, 299, 299))
    for _ in range(4):
        x = _inception_a(net, x)
    x = _reduction_a(net, x)
    for _ in range(7):
        x = _inception_b(net, x)
    x = _reduction_b(net, x)
    for _ in range(3):
        x = _inception_c(net, x)
    net.linear(net.global_pool(x), 1000)
    return net


NETWORKS: Mapping[str, Callable[[int, Speed], Network]] = {
    "inception_v4": inception_v4, "resnet200": resnet200, "vgg19": vgg19, "densenet264": densenet264,
}  # fmt: skip


def _conv(
    net: Network, x: Tensor, channels: int, kernel: int | tuple[int, int], stride: int = 1, padding: int | None = None
) -> Tensor:
    """A convolution with batch normalisation and relu."""
    return net.relu(net.batch_norm(net.conv(x, channels, kernel, stride, padding=padding)))


def _inception_stem(net: Network, x: Tensor) -> Tensor:
    x = _conv(net, _conv(net, x, 32, 3, 2, padding=0), 32, 3, padding=0)
    x = _conv(net, x, 64, 3)
    x = net.concat([net.pool(x, 3, 2, padding=0), _conv(net, x, 96, 3, 2, padding=0)])
    short = _conv(net, _conv(net, x, 64, 1), 96, 3, padding=0)
    wide = _conv(net, _conv(net, _conv(net, x, 64, 1), 64, (7, 1)), 64, (1, 7))
    x = net.concat([short, _conv(net, wide, 96, 3, padding=0)])
    return net.concat([_conv(net, x, 192, 3, 2, padding=0), net.pool(x, 3, 2, padding=0)])


def _inception_a(net: Network, x: Tensor) -> Tensor:
    pooled = _conv(net, net.pool(x, 3, 1, kind="average"), 96, 1)
    double = _conv(net, _conv(net, _conv(net, x, 64, 1), 96, 3), 96, 3)
    return net.concat([pooled, _conv(net, x, 96, 1), _conv(net, _conv(net, x, 64, 1), 96, 3), double])


def _reduction_a(net: Network, x: Tensor) -> Tensor:
    double = _conv(net, _conv(net, _conv(net, x, 192, 1), 224, 3), 256, 3, 2, padding=0)
    return net.concat([net.pool(x, 3, 2, padding=0), _conv(net, x, 384, 3, 2, padding=0), double])


def _inception_b(net: Network, x: Tensor) -> Tensor:
    pooled = _conv(net, net.pool(x, 3, 1, kind="average"), 128, 1)
    single = _conv(net, _conv(net, _conv(net, x, 192, 1), 224, (1, 7)), 256, (7, 1))
    double = _conv(net, _conv(net, _conv(net, x, 192, 1), 192, (1, 7)), 224, (7, 1))
    double = _conv(net, _conv(net, double, 224, (1, 7)), 256, (7, 1))
    return net.concat([pooled, _conv(net, x, 384, 1), single, double])


def _reduction_b(net: Network, x: Tensor) -> Tensor:
    single = _conv(net, _conv(net, x, 192, 1), 192, 3, 2, padding=0)
    double = _conv(net, _conv(net, _conv(net, x, 256, 1), 256, (1, 7)), 320, (7, 1))
    return net.concat([net.pool(x, 3, 2, padding=0), single, _conv(net, double, 320, 3, 2, padding=0)])


def _inception_c(net: Network, x: Tensor) -> Tensor:
    pooled = _conv(net, net.pool(x, 3, 1, kind="average"), 256, 1)
    single = _conv(net, x, 384, 1)
    double = _conv(net, _conv(net, _conv(net, x, 384, 1), 448, (1, 3)), 512, (3, 1))
    halves = [_conv(net, base, 256, kernel) for base in (single, double) for kernel in ((1, 3), (3, 1))]
    return net.concat([pooled, _conv(net, x, 256, 1), *halves])
