"""What lowering delivers: regions in order, each a kernel with the buffers that it works on, and the constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.kernel import Kernel
from kernels.listing import Argument


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that one kernel computes. `buffers` holds a name for each of the kernel's operands, in their order."""

    nodes: tuple[str, ...]  # operator types and names, for people
    kernel: Kernel
    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph as regions. A buffer is an input, an output, a constant, or a temporary with a size in bytes.

    A buffer is called "purpose:value". Purposes hold no colon and values' names are unique, so that no value's name,
    however it is spelled, makes one buffer of two.
    """

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    regions: tuple[Region, ...]
    temporaries: Mapping[str, int]
    constants: Mapping[str, npt.NDArray[np.generic]]  # packed as their kernels want them
