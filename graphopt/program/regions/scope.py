"""What is known while a graph is lowered: dims, constants, where every value lies, and the regions so far."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import ModelError, NotLowered
from graphopt.model.facts import Facts
from graphopt.model.limits import MOST_BYTES, MOST_WRITTEN
from graphopt.model.operators.formulas import dtype_of
from graphopt.program.regions.images.convert import copies
from graphopt.program.regions.images.image import Home, Image
from graphopt.program.regions.region import Region
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.target import Target
from kernels.templates import elementwise
from kernels.templates.convolution.layout import Layout

Problem = TypeVar("Problem", bound=Hashable)
Candidate = TypeVar("Candidate")


class Scope:
    """One graph on its way to regions."""

    def __init__(self, model: ir.Model, target: Target, *, exact: bool = False) -> None:
        self.facts = Facts(model)
        self.target = target
        self.exact = exact
        self.places: dict[ir.Value, View] = {}
        self.homes: dict[ir.Value, Home] = {}  # where images should lie to be concatenated without copies
        self.images: dict[ir.Value, Image] = {}  # values that lie as images; `place` gives their views
        self.regions: list[Region] = []
        self.temporaries: dict[str, int] = {}
        self.constants: dict[str, npt.NDArray[np.generic]] = {}
        self._kernels: dict[Hashable, Kernel] = {}

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """The dims; raises NotLowered when one is not a number, ModelError for a value that no machine holds."""
        found = self.facts.static_shape(value)
        if found is None:
            raise NotLowered(f"the dims of '{value.name}' are not all numbers; fix them with --dim or --shape.")
        if prod(found) > MOST_BYTES:
            raise ModelError(
                f"'{value.name}' has {prod(found):,} elements, more than any machine has; fix smaller dims."
            )
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
        if value not in self.places and value in self.images:
            self.places[value] = self._as_view(value, self.images[value])
        if value not in self.places:
            array = self.constant(value)
            if array is None:
                raise NotLowered(f"'{value.name}' is read before it is computed.")
            self.places[value] = self.keep(f"constant:{value.name}", array, self.dtype(value))
        return self.places[value]

    def keep(self, name: str, array: npt.NDArray[np.generic], dtype: DType) -> View:
        """A constant under a name, as it is; raises ModelError for one that only repeats, without end."""
        if array.nbytes > MOST_WRITTEN and 0 in array.strides:
            raise ModelError(
                f"'{name.partition(':')[2]}' repeats a few numbers; written out for a program they would take "
                f"{array.nbytes:,} bytes, more than {MOST_WRITTEN:,}; fix smaller dims."
            )
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

    def image(self, value: ir.Value, layout: Layout) -> Image:
        """A place in a layout for a value that is about to be computed."""
        dtype, shape = self.dtype(value), self.shape(value)
        made = Image(f"value:{value.name}", dtype, shape, layout)
        home = self.homes.get(value)
        if home is not None and layout.order == "NCHWc" and layout.before == layout.after == (0, 0, 0):
            offset = home.channel // layout.block * layout.block_stride
            self.temporaries[home.buffer] = home.bytes
            self.images[value] = replace(made, buffer=home.buffer, offset=offset)
            return self.images[value]
        view, aim = made.view(), View.dense(f"output:{value.name}", dtype, shape)
        if value.is_graph_output() and view is not None and view.is_dense and layout.elements == prod(shape):
            made, self.places[value] = replace(made, buffer=aim.buffer), aim
        else:
            self.temporaries[made.buffer] = dtype.bytes * layout.elements
        self.images[value] = made
        return made

    def place_is_dense(self, value: ir.Value) -> bool:
        """Whether a value lies row-major in a buffer of its own."""
        view = self.images[value].view() if value in self.images else self.place(value)
        return view is not None and view.is_dense

    def convert(self, source: Image, aim: Image, first: int = 0, nodes: tuple[ir.Node, ...] = ()) -> None:
        """Regions that copy images to another layout, to its channels from `first` on."""
        for problem in copies(source, aim, first):
            kernel = self.kernel("elementwise", problem, elementwise.candidates, elementwise.build)
            self.add(kernel, {"x": source.buffer, "y": aim.buffer}, nodes)

    def _as_view(self, value: ir.Value, image: Image) -> View:
        """Images by strides; where none describe them, a dense copy."""
        view = image.view()
        if view is not None:
            return view
        name = f"output:{value.name}" if value.is_graph_output() else f"dense:{value.name}"
        view = View.dense(name, image.dtype, image.shape)
        if not value.is_graph_output():
            self.temporaries[name] = image.dtype.bytes * prod(image.shape)
        aim = Image.of_view(view)
        assert aim is not None, "dense dims of images"
        self.convert(image, aim)
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
