"""Task graphs of networks with many branches, as problems for the scheduler: read from files, and built here.

Every node that computes is a region with the kernels of the scheduler's roofline; a concatenation computes nothing, as
its parts are written where they belong. Blocks run over space first, then channels, so a block reads the rows near its
own: the halo is the smallest with which, whatever kernels are chosen, a block waits for all that write rows which its
own rows' windows reach. Where that is half of the map or more, all blocks are needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import networkx
import numpy as np

from scheduler.device import Device
from scheduler.errors import InvalidTaskGraph
from scheduler.roofline import Floats, Work, block_rows, candidates
from scheduler.tasks import Kernel, Need, Region, TaskGraph

NUMBER = 4  # bytes: float32
WIDEST_HALO = 0.5
APART = 1e-6  # added to a halo: more than what ends of blocks that are one place differ by
Shape = tuple[int, int, int]  # channels, rows, columns
# Which convolutions have only the kernels of convolutions: all of them, those with windows, or none.
Gathered = Literal["windows", "all", "none"]
Spans = tuple[Floats, Floats]  # where the rows of each block begin and end, as fractions of the map


@dataclass(frozen=True, slots=True)
class Value:
    """What nodes read: a map, and the regions that write it. An input of the network is written by none."""

    shape: Shape
    regions: tuple[str, ...] = ()


@dataclass(slots=True)
class Net:
    """A network under construction for one device; batch 1."""

    name: str
    device: Device
    gathered: Gathered = "all"
    regions: list[Region] = field(default_factory=list)
    needs: dict[tuple[str, str], Need] = field(default_factory=dict)
    keys: dict[str, tuple[object, ...]] = field(default_factory=dict)  # by region what its kernels depend on
    rows: dict[tuple[object, ...], list[Spans]] = field(default_factory=dict)  # of blocks of each of these kernels
    halos: dict[tuple[object, ...], float] = field(default_factory=dict)
    kernels: dict[tuple[object, ...], tuple[Kernel, ...]] = field(default_factory=dict)

    def graph(self) -> TaskGraph:
        """What has been built."""
        return TaskGraph(self.name, tuple(self.regions), tuple(self.needs.values()))

    def conv(
        self, name: str, inputs: Sequence[Value], channels: int, kernel: tuple[int, int] = (1, 1),
        stride: tuple[int, int] = (1, 1), groups: int = 1, output: tuple[int, int] | None = None,
    ) -> Value:  # fmt: skip
        """A convolution of the inputs side by side, with its activation; `output` is rows and columns if not "same"."""
        deep = sum(value.shape[0] for value in inputs)
        shape = (channels, *(output or _strided(inputs[0].shape, stride)))
        outputs = _size(shape)
        depth = deep // groups * kernel[0] * kernel[1]
        read = sum(_size(value.shape) for value in inputs) + channels * depth
        tiled = groups == 1  # a sum over few channels is no product of matrices
        work = Work(
            name, 2 * outputs * depth, NUMBER * read, NUMBER * outputs, outputs, depth if tiled else 1,
            rows=shape[1] * shape[2], columns=channels, convolution=self._gathers(kernel, stride),
            recent_bytes=NUMBER * _written(inputs),
        )  # fmt: skip
        return self._add(work, inputs, shape, kernel[0], ("conv", deep, channels, kernel, stride, groups, shape))

    def _gathers(self, kernel: tuple[int, int], stride: tuple[int, int]) -> bool:
        if self.gathered == "windows":
            return kernel != (1, 1) or stride != (1, 1)
        return self.gathered == "all"

    def pool(
        self, name: str, inputs: Sequence[Value], kernel: tuple[int, int], stride: tuple[int, int],
        output: tuple[int, int] | None = None,
    ) -> Value:  # fmt: skip
        """A pooling of the inputs side by side."""
        shape = (sum(value.shape[0] for value in inputs), *(output or _strided(inputs[0].shape, stride)))
        outputs = _size(shape)
        read = sum(_size(value.shape) for value in inputs)
        work = Work(
            name, outputs * kernel[0] * kernel[1], NUMBER * read, NUMBER * outputs, outputs,
            recent_bytes=NUMBER * _written(inputs),
        )  # fmt: skip
        return self._add(work, inputs, shape, kernel[0], ("pool", kernel, stride, shape))

    def add(self, name: str, inputs: Sequence[Value]) -> Value:
        """The sum of the inputs."""
        shape = inputs[0].shape
        outputs = _size(shape)
        work = Work(
            name, outputs * len(inputs), NUMBER * outputs * len(inputs), NUMBER * outputs, outputs,
            recent_bytes=NUMBER * _written(inputs),
        )  # fmt: skip
        return self._add(work, inputs, shape, 1, ("add", len(inputs), shape))

    def depthwise(
        self, name: str, inputs: Sequence[Value], kernel: int, stride: int = 1
    ) -> Value:  # fmt: skip
        """The inputs' sum, its ReLU, and a convolution of each channel for itself: one region."""
        channels = inputs[0].shape[0]
        shape = (channels, *_strided(inputs[0].shape, (stride, stride)))
        outputs, inner = _size(shape), _size(inputs[0].shape)
        read = inner * len(inputs) + channels * kernel * kernel
        flops = 2 * outputs * kernel * kernel + inner * len(inputs)
        work = Work(
            name, flops, NUMBER * read, NUMBER * outputs, outputs, recent_bytes=NUMBER * _written(inputs)
        )  # fmt: skip
        return self._add(work, inputs, shape, kernel, ("depthwise", len(inputs), kernel, stride, shape))

    def separable(self, name: str, inputs: Sequence[Value], channels: int, kernel: int, stride: int = 1) -> Value:
        """Sum, ReLU, depthwise convolution, then one of 1 x 1: two regions."""
        return self.conv(f"{name}.point", [self.depthwise(f"{name}.depth", inputs, kernel, stride)], channels)

    def _add(
        self, work: Work, inputs: Sequence[Value], shape: Shape, kernel_rows: int, kind: tuple[object, ...]
    ) -> Value:
        key = (*kind, *(value.shape for value in inputs))
        if key not in self.kernels:
            self.kernels[key] = candidates(self.device, work)
            self.rows[key] = [block_rows(work, kernel) for kernel in self.kernels[key]]
        self.regions.append(Region(work.name, self.kernels[key], " ".join(map(str, key))))
        self.keys[work.name] = key
        for value in inputs:
            reach = _reach(kernel_rows, value.shape, shape, kind)
            for source in value.regions:
                pair = (self.keys[source], key, reach)
                if pair not in self.halos:
                    self.halos[pair] = max(
                        _halo(before, behind, reach) for before in self.rows[self.keys[source]]
                        for behind in self.rows[key]
                    )  # fmt: skip
                halo = self.halos[pair]
                self.needs[source, work.name] = (
                    Need(source, work.name, "near", halo) if halo < WIDEST_HALO else Need(source, work.name)
                )
        return Value(shape, (work.name,))


