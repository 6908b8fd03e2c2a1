"""A node on its way to routines: its operands and attributes, and the stages that compute its results.

A definition is a function of one `Defined` node. It opens a stage, names what the stage reads and writes, writes loops
(`kernels/routine/writer.py`) and closes it:

    def reverse_sequence(node: Defined) -> None:
        with node.stage() as w:
            x, lengths, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
            with w.shared(*y.shape[:2]) as (time, batch):
                ...

Most operators take one stage. What one stage computes and a later one needs lies in a `temporary`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.dims import Dim, Dims
from graphopt.model.nodes import attribute_of
from graphopt.program.regions.buffer import Buffer, Place
from graphopt.program.regions.copies import dense
from graphopt.program.regions.images.image import layout_of
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.build import ROUTINE
from kernels.routine.writer import Grid, Writer, as_type, integer, lt, maximum, minimum, pick, quotient
from kernels.size import is_free
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.matrix import Matrix
from kernels.tensor.expression import Expression, dense_strides, index


class Stage(Writer):
    """A routine being written, whose operands are places of the program."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.places: dict[str, Buffer | Place] = {}
        self._read: dict[View, Grid] = {}

    def reads(self, view: View) -> Grid:
        """What is read; dense, from anywhere in its buffer on."""
        if view not in self._read:
            assert replace(view, offset=0).is_dense, "a stage reads dense values"
            name = f"x{len(self._read)}"
            self.places[name] = Place(view.buffer, view.offset * view.dtype.bytes)
            self._read[view] = self.input(name, view.dtype, view.shape)
        return self._read[view]

    def writes(self, view: View) -> Grid:
        """What is written; dense, from anywhere in its buffer on."""
        assert replace(view, offset=0).is_dense, "a stage writes dense values"
        name = f"y{len(self.places)}"
        self.places[name] = Place(view.buffer, view.offset * view.dtype.bytes)
        return self.output(name, view.dtype, view.shape)


