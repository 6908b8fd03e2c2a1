"""What lowering delivers: regions in order, each a kernel with the places that it works on, and the constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphopt.program.regions.buffer import Buffer, Place
from kernels.kernel import Kernel
from kernels.listing import Argument


@dataclass(frozen=True, slots=True)
class Origin:
    """A node of the model that a region computes."""

    operator: str
    name: str  # the node's, or that of its first result

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


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph as regions, in an order that they can run in."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    regions: tuple[Region, ...]
    constants: Mapping[Buffer, npt.NDArray[np.generic]]  # packed as their kernels want them

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All that regions read and write, in the order of their first use."""
        return tuple(dict.fromkeys(place.buffer for region in self.regions for place in region.places))

    @property
    def temporaries(self) -> tuple[Buffer, ...]:
        """The buffers of the arena, in the order of their first use."""
        return tuple(buffer for buffer in self.buffers if buffer.role == "temporary")
