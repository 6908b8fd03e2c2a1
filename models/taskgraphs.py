"""Task graphs of networks with many branches, as problems for the scheduler: read from files, and built here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx

from models.regions import Gathered, Net, Shape, Value, concatenated
from scheduler.device import Device
from scheduler.errors import InvalidTaskGraph
from scheduler.tasks import TaskGraph


def read_operators(path: Path, device: Device, gathered: Gathered = "all") -> TaskGraph:
    """A network in the JSON of the inter-operator scheduler (IOS, MLSys 2021): blocks of nodes with their shapes.

    A node's inputs are terms: values or ranges of their channels, joined channel by channel; terms in one list are
    summed. `gathered` is as in `Net`. Raises InvalidTaskGraph for what is no such file.
    """
    try:
        content = json.loads(path.read_text())
        nodes = [node for block in content["blocks"] for node in (*block["inner_nodes"], block["exit_node"])]
        start = content["input"]
        net = Net(content["name"], device, gathered)
        values = {start["name"]: Value(_shape(start["output_shape"]))}
        for node in nodes:
            values[node["name"]] = _node(net, node, values)
    except OSError as error:
        raise InvalidTaskGraph(f"the network '{path}' cannot be read: {error.strerror}.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidTaskGraph(f"'{path.name}' is no network of blocks with nodes: {error!r}.") from None
    return net.graph()


def _node(net: Net, node: Mapping[str, Any], values: Mapping[str, Value]) -> Value:
    joined = []
    for terms in node["inputs"]:
        parts = [_part(values[name], begin, end) for name, begin, end in terms]
        merged = dict.fromkeys(region for part in parts for region in part.regions)
        joined.append(Value(parts[0].shape, tuple(merged)))
    shape = _shape(node["output_shape"])
    name, kind, window = node["name"], node["type"], tuple(node.get("kernel", (1, 1)))
    stride = tuple(node.get("stride", (1, 1)))
    if kind == "identity":
        return concatenated(joined)
    if kind == "pool":
        return net.pool(name, joined, (window[0], window[1]), (stride[0], stride[1]), shape[1:])
    if kind == "conv":
        return net.conv(
            name, joined, shape[0], (window[0], window[1]), (stride[0], stride[1]), node["groups"], shape[1:]
        )  # fmt: skip
    if kind in ("element", "add", "relu", "activation"):
        return net.add(name, joined)
    if kind == "sequential":  # ReLU, depthwise and 1 x 1
        return net.separable(name, joined, shape[0], window[0], stride[0])
    raise InvalidTaskGraph(f"node '{name}' is a '{kind}', which has no costs here: conv, pool, element or identity.")


def _part(value: Value, begin: int, end: int) -> Value:
    return Value((end - begin, *value.shape[1:]), value.regions)


def inception_v3(device: Device, gathered: Gathered = "all") -> TaskGraph:
    """Szegedy et al., "Rethinking the Inception architecture for computer vision", 2015; 299 x 299, batch 1."""
    net = Net("inception_v3", device, gathered)
    count = iter(range(1000))

    def conv(
        value: Value, channels: int, kernel: tuple[int, int] = (1, 1), stride: int = 1, valid: bool = False
    ) -> Value:
        rows = tuple((side - k) // stride + 1 for side, k in zip(value.shape[1:], kernel, strict=True))
        output = (rows[0], rows[1]) if valid else None
        return net.conv(f"conv{next(count)}", [value], channels, kernel, (stride, stride), output=output)

    def pool(value: Value, stride: int = 1) -> Value:
        output = None if stride == 1 else ((value.shape[1] - 3) // 2 + 1, (value.shape[2] - 3) // 2 + 1)
        return net.pool(f"pool{next(count)}", [value], (3, 3), (stride, stride), output)

    x = conv(Value((3, 299, 299)), 32, (3, 3), 2, valid=True)
    x = conv(conv(x, 32, (3, 3), valid=True), 64, (3, 3))
    x = conv(conv(pool(x, 2), 80), 192, (3, 3), valid=True)
    x = pool(x, 2)
    for pooled in (32, 64, 64):
        x = concatenated([
            conv(x, 64), conv(conv(x, 48), 64, (5, 5)), conv(conv(conv(x, 64), 96, (3, 3)), 96, (3, 3)),
            conv(pool(x), pooled),
        ])  # fmt: skip
    x = concatenated([
        conv(x, 384, (3, 3), 2, valid=True), conv(conv(conv(x, 64), 96, (3, 3)), 96, (3, 3), 2, valid=True), pool(x, 2),
    ])  # fmt: skip
    for inner in (128, 160, 160, 192):
        twice = conv(conv(conv(conv(conv(x, inner), inner, (7, 1)), inner, (1, 7)), inner, (7, 1)), 192, (1, 7))
        x = concatenated([
            conv(x, 192), conv(conv(conv(x, inner), inner, (1, 7)), 192, (7, 1)), twice, conv(pool(x), 192)
        ])  # fmt: skip
    seven = conv(conv(conv(x, 192), 192, (1, 7)), 192, (7, 1))
    x = concatenated([
        conv(conv(x, 192), 320, (3, 3), 2, valid=True), conv(seven, 192, (3, 3), 2, valid=True), pool(x, 2)
    ])  # fmt: skip
    for _ in range(2):
        one, two = conv(x, 384), conv(conv(x, 448), 384, (3, 3))
        x = concatenated([
            conv(x, 320), conv(one, 384, (1, 3)), conv(one, 384, (3, 1)), conv(two, 384, (1, 3)),
            conv(two, 384, (3, 1)), conv(pool(x), 192),
        ])  # fmt: skip
    x = net.pool("pool", [x], (8, 8), (8, 8), (1, 1))
    net.conv("classes", [x], 1000)
    return net.graph()


def nasnet_like(device: Device, cells: int = 4, channels: int = 44) -> TaskGraph:
    """NASNet-A mobile (Zoph et al., 2018): three times `cells` normal cells, reduction cells between; 224 x 224."""
    net = Net("nasnet_like", device)
    x = net.conv("stem", [Value((3, 224, 224))], 32, (3, 3), (2, 2), output=(111, 111))
    before, now = x, _reduction(net, "stem0", x, x, channels // 4)
    before, now = now, _reduction(net, "stem1", now, before, channels // 2)
    for stage in range(3):
        wide = channels << stage
        for cell in range(cells):
            before, now = now, _normal(net, f"normal{stage}.{cell}", now, before, wide)
        if stage < 2:
            before, now = now, _reduction(net, f"reduction{stage}", now, before, 2 * wide)
    pooled = net.pool("pool", [now], now.shape[1:], now.shape[1:], (1, 1))
    net.conv("classes", [pooled], 1000)
    return net.graph()


def _twice(net: Net, name: str, value: Value, channels: int, kernel: int, stride: int = 1) -> Value:
    """Separable convolutions of NASNet come twice, the stride in the first."""
    once = net.separable(f"{name}.0", [value], channels, kernel, stride)
    return net.separable(f"{name}.1", [once], channels, kernel)


def _fitted(net: Net, name: str, now: Value, before: Value, channels: int) -> tuple[Value, Value]:
    """Both inputs of a cell with as many channels, the earlier one as small as the later one."""
    stride = -(-before.shape[1] // now.shape[1])
    left = net.conv(f"{name}.before", [before], channels, (1, 1), (stride, stride), output=now.shape[1:])
    return net.conv(f"{name}.now", [now], channels), left


def _normal(net: Net, name: str, now: Value, before: Value, channels: int) -> Value:
    """Five sums of two, all of the cell's inputs."""
    h, p = _fitted(net, name, now, before, channels)
    sums = [
        (_twice(net, f"{name}.a", h, channels, 3), h),
        (_twice(net, f"{name}.b", p, channels, 3), _twice(net, f"{name}.c", h, channels, 5)),
        (net.pool(f"{name}.d", [h], (3, 3), (1, 1)), p),
        (net.pool(f"{name}.e", [p], (3, 3), (1, 1)), net.pool(f"{name}.f", [p], (3, 3), (1, 1))),
        (_twice(net, f"{name}.g", p, channels, 5), _twice(net, f"{name}.h", p, channels, 3)),
    ]
    return concatenated([p, *(net.add(f"{name}.sum{number}", pair) for number, pair in enumerate(sums))])