@contextmanager
def pieces(
    node: Defined, w: Stage, dims: Sequence[int], *of: tuple[int, int]
) -> Iterator[tuple[Sequence[Expression], Sequence[Expression]]]:  # fmt: skip
    """Loops over dims and over the pieces, of so many elements, of others: the indices of both.

    Workers share the dims and the pieces; the dims alone in a program of any size, whose pieces no polynomial counts.
    """
    if node.is_steady:
        counts = [quotient(integer(size + piece - 1), piece) for size, piece in of]
        with w.shared(*dims) as at, w.loops(*counts) as inner:
            yield at, inner
    else:
        with w.shared(*dims, *(-(-size // piece) for size, piece in of)) as at:
            yield at[: len(dims)], at[len(dims) :]


class Defined:
    """A node whose operator is written as loops."""

    def __init__(self, scope: Scope, node: ir.Node) -> None:
        self._scope, self.node = scope, node

    @property
    def opset(self) -> int:
        """The version of ONNX that the node is of."""
        return self._scope.facts.opset(self.node)

    @property
    def is_tight(self) -> bool:
        """Whether it may be computed a little slower where that saves memory."""
        return self._scope.tight

    @property
    def is_steady(self) -> bool:
        """Whether its stages are the same for all sizes: no size decides which there are."""
        return self._scope.steady

    # -- operands ---------------------------------------------------------------------------------------------------

    def has(self, at: int) -> bool:
        """Whether an input is given."""
        return at < len(self.node.inputs) and self.node.inputs[at] is not None

    def wants(self, at: int) -> bool:
        """Whether an output is asked for."""
        return at < len(self.node.outputs) and bool(self.node.outputs[at].name)

    def value(self, at: int) -> ir.Value:
        """An input's value; raises NotLowered where it is left out."""
        found = self.node.inputs[at] if at < len(self.node.inputs) else None
        if found is None:
            raise NotLowered(f"{self.node.op_type} '{self.node.name}' has no input {at}.")
        return found

    def shape(self, at: int) -> tuple[int, ...]:
        """An input's dims."""
        return self._scope.shape(self.value(at))

    def dtype(self, at: int) -> DType:
        """An input's element type."""
        return self._scope.dtype(self.value(at))

    def constant(self, at: int) -> npt.NDArray[np.generic] | None:
        """An input's data where it is a constant, else None; also where it is left out."""
        return self._scope.constant(self.value(at)) if self.has(at) else None

    def input(self, at: int) -> View:
        """Where an input lies, row-major."""
        return dense(self._scope, self.value(at))

    def channels_last(self, at: int = 0) -> tuple[View, View] | None:
        """An input and the result as [images, pixels..., channels], where the input lies so; else None."""
        value, result = self.value(at), self.node.outputs[0]
        rank = len(self._scope.shape(value))
        if rank not in range(3, 6) or any(map(is_free, self._scope.shape(value))):
            return None
        last = (0, *range(2, rank), 1)
        given = self._scope.place(value).transposed(last)
        if self._scope.place_is_dense(value) or not replace(given, offset=0).is_dense:
            return None
        made = self._scope.image(result, layout_of(self._scope.shape(result), "NHWC")).view()
        assert made is not None, "channels that lie side by side have strides"
        return given, made.transposed(last)

    def output(self, at: int) -> View:
        """A place for a result."""
        value = self.node.outputs[at]
        return self._scope.places[value] if value in self._scope.places else self._scope.result(value)

    def continued(self, at: int, source: int) -> View:
        """The memory of a result that begins as an operand, which is copied there unless it lies there, as in a cache.

        It has the dims that there is room for.
        """
        old, whole = self._scope.place(self.value(source)), self.output(at)
        self._scope.copy(old, replace(whole, shape=old.shape), (self.node,))
        room = self._scope.rooms.get(self.node.outputs[at]) or whole.shape
        return replace(whole, shape=room, strides=dense_strides(room))

    def pass_on(self, at: int, source: int = 0) -> None:
        """Let a result be an input, where that lies."""
        self._scope.places[self.node.outputs[at]] = self._scope.place(self.value(source))

    def output_shape(self, at: int) -> tuple[int, ...]:
        """A result's dims."""
        return self._scope.shape(self.node.outputs[at])

    def output_dtype(self, at: int) -> DType:
        """A result's element type."""
        return self._scope.dtype(self.node.outputs[at])

    def temporary(self, dtype: DType, shape: Sequence[int]) -> View:
        """Memory from one stage to a later one."""
        name = self.node.outputs[0].name
        return View.dense(self._scope.temporary("stage", name, prod(shape) * dtype.bytes), dtype, tuple(shape))

    def counter(self, at: int, axis: int) -> View | None:
        """Where the run stores how many there are along an axis of a result; None where that is known before."""
        dim = self._scope.dims(self.node.outputs[at])[axis]
        if isinstance(dim, int) or self._scope.counts.makers.get(dim) is not self.node:
            return None
        if dim not in self._scope.counts.places:
            self._scope.counts.places[dim] = self.temporary(DType.I64, (1,))
        return self._scope.counts.places[dim]

    def zeros_follow(self, at: int, counter: View | None) -> bool:
        """Whether zeros stand in a result behind what was found: its dims are declared, or it is read for the most.

        Nobody sees what lies behind the count of a program's output that no node reads; that of a body may be read.
        """
        return counter is None or bool(self.node.outputs[at].uses()) or bool(self._scope.prefix)

    def dims(self, at: int) -> Dims:
        """An input's dims as a run finds them: those of `shape`, with expressions of counts where data decides."""
        return self._scope.dims(self.value(at))

    def output_dims(self, at: int) -> Dims:
        """A result's dims as a run finds them."""
        return self._scope.dims(self.node.outputs[at])

    def extents(self, w: Stage, dims: Iterable[Dim]) -> tuple[Expression, ...]:
        """Dims as numbers and variables."""
        counts = self._scope.counts
        found = [(dim, counts.expression(dim, lambda place: w.reads(place).at(0))) for dim in dims]
        return tuple(one if isinstance(dim, int) else w.local(DType.I64, one) for dim, one in found)

    def table(self, array: npt.NDArray[np.generic]) -> View:
        """Numbers that are known now, as an operand."""
        return self._scope.keep("table", self.node.outputs[0].name, array, DType.of(array.dtype))

    def bound_axes(self) -> frozenset[int] | None:
        """The axes that the operator works along, by its record; None where only a run can tell them."""
        try:
            return self._scope.bound_axes(self.node)
        except NotLowered:
            return None

    # -- attributes -------------------------------------------------------------------------------------------------

    def integer(self, name: str, otherwise: int) -> int:
        """An attribute that is an integer."""
        found = attribute_of(self.node, name)
        return otherwise if found is None else int(found.value)

    def number(self, name: str, otherwise: float) -> float:
        """An attribute that is a number."""
        found = attribute_of(self.node, name)
        return otherwise if found is None else float(found.value)

    def text(self, name: str, otherwise: str) -> str:
        """An attribute that is a text."""
        found = attribute_of(self.node, name)
        return otherwise if found is None else str(found.value)

    def texts(self, name: str) -> tuple[str, ...]:
        """An attribute that is a list of texts; empty where it is left out."""
        found = attribute_of(self.node, name)
        return () if found is None else tuple(str(one) for one in found.value)

    def integers(self, name: str, otherwise: Sequence[int] = ()) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        found = attribute_of(self.node, name)
        return tuple(otherwise) if found is None else tuple(int(one) for one in found.value)

    def numbers(self, name: str, otherwise: Sequence[float] = ()) -> tuple[float, ...]:
        """An attribute that is a list of numbers."""
        found = attribute_of(self.node, name)
        return tuple(otherwise) if found is None else tuple(float(one) for one in found.value)

    def axis(self, otherwise: int, rank: int) -> int:
        """The attribute "axis", counted from the first dim."""
        return self.integer("axis", otherwise) % max(rank, 1)

    # -- stages -----------------------------------------------------------------------------------------------------

    @contextmanager
    def stage(self) -> Iterator[Stage]:
        """A routine, which becomes a region when the block ends."""
        made = Stage(self.node.op_type)
        yield made
        self._scope.add(self._scope.kernel(ROUTINE, made.routine()), made.places, (self.node,))

    def product(
        self, a: View, b: View, c: View, added: View | None = None, *, a_start: int = 0, b_start: int = 0,
        c_start: int = 0,
    ) -> None:  # fmt: skip
        """A region with the matrix products c = a b of the last two dims, f32, by the template for them.

        Views have the same leading dims, which stride 0 may repeat; `added` has those of c. The whole of a, b and c
        lies so many elements further on: products that differ in nothing else are one kernel.
        """
        *batch, rows, columns = c.shape
        plain = Gemm(rows, columns, a.shape[-1], tuple(batch))
        at = tuple(index(one) for one in (*plain.batch_variables, plain.row, plain.column))
        value: Expression = ACCUMULATED[()]
        value = value if added is None else value + added.operand("added")[at]
        where = [Matrix(one.strides[-2], one.strides[-1], one.strides[:-2], one.offset) for one in (a, b, c)]
        problem = Gemm(
            rows, columns, a.shape[-1], tuple(batch), where[0], where[1], where[2], constant_b=False,
            epilogue=Epilogue(value),
        )  # fmt: skip
        first, second, result = (
            Place(one.buffer, at * DType.F32.bytes) for one, at in ((a, a_start), (b, b_start), (c, c_start))
        )
        buffers: dict[str, Buffer | Place] = {"a": first, "b": second, "c": result}
        buffers |= {} if added is None else {"added": added.buffer}
        self._scope.add(self._scope.kernel(GEMM, problem), buffers, (self.node,))

    def require(self, condition: bool, why: str) -> None:
        """Raise NotLowered where the dims of a file contradict each other: loops would leave their operands."""
        if not condition:
            raise self.refuse(why)

    def refuse(self, why: str) -> NotLowered:
        """The error that says what this definition does not compute."""
        return NotLowered(f"{self.node.op_type} '{self.node.name or self.node.outputs[0].name}' {why}.")


Definition = Callable[[Defined], None]


def held(kind: DType) -> DType:
    """The type that elements of `kind` are computed with: f32 for shorter floats."""
    return kind.held


def counted(x: Expression, size: int | Expression) -> Expression:
    """An index into a dim of `size`, counted from the end where it is negative, and moved inside the dim."""
    wide = as_type(x, DType.I64)
    found = pick(lt(wide, 0), wide + size, wide)
    last = max(size - 1, 0) if isinstance(size, int) else maximum(size - 1, 0)
    return minimum(maximum(found, 0), last)
