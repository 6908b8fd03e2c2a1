"""A kernel for every size of a range, run at one size between guard pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.run import Executable
from kernels.size import Dim, at, free
from kernels.target import Target
from kernels.templates.template import Template
from tests.kernels.guard import run_guarded

Make = Callable[..., Any]  # the problem of some dims, which are numbers or sizes
Arrays = Mapping[str, np.ndarray]


class Ranged:
    """A kernel for all sizes, compiled once, and the problem of each.

    Operands are as large as the run's size makes them, so that a kernel which reads for a greater size ends its
    process.
    """

    def __init__(
        self, template: Template[Any, Any], make: Make, dims: Sequence[Dim], target: Target, candidate: Any = None
    ) -> None:
        self._template, self._make, self._dims, self._target = template, make, dims, target
        greatest = make(*(dim.most for dim in dims))
        self._candidate = candidate or template.candidates(greatest, target)[0]
        self.kernel = template.build(make(*map(free, dims)), self._candidate, target, "any")
        self._executable = Executable([self.kernel])

    def at(self, sizes: Sequence[int], arrays: Arrays) -> np.ndarray:
        """Its first output, at one size."""
        known = {dim.name: size for dim, size in zip(self._dims, sizes, strict=True)}
        alone = self._template.kernel(self._make(*sizes), self._target)
        elements = {one.name: one.elements for one in alone.operands}
        operands = tuple(replace(one, elements=elements.get(one.name, one.elements)) for one in self.kernel.operands)
        here = replace(self.kernel, operands=operands)
        packed = {
            one.name: one.packing.pack(arrays[one.name]) for one in self.kernel.operands
            if one.packing is not None
        }  # fmt: skip
        fixed = tuple(
            replace(one, elements=packed[one.name].size) if one.name in packed else one for one in here.operands
        )
        read = np.array(sizes, np.int64)[: self.kernel.operands[-1].elements]
        assert self.kernel.run_blocks is None or 0 < at(self.kernel.run_blocks, known) <= self.kernel.blocks
        given = {**arrays, **packed, "sizes": read}
        found = run_guarded(replace(here, operands=fixed), given, executable=self._executable)
        return next(found[one.name] for one in self.kernel.operands if one.role == "output")
