"""What is known while a graph is lowered: dims, constants, where every value lies, and the regions so far."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.lowering.elementwise import NotLowered, dtype_of
from graphopt.lowering.region import Region
from graphopt.lowering.view import View
from graphopt.model.facts import Facts
from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.target import Target

Problem = TypeVar("Problem", bound=Hashable)
Candidate = TypeVar("Candidate")


class Scope:
    """One graph on its way to regions."""

    def __init__(self, model: ir.Model, target: Target) -> None:
        self.facts = Facts(model)
        self.target = target
        self.places: dict[ir.Value, View] = {}
        self.regions: list[Region] = []
        self.temporaries: dict[str, int] = {}
        self.constants: dict[str, npt.NDArray[np.generic]] = {}
        self._kernels: dict[Hashable, Kernel] = {}

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """The dims; raises NotLowered when one is not a number."""
        found = self.facts.static_shape(value)
        if found is None:
            raise NotLowered(f"the dims of '{value.name}' are not all numbers; fix them with --dim or --shape.")
        return found

    def dtype(self, value: ir.Value) -> DType:
        """The element type; raises NotLowered when there is no kernel for it."""
        kind = self.facts.dtype(value)
        if kind is None:
            raise NotLowered(f"the element type of '{value.name}' is not known.")
        return dtype_of(kind)

    def constant(self, value: ir.Value) -> npt.NDArray[np.generic] | None:
        """A constant's data; None for a value that is computed."""
        return self.facts.array(value)

    def place(self, value: ir.Value) -> View:
        """Where a value lies; a constant gets its place among the constants when it is first asked for."""
        if value not in self.places:
            array = self.constant(value)
            if array is None:
                raise NotLowered(f"'{value.name}' is read before it is computed.")
            self.places[value] = self.keep(f"constant:{value.name}", array, self.dtype(value))
        return self.places[value]

    def keep(self, name: str, array: npt.NDArray[np.generic], dtype: DType) -> View:
        """A constant under a name, as it is."""
        self.constants[name] = np.ascontiguousarray(array).view(dtype.numpy)
        return View.dense(name, dtype, array.shape)

    def result(self, value: ir.Value) -> View:
        """A dense place for a value that is about to be computed: an output of the graph, or a temporary."""
        dtype, shape = self.dtype(value), self.shape(value)
        name = f"output:{value.name}" if value.is_graph_output() else f"value:{value.name}"
        view = View.dense(name, dtype, shape)
        if not value.is_graph_output():
            self.temporaries[name] = dtype.bytes * int(np.prod(shape, dtype=np.int64))
        self.places[value] = view
        return view

    def kernel(
        self,
        stem: str,
        problem: Problem,
        candidates: Callable[[Problem, Target], Sequence[Candidate]],
        build: Callable[[Problem, Candidate, Target, str], Kernel],
    ) -> Kernel:
        """The kernel of a problem by its likely best candidate; equal problems share one kernel."""
        key = (stem, problem)
        if key not in self._kernels:
            choice = candidates(problem, self.target)[0]
            self._kernels[key] = build(problem, choice, self.target, f"{stem}_{len(self._kernels)}")
        return self._kernels[key]

    def add(self, kernel: Kernel, buffers: Mapping[str, str], nodes: tuple[ir.Node, ...]) -> None:
        """A region; `buffers` by the names of the kernel's operands."""
        described = tuple(f"{node.op_type} {node.name or node.outputs[0].name}" for node in nodes)
        self.regions.append(Region(described, kernel, tuple(buffers[operand.name] for operand in kernel.operands)))