def _reduction(net: Net, name: str, now: Value, before: Value, channels: int) -> Value:
    """Three sums at half of the size, and two that take one of them."""
    h, p = _fitted(net, name, now, before, channels)
    first = net.add(
        f"{name}.sum0", [_twice(net, f"{name}.a", h, channels, 5, 2), _twice(net, f"{name}.b", p, channels, 7, 2)]
    )
    second = net.add(
        f"{name}.sum1", [net.pool(f"{name}.c", [h], (3, 3), (2, 2)), _twice(net, f"{name}.d", p, channels, 7, 2)]
    )
    third = net.add(
        f"{name}.sum2", [net.pool(f"{name}.e", [h], (3, 3), (2, 2)), _twice(net, f"{name}.f", p, channels, 5, 2)]
    )
    fourth = net.add(f"{name}.sum3", [second, net.pool(f"{name}.g", [first], (3, 3), (1, 1))])
    fifth = net.add(
        f"{name}.sum4", [net.pool(f"{name}.h", [h], (3, 3), (2, 2)), _twice(net, f"{name}.i", first, channels, 3)]
    )
    return concatenated([second, third, fourth, fifth])


def randwire(device: Device, wirings: Sequence[networkx.Graph] | None = None, channels: int = 78) -> TaskGraph:
    """Randomly wired networks (Xie et al., 2019), the small regime: WS(32, 4, 0.75), 224 x 224.

    Stages of 28, 14 and 7 rows with `channels`, 2 and 4 times that; a node sums what comes in, then ReLU and a
    separable convolution of 3 x 3; those that nothing in the stage comes into read the stage's input with
    stride 2; those that nothing reads are averaged into the stage's output. `wirings` are three graphs; without, they
    are drawn here.
    """
    drawn = wirings or [networkx.connected_watts_strogatz_graph(32, 4, 0.75, seed=seed) for seed in (1, 2, 3)]
    net = Net("randwire", device)
    x = net.conv("stem0", [Value((3, 224, 224))], channels // 2, (3, 3), (2, 2))
    x = net.conv("stem1", [x], channels, (3, 3), (2, 2))
    for stage, wiring in enumerate(drawn):
        x = _stage(net, f"stage{stage}", x, wiring, channels << stage)
    x = net.conv("head", [x], 1280)
    x = net.pool("pool", [x], x.shape[1:], x.shape[1:], (1, 1))
    net.conv("classes", [x], 1000)
    return net.graph()


def _stage(net: Net, name: str, x: Value, wiring: networkx.Graph, channels: int) -> Value:
    values: dict[int, Value] = {}
    read: set[int] = set()
    for node in sorted(wiring.nodes):
        sources = sorted(other for other in wiring.neighbors(node) if other < node)
        read.update(sources)
        inputs = [values[other] for other in sources]
        values[node] = net.separable(f"{name}.{node}", inputs or [x], channels, 3, 1 if inputs else 2)
    ends = [values[node] for node in sorted(values) if node not in read]
    return net.add(f"{name}.mean", ends) if len(ends) > 1 else ends[0]


def read_wiring(path: Path) -> networkx.Graph:
    """A graph as text: the number of nodes, the number of edges, then an edge in each line. Raises InvalidTaskGraph."""
    try:
        numbers = [[int(word) for word in line.split()] for line in path.read_text().splitlines() if line.strip()]
        graph = networkx.Graph((one, other) for one, other in numbers[2:])
        graph.add_nodes_from(range(numbers[0][0]))
    except OSError as error:
        raise InvalidTaskGraph(f"the wiring '{path}' cannot be read: {error.strerror}.") from None
    except (ValueError, IndexError) as error:
        raise InvalidTaskGraph(f"'{path.name}' is no wiring of nodes and edges: {error}.") from None
    return graph


GRAPHS: Mapping[str, Callable[[Device], TaskGraph]] = {
    "inception_v3": inception_v3,
    "nasnet_like": nasnet_like,
    "randwire": randwire,
}


def _shape(shape: Sequence[int]) -> Shape:
    channels, rows, columns = shape
    return channels, rows, columns
