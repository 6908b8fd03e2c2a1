"""What lowering delivers: regions in order, each a kernel with the places that it works on, and the constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.program.regions.buffer import Buffer, Place
from kernels.control import Control
from kernels.kernel import Filling, Kernel, Packing
from kernels.listing import Argument
from kernels.size import Dim, Size
from kernels.target import Target
from kernels.templates.template import Template


@dataclass(frozen=True, slots=True)
class Origin:
    """A node of the model that a region computes."""

    operator: str
    name: str  # the node's, or that of its first result

    @classmethod
    def of(cls, node: ir.Node) -> Origin:
        """The origin that a node is."""
        return cls(node.op_type, node.name or node.outputs[0].name or "")

    def __str__(self) -> str:
        return f"{self.operator} {self.name}"


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that one kernel computes, and a place for each of the kernel's operands, in their order."""

    nodes: tuple[Origin, ...]  # none for a copy
    kernel: Kernel
    places: tuple[Place, ...]

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """The buffers of the kernel's inputs and weights, each once."""
        return self._buffers(written=False)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """The buffers of the kernel's outputs, each once."""
        return self._buffers(written=True)

    def _buffers(self, *, written: bool) -> tuple[Buffer, ...]:
        pairs = zip(self.kernel.operands, self.places, strict=True)
        return tuple(dict.fromkeys(place.buffer for operand, place in pairs if (operand.role == "output") == written))


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant, and how its kernel wants it."""

    array: npt.NDArray[np.generic]
    packing: Packing | None = None  # None: as it is

    def packed(self) -> npt.NDArray[np.generic]:
        """As the kernel reads it."""
        return self.array if self.packing is None else self.packing.pack(self.array)

    def fill(self, packed: npt.NDArray[np.uint8]) -> None:
        """Write it over zeros, in bytes, without a copy where that can be done."""
        if isinstance(self.packing, Filling):
            self.packing.fill(self.array, packed.view(self.array.dtype))
        else:
            packed[:] = np.ascontiguousarray(self.packed()).reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Cache:
    """An output whose first rows are those of an input, in whose memory it lies: nothing of it is copied."""

    past: str  # the input
    room: tuple[int, ...]  # the dims that the memory has room for


NO_CACHES: Mapping[str, Cache] = MappingProxyType({})


Problems = dict[str, tuple[Template[Any, Any], Any]]


@dataclass(frozen=True, slots=True)
class Controlled:
    """What runs other kernels, and what these were made of, by their names."""

    control: Control
    problems: Problems
    controls: Mapping[str, Controlled]  # of those that run others again
    orders: tuple[tuple[int, ...], ...]  # of the runs of each body: which one each was when the body was lowered


Controls = Mapping[str, Controlled]  # by the names of kernels that run others


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph as regions, in an order that they can run in."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    regions: tuple[Region, ...]
    constants: Mapping[Buffer, Constant]
    problems: Problems  # by the names of kernels
    target: Target  # that kernels were chosen for: it says how large the program's weights are
    dims: tuple[Dim, ...] = ()  # whose sizes only the run knows; buffers and blocks are those of the greatest ones
    derived: tuple[Size | int, ...] = ()  # numbers that follow from their sizes and that kernels read behind them
    controls: Controls = field(default_factory=dict)  # by the names of kernels that run others
    rounding: Mapping[str, float] = field(default_factory=dict)  # the time of what may be rounded if it is, over else

    def with_kernels(self, kernels: Mapping[str, Kernel]) -> Lowered:
        """The same with other kernels of the same problems and names, and constants packed for them."""
        moved: dict[Buffer, Buffer] = {}
        constants = dict(self.constants)
        for region in self.regions:
            kernel = kernels.get(region.kernel.name, region.kernel)
            for operand, place in zip(kernel.operands, region.places, strict=True):
                if operand.packing is not None and place.buffer not in moved:
                    other = replace(place.buffer, size=operand.bytes)
                    constants[other] = Constant(constants.pop(place.buffer).array, operand.packing)
                    moved[place.buffer] = other
        regions = (
            replace(
                region,
                kernel=kernels.get(region.kernel.name, region.kernel),
                places=tuple(replace(one, buffer=moved.get(one.buffer, one.buffer)) for one in region.places),
            )
            for region in self.regions
        )
        return replace(self, regions=tuple(regions), constants=constants)

    def candidate(self, kernel: Kernel) -> object:
        """What one of its kernels was chosen to be; None where no template wrote it."""
        template, problem = self.problems.get(kernel.name, (None, None))
        found = () if template is None else template.candidates(problem, self.target)
        return next((one for one in found if str(one) == kernel.choice), found[0] if found else None)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All that regions read and write, in the order of their first use."""
        return tuple(dict.fromkeys(place.buffer for region in self.regions for place in region.places))

    @property
    def temporaries(self) -> tuple[Buffer, ...]:
        """The buffers of the arena, in the order of their first use."""
        return tuple(buffer for buffer in self.buffers if buffer.role == "temporary")
