"""What is known while a graph is lowered: dims, constants, where every value lies, and the regions so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import sympy

from graphopt.errors import ModelError, NotLowered
from graphopt.lazy import Lazy
from graphopt.model.dims import Dims, declared, normal, static
from graphopt.model.facts import Facts
from graphopt.model.limits import MOST_BYTES, MOST_WRITTEN
from graphopt.model.nodes import OF_ANY_SIDES
from graphopt.model.operators.formulas import dtype_of
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.table import operator_of
from graphopt.model.settling import way_to_fix
from graphopt.program.regions.buffer import Buffer, Place, Role
from graphopt.program.regions.counts import Counts
from graphopt.program.regions.images.convert import copies
from graphopt.program.regions.images.image import Home, Image
from graphopt.program.regions.kernels import Kernels
from graphopt.program.regions.precision import FLOAT32, Precision
from graphopt.program.regions.region import Constant, Controlled, Lowered, Origin, Problems, Region
from graphopt.program.regions.view import View, axes_of
from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.listing import ALIGNMENT
from kernels.target import Target
from kernels.templates.convolution.layout import Layout
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.templates.template import Template
from kernels.tensor.expression import Expression, Index, Number, dense_strides, index

if TYPE_CHECKING:
    from kernels.ptx.tasks import table as ptx
else:
    ptx = Lazy("kernels.ptx.tasks.table")

Places = Mapping[str, Buffer | Place]  # by the names of a kernel's operands; a buffer stands for its start
Problem = TypeVar("Problem")
Candidate = TypeVar("Candidate")
Written = Callable[[Kernel], None]  # hears of each kernel as soon as there is one
LowerBody = Callable[[ir.Model, str], Lowered]  # a model, and what the names of its kernels begin with


class Scope:
    """One graph on its way to regions."""

    def __init__(
        self,
        model: ir.Model,
        target: Target,
        inner: LowerBody | None = None,
        *,
        exact: bool = False,
        precision: Precision = FLOAT32,
        tight: bool = False,
        steady: bool = False,
        prefix: str = "",
        kernels: Kernels | None = None,
        written: Written | None = None,
    ) -> None:
        self.model = model
        self.facts = Facts(model)
        self._inner = inner
        self.prefix = prefix  # of the names of kernels; empty but in the body of a loop or a condition
        self._graph = model.graph
        self._order: Mapping[ir.Node, int] | None = None
        self.target = target
        self.exact, self.precision = exact, precision
        self.steady = steady  # whether the regions are the same for all sizes: no estimate decides which there are
        # Whether kernels take the sides of images from the run: those of other operators go by strides then.
        self.any_sides = any(OF_ANY_SIDES in node.metadata_props for node in model.graph)
        self.tight = tight  # whether a result may lie less well where that saves memory
        self.places: dict[ir.Value, View] = {}
        self.dense_copies: dict[ir.Value, View] = {}  # row-major copies of values that lie otherwise
        self.block_copies: dict[tuple[ir.Value, int], Image] = {}  # in blocks of so many channels; 0: of all of them
        self.homes: dict[ir.Value, Home] = {}  # where images should lie to be concatenated without copies
        self.later_homes: dict[ir.Value, Home] = {}  # and from when they are first concatenated, where memory is tight
        self.parts: dict[ir.Value, View] = {}  # where others should be computed to be concatenated without copies
        self.images: dict[ir.Value, Image] = {}  # values that lie as images; `place` gives their views
        self.regions: list[Region] = []
        self.constants: dict[Buffer, Constant] = {}
        self._filled: dict[tuple[ir.Value, str], View] = {}
        self._outputs: dict[ir.Value, Buffer] = {}
        self._number: dict[ir.Value, int] = {}  # of each result of the graph, the first one where it is given twice
        for at, output in enumerate(model.graph.outputs):
            self._number.setdefault(output, at)
        self._buffers = self._named = 0
        self._kernels = Kernels() if kernels is None else kernels
        self._written = written
        self._symbols: dict[sympy.Symbol, int] | None = None
        self.counts = Counts(self.facts, model.graph)
        self.problems: Problems = {}  # by the names of kernels
        self.controls: dict[str, Controlled] = {}  # of kernels that run others
        self.rounding: dict[str, float] = {}  # by the names of origins, as `Lowered` has it
        self.rooms: dict[ir.Value, tuple[int, ...]] = {}  # of results that are caches: what their memory has room for

    @property
    def order(self) -> Mapping[ir.Node, int]:
        """The place of each node in the model."""
        if self._order is None:
            self._order = {node: at for at, node in enumerate(self._graph)}
        return self._order

    def _way(self, value: ir.Value) -> str:
        """What fixes the dims of a value, where they are those of an input."""
        is_given = value.is_graph_input() or any(not str(one).startswith("?") for one in self._symbols_of(value))
        way = way_to_fix(self._graph, self.facts) if is_given else ""
        return f": {way}" if way else ""

    def _symbols_of(self, value: ir.Value) -> set[sympy.Basic]:
        return {one for dim in self.facts.shape(value) or () if not isinstance(dim, int) for one in dim.free_symbols}

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """The dims; raises NotLowered when one is not a number, ModelError for a value that no machine holds."""
        found = self._known_shape(value)
        if found is None:
            raise NotLowered(f"the dims of '{value.name}' are not all numbers{self._way(value)}.")
        if prod(found) > MOST_BYTES:
            raise ModelError(
                f"'{value.name}' has {prod(found):,} elements, more than any machine has; fix smaller dims."
            )
        return found

    def dims(self, value: ir.Value) -> Dims:
        """The dims as a run finds them: those of `shape`, with expressions of counts where data decides."""
        fixed = self._fixed_shape(value)
        return self.shape(value) if fixed is not None else self._inferred(value) or ()

    def counted(self, value: ir.Value) -> tuple[int, ...]:
        """The axes along which data decides the dims of a value."""
        return tuple(axis for axis, dim in enumerate(self.dims(value)) if not isinstance(dim, int))

    def _known_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Dims that every run has, or the most that a run can find."""
        fixed = self._fixed_shape(value)
        if fixed is not None or not self.counts:
            return fixed
        shape = self._inferred(value)
        most = [None] if shape is None else [self.counts.most(dim) for dim in shape]
        return None if None in most else tuple(dim for dim in most if dim is not None)

    def _fixed_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """By inference, by what the model declares, or by a reader that keeps the dims of what it reads.

        The dims of inputs are the caller's choice, whatever outputs declare.
        """
        found = self.facts.static_shape(value)
        if value.is_graph_input():
            return found
        found = static(self._inferred(value)) or declared(value) if found is None else found
        for use in value.uses() if found is None else ():
            operator = operator_of(use.node)
            if use.idx == 0 and operator is not None and operator.axes in ("each", "symmetric"):
                return self._fixed_shape(use.node.outputs[0])
        return found

    def _inferred(self, value: ir.Value) -> Dims | None:
        """By inference, with what declared outputs say: what makes dims of data shares their symbols with readers."""
        if self._symbols is None:
            self._symbols = {}
            chosen = {dim for one in self._graph.inputs for dim in self.facts.shape(one) or ()}
            for output in self._graph.outputs:
                inferred, said = self.facts.shape(output), declared(output)
                if inferred is not None and said is not None and len(inferred) == len(said):
                    pairs = zip(inferred, said, strict=True)
                    self._symbols.update({one: size for one, size in pairs
                                          if not isinstance(one, int) and isinstance(one, sympy.Symbol)
                                          and one not in chosen})  # fmt: skip
        shape, said_so = self.facts.shape(value), self._symbols
        if shape is None or not said_so:
            return shape
        return tuple(one if isinstance(one, int) else normal(one.subs(said_so)) for one in shape)

    def dtype(self, value: ir.Value) -> DType:
        """The element type; raises NotLowered when there is no kernel for it."""
        kind = self.facts.dtype(value)
        if kind is None:
            raise NotLowered(f"the element type of '{value.name}' is not known.")
        return dtype_of(kind)

    def constant(self, value: ir.Value) -> npt.NDArray[np.generic] | None:
        """A constant's data; None for a value that is computed."""
        return self.facts.array(value)

    def bound_axes(self, node: ir.Node) -> frozenset[int]:
        """The axes that an operator works along, by its record; raises NotLowered where only a run can tell them."""
        operator = operator_of(node)
        assert operator is not None and callable(operator.axes), "its record says its axes"
        try:
            return operator.axes(node, self.facts).bound
        except Unclear as unclear:
            raise NotLowered(f"{node.op_type} '{node.name}' has axes that are known only when it runs.") from unclear

    def place(self, value: ir.Value) -> View:
        """Where a value lies; a constant gets its place among the constants when it is first asked for."""
        if value not in self.places and value in self.images:
            self.places[value] = self._as_view(value, self.images[value])
        if value not in self.places:
            array = self.constant(value)
            if array is None:
                raise NotLowered(f"'{value.name}' is read before it is computed.")
            self.places[value] = self.keep("constant", value.name, array, self.dtype(value))
        return self.places[value]

    def buffer(self, role: Role, purpose: str, name: str | None, size: int, argument: int | None = None) -> Buffer:
        """A buffer of its own of `size` bytes; `name` is that of the value it is for."""
        self._buffers += 1
        return Buffer(self._buffers - 1, role, size, purpose, name or "", argument)

    def temporary(self, purpose: str, name: str | None, size: int) -> Buffer:
        """A buffer of the arena of `size` bytes."""
        return self.buffer("temporary", purpose, name, size)

    def given(self, value: ir.Value) -> View:
        """Where a caller wants a result of the graph: dense, or as far apart as the room of a cache has it."""
        dtype, shape = self.dtype(value), self.shape(value)
        return View(self.output(value), dtype, shape, dense_strides(self.rooms.get(value) or shape))

    def output(self, value: ir.Value) -> Buffer:
        """The caller's buffer of a result of the graph."""
        if value not in self._outputs:
            size = self.dtype(value).bytes * prod(self.rooms.get(value) or self.shape(value))
            self._outputs[value] = self.buffer("output", "output", value.name, size, self._number[value])
        return self._outputs[value]

    def weight(self, purpose: str, name: str | None, array: npt.NDArray[np.generic], operand: Operand) -> Buffer:
        """A constant that an operand packs."""
        assert operand.packing is not None, "constants without a packing are kept"
        buffer = self.buffer("constant", purpose, name, operand.bytes)
        self.constants[buffer] = Constant(array, operand.packing)
        return buffer

    def keep(self, purpose: str, name: str | None, array: npt.NDArray[np.generic], dtype: DType) -> View:
        """A constant as it is, row-major; raises ModelError for one that only repeats, without end."""
        if array.nbytes > MOST_WRITTEN and 0 in array.strides:
            raise ModelError(
                f"'{name}' repeats a few numbers; written out for a program they would take "
                f"{array.nbytes:,} bytes, more than {MOST_WRITTEN:,}; fix smaller dims."
            )
        buffer = self.buffer("constant", purpose, name, array.nbytes)
        self.constants[buffer] = Constant(np.ascontiguousarray(array).view(dtype.numpy))
        return View.dense(buffer, dtype, array.shape)

    def filled(self, value: ir.Value, purpose: str, array: npt.NDArray[np.generic]) -> View:
        """A constant value's numbers as `array` repeats or fills them up, once for each purpose."""
        if (value, purpose) not in self._filled:
            self._filled[value, purpose] = self.keep(purpose, value.name, array, self.dtype(value))
        return self._filled[value, purpose]

    def result(self, value: ir.Value, *, apart: bool = False) -> View:
        """A dense place for a value that is about to be computed: an output of the graph, or a temporary.

        With `apart` it may be the part of a larger value that it becomes, and begin anywhere in a buffer.
        """
        if apart and value in self.parts:
            self.places[value] = self.parts[value]
            return self.places[value]
        if value in self.rooms:
            self.places[value] = self.given(value)
            return self.places[value]
        dtype, shape = self.dtype(value), self.shape(value)
        self.places[value] = View.dense(self.result_buffer("value", value, dtype.bytes * prod(shape)), dtype, shape)
        return self.places[value]

    def result_buffer(self, purpose: str, value: ir.Value, size: int) -> Buffer:
        """The caller's buffer for an output of the graph, a temporary of `size` bytes for any other value."""
        given = value.is_graph_output() and self.is_prefix(value) and value not in self.rooms
        return self.output(value) if given else self.temporary(purpose, value.name, size)

    def is_prefix(self, value: ir.Value) -> bool:
        """Whether a value lies dense in memory for the most: all that a run finds, and then the rest."""
        counted = self.counted(value)
        return not counted or (len(counted) == 1 and prod(self.shape(value)[: counted[0]]) == 1)

    def image(self, value: ir.Value, layout: Layout, *, apart: bool = True, at_home: bool = True) -> Image:
        """A place in a layout for a value that is about to be computed.

        `apart`: whether its rows may lie as far apart as those of larger images, which it is a part of; `at_home`:
        whether it may lie in these.
        """
        dtype, shape, there = self.dtype(value), self.shape(value), self._among(value, layout) if at_home else None
        if there is not None and (apart or there.layout == layout):
            self.images[value] = there
            return there
        if value.is_graph_output() and layout.elements == prod(shape) and not self.counted(value):
            image = Image(self.output(value), dtype, shape, layout)
            view = image.view()
            if view is not None and view.is_dense:
                self.images[value], self.places[value] = image, View.dense(image.buffer, dtype, shape)
                return image
        buffer = self.temporary("value", value.name, dtype.bytes * layout.elements)
        self.images[value] = Image(buffer, dtype, shape, layout)
        return self.images[value]

    def laid(self, value: ir.Value, layout: Layout) -> Layout:
        """The layout that `image` gives a value: as far apart as in the images that it is a part of."""
        there = self._among(value, layout)
        return layout if there is None else there.layout

    def _among(self, value: ir.Value, layout: Layout) -> Image | None:
        """Where a value lies in larger images: in some of their blocks, or channels where a run sets the sides."""
        if layout.order == "NHWC" and self.any_sides and value in self.parts:
            return Image.of_channels(self.parts[value])
        home = self.homes.get(value) if layout.order == "NCHWc" else None
        return None if home is None else home.image(self.dtype(value), self.shape(value), layout)

    def place_is_dense(self, value: ir.Value) -> bool:
        """Whether a value lies row-major in a buffer of its own."""
        view = self.images[value].view() if value in self.images else self.place(value)
        return view is not None and view.is_dense

    def convert(self, source: Image, aim: Image, first: int = 0, nodes: tuple[ir.Node, ...] = ()) -> None:
        """Regions that copy images to another layout, to its channels from `first` on."""
        for part, there in copies(source, aim, first):
            self.copy(part, there, nodes)

    def copy(self, source: View | Number, aim: View, nodes: tuple[ir.Node, ...]) -> None:
        """A region that copies one view to another of the same dims, or one number; none where both are one place."""
        if source == aim:
            return
        axes = axes_of(aim.shape)
        places: dict[str, Place] = {}
        if isinstance(source, Number):
            value: Expression = source
        else:
            x, places["x"] = self.begun(source)
            value = x.operand("x")[tuple(Index(()) if axis.extent == 1 else index(axis) for axis in axes)]
        y, places["y"] = self.begun(aim)
        problem = Elementwise(axes, (Output(y.operand("y"), value),))
        self.add(self.kernel(ELEMENTWISE, problem), places, nodes)

    def _as_view(self, value: ir.Value, image: Image) -> View:
        """Images by strides; where none describe them, a dense copy."""
        view = image.view()
        if view is not None:
            return view
        size = image.dtype.bytes * prod(image.shape)
        view = View.dense(self.result_buffer("dense", value, size), image.dtype, image.shape)
        aim = Image.of_view(view)
        assert aim is not None, "dense dims of images"
        self.convert(image, aim)
        return view

    def kernel(self, template: Template[Problem, Candidate], problem: Problem) -> Kernel:
        """The kernel of a problem by its likely best candidate; equal problems share one kernel."""
        key = (self.prefix, template.name, template.variant, problem)
        built = self._kernels.built
        if key not in built:
            name = f"{self.prefix}{template.name}_{len(built)}"
            write = ptx.task if self.target.is_gpu else Template.kernel
            built[key] = write(template, problem, self.target, name)
            if self._written is not None:
                self._written(built[key])
        self.problems[built[key].name] = template, problem
        return built[key]

    def likely(self, template: Template[Problem, Candidate], problem: Problem) -> float:
        """Nanoseconds of a problem's likely best candidate."""
        return self._kernels.likely(template, problem, self.target)

    def inner(self, body: ir.Model, prefix: str) -> Lowered:
        """The regions of a body, whose kernels' names begin with `prefix`."""
        if self._inner is None:
            raise NotLowered("bodies are lowered with the graph around them.")
        return self._inner(body, prefix)

    def named(self, word: str) -> str:
        """A name for a kernel that is no template's, which no other one has."""
        self._named += 1
        return f"{self.prefix}{word}_{self._named - 1}"

    def begun(self, view: View) -> tuple[View, Place]:
        """A view as an operand of an elementwise kernel, and where the operand begins: where the view does.

        So nothing is claimed that others write later, and equal pieces have one kernel. On a GPU the rest of a begin
        that is not aligned is the kernel's. Where sizes are free, places are the same for all of them, and kernels add
        what depends on these.
        """
        begin = view.offset * view.dtype.bytes
        if self.steady or (self.target.is_gpu and begin % ALIGNMENT):
            return view, Place(view.buffer)
        return replace(view, offset=0), Place(view.buffer, begin)

    def add(self, kernel: Kernel, places: Places, nodes: tuple[ir.Node, ...]) -> None:
        """A region."""
        origins = tuple(map(Origin.of, nodes))
        given = (places[operand.name] for operand in kernel.operands)
        self.regions.append(
            Region(origins, kernel, tuple(Place(one) if isinstance(one, Buffer) else one for one in given))
        )
