"""A randomly wired network as a model: the task graph of `models.taskgraphs.randwire`, with weights.

Xie et al., "Exploring randomly wired neural networks for image recognition", 2019, the small regime: three stages
whose wirings are drawn as WS(32, 4, 0.75), of 28, 14 and 7 rows. Batch normalizations are held by the convolutions.
"""

from __future__ import annotations

import networkx
import onnx

from models.families.network import Network

CLASSES, HEAD, ROWS = 1000, 1280, 224


def build(seed: int = 0, channels: int = 78, rows: int = ROWS, nodes: int = 32) -> onnx.ModelProto:
    """The network for images of so many rows; a node of a stage sums its inputs, then ReLU and a separable 3 x 3."""
    net = Network("randwire", seed)
    x = net.input("x", [1, 3, rows, rows])
    x = net.conv(net.op("Relu", net.conv(x, 3, channels // 2, 3, 2)), channels // 2, channels, 3, 2)
    inner = channels
    for stage in range(3):
        wiring = networkx.connected_watts_strogatz_graph(nodes, 4, 0.75, seed=stage + 1)
        x = _stage(net, x, wiring, inner, channels << stage)
        inner = channels << stage
    x = net.op("Relu", net.conv(net.op("Relu", x), inner, HEAD))
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    return net.model(classes=(net.gemm(x, HEAD, CLASSES), [1, CLASSES]))


def _stage(net: Network, x: str, wiring: networkx.Graph, inner: int, channels: int) -> str:
    values: dict[int, str] = {}
    read: set[int] = set()
    for node in sorted(wiring.nodes):
        sources = sorted(other for other in wiring.neighbors(node) if other < node)
        read.update(sources)
        width, stride = (channels, 1) if sources else (inner, 2)
        given = net.op("Relu", _sum(net, [values[one] for one in sources]) if sources else x)
        values[node] = net.conv(net.conv(given, width, width, 3, stride, groups=width), width, channels)
    ends = [values[node] for node in sorted(values) if node not in read]
    return net.op("Mul", _sum(net, ends), net.number(1 / len(ends)))


def _sum(net: Network, values: list[str]) -> str:
    total = values[0]
    for one in values[1:]:
        total = net.op("Add", total, one)
    return total
