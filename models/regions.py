"""Networks as regions under construction: one node after the other, and what blocks need of each other.

Every node that computes is a region with the kernels of the scheduler's roofline; a concatenation computes nothing, as
its parts are written where they belong. Blocks run over space first, then channels, so a block reads the rows near its
own: the halo is the smallest with which, whatever kernels are chosen, a block waits for all that write rows which its
own rows' windows reach. Where that is half of the map or more, all blocks are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from scheduler.device import Device
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


def _strided(shape: Shape, stride: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[1] // stride[0]), -(-shape[2] // stride[1])


def _size(shape: Shape) -> int:
    return shape[0] * shape[1] * shape[2]


def _written(values: Sequence[Value]) -> int:
    """Elements of those that a region writes."""
    return sum(_size(value.shape) for value in values if value.regions)