def _reach(kernel_rows: int, read: Shape, made: Shape, kind: tuple[object, ...]) -> float:
    """How far beyond its own rows a block reads, as a fraction of what is read.

    Of windows that keep the map's size, half of them and the row begun; of others up to all of them, as rows do not
    quite stand where they stood.
    """
    if read[1:] != made[1:]:
        return kernel_rows / read[1]
    return 0.0 if _pointwise(kind) else (kernel_rows + 1) / 2 / read[1]


def _pointwise(kind: tuple[object, ...]) -> bool:
    """Whether each position is made of the same one alone."""
    return kind[0] == "add" or (kind[0] == "conv" and kind[3] == (1, 1))


def _halo(before: Spans, behind: Spans, reach: float) -> float:
    """The smallest with which each block behind needs all before that its rows, and what they reach over, touch."""
    first = np.searchsorted(before[1], behind[0] - reach + APART, side="left")
    last = np.searchsorted(before[0], behind[1] + reach - APART, side="left") - 1
    number = np.arange(len(behind[0]))
    low = number / len(number) - (np.minimum(first, len(before[0]) - 1) + 1) / len(before[0])
    high = last / len(before[0]) - (number + 1) / len(number)
    return max(0.0, float(low.max()), float(high.max())) + APART


def concatenated(values: Sequence[Value]) -> Value:
    """Values beside each other, channel by channel: nothing is computed."""
    channels = sum(value.shape[0] for value in values)
    regions = dict.fromkeys(region for value in values for region in value.regions)
    return Value((channels, *values[0].shape[1:]), tuple(regions))


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


def _strided(shape: Shape, stride: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[1] // stride[0]), -(-shape[2] // stride[1])


def _size(shape: Shape) -> int:
    return shape[0] * shape[1] * shape[2]


def _written(values: Sequence[Value]) -> int:
    """Elements of those that a region writes."""
    return sum(_size(value.shape) for value in values if value.regions)


def _shape(shape: Sequence[int]) -> Shape:
    channels, rows, columns = shape
    return channels, rows, columns
