"""The language of gradient rules: terms with arithmetic, which make nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import dims
from graphopt.model.known import Knowledge

AttributeValue = int | float | str | Sequence[int] | Sequence[float] | ir.TensorProtocol | None
Attributes = Mapping[str, AttributeValue]
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

LAST = (1 << 63) - 1  # an end behind every element
STEPS_SINCE, SCATTERS_SINCE = 10, 11  # opsets: Slice with steps, ScatterElements


class NoGradient(Exception):
    """A node has no gradient that could be written; the text says why."""


class Maker(ABC):
    """Makes the nodes and constants of a gradient; `graphopt.gradient` has the one that there is."""

    facts: Knowledge
    opset: int  # of the operators of ONNX in the model

    @abstractmethod
    def node(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Attributes, outputs: int
    ) -> Sequence[ir.Value]:
        """The results of a new node. Parameters that became inputs (axes, pads ...) are given as attributes."""

    @abstractmethod
    def constant(self, array: np.ndarray, dtype: ir.DataType) -> ir.Value:
        """A new constant, or an earlier one with equal data."""

    @abstractmethod
    def result(self, node: ir.Node, position: int) -> ir.Value:
        """A result of a node of the model, which gets it where it lacked it: an output that was left out."""

    @abstractmethod
    def scan(
        self, states: Sequence[Term], rows: Sequence[Term], step: Step, *, backwards: bool = False
    ) -> tuple[Sequence[Term], Sequence[Term]]:
        """The last states, and what each step keeps, of steps over the first axis of `rows`, whose dims are equal.

        The step is written once, into a graph of its own; values of the graph around may be read there. Steps go from
        the last row to the first one where they go `backwards`; what they keep lies in the order of the rows.
        """

    @abstractmethod
    def before(self, node: ir.Node, position: int) -> ir.Value:
        """The states that the steps of a Scan or Loop of the model start from: a further result, which it gets."""

    @abstractmethod
    def choose(
        self, condition: Term, then: Callable[[], Sequence[Term]], otherwise: Callable[[], Sequence[Term]],
        likes: Sequence[Term],
    ) -> Sequence[Term]:  # fmt: skip
        """What one of two graphs gives, by a condition; results have the types and dims of `likes`.

        Each graph is written by a call; values of the graph around may be read there.
        """

    def term(self, value: ir.Value) -> Term:
        """A value as a term."""
        return Term(self, value)

    def op(self, op_type: str, *inputs: Term | None, attributes: Attributes | None = None, outputs: int = 1) -> Term:
        """The first result of a new node."""
        return self.ops(op_type, *inputs, attributes=attributes, outputs=outputs)[0]

    def ops(
        self, op_type: str, *inputs: Term | None, attributes: Attributes | None = None, outputs: int = 1
    ) -> tuple[Term, ...]:
        """The results of a new node."""
        operands = [None if one is None else one.value for one in inputs]
        return tuple(Term(self, value) for value in self.node(op_type, operands, attributes or {}, outputs))

    def ints(self, *numbers: int) -> Term:
        """A constant int64 vector."""
        return Term(self, self.constant(np.array(numbers, np.int64), ir.DataType.INT64))

    def array(self, array: np.ndarray, dtype: ir.DataType | None = None) -> Term:
        """A constant."""
        return Term(self, self.constant(array, ir.DataType.from_numpy(array.dtype) if dtype is None else dtype))

    def join(self, terms: Sequence[Term], axis: int) -> Term:
        """Terms one after the other along an axis."""
        return terms[0] if len(terms) == 1 else self.op("Concat", *terms, attributes={"axis": axis})


@dataclass(frozen=True, eq=False)
class Term:
    """A value while a gradient is written. Arithmetic makes nodes; numbers take the term's type."""

    maker: Maker
    value: ir.Value

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> ir.DataType:
        """The element type; raises NoGradient where it is not known."""
        found = self.maker.facts.dtype(self.value)
        if found is None:
            raise NoGradient(f"the type of '{self.value.name}' is not known")
        return found

    @property
    def shape(self) -> dims.Dims:
        """The dims, some of them symbols; raises NoGradient where the rank is not known."""
        found = self.maker.facts.shape(self.value)
        if found is None:
            raise NoGradient(f"the rank of '{self.value.name}' is not known")
        return found

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The dims as integers; raises NoGradient where one is not known."""
        found = dims.static(self.shape)
        if found is None:
            raise NoGradient(f"a dim of '{self.value.name}' is not known; fix it with --dim or --shape")
        return found

    def axis(self, number: int) -> int:
        """An axis counted from 0."""
        return number % max(self.rank, 1)

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def number(self, value: float) -> Term:
        """A number of this term's type, of rank 0."""
        return self.maker.array(np.array(value).astype(self.dtype.numpy()), self.dtype)

    def _other(self, other: Term | float) -> Term:
        return other if isinstance(other, Term) else self.number(other)

    def __add__(self, other: Term | float) -> Term:
        return self.maker.op("Add", self, self._other(other))

    def __radd__(self, other: float) -> Term:
        return self.maker.op("Add", self.number(other), self)

    def __sub__(self, other: Term | float) -> Term:
        return self.maker.op("Sub", self, self._other(other))

    def __rsub__(self, other: float) -> Term:
        return self.maker.op("Sub", self.number(other), self)

    def __mul__(self, other: Term | float) -> Term:
        return self.maker.op("Mul", self, self._other(other))

    def __rmul__(self, other: float) -> Term:
        return self.maker.op("Mul", self.number(other), self)

    def __truediv__(self, other: Term | float) -> Term:
        return self.maker.op("Div", self, self._other(other))

    def __rtruediv__(self, other: float) -> Term:
        return self.maker.op("Div", self.number(other), self)

    def __neg__(self) -> Term:
        return self.maker.op("Neg", self)

    def __matmul__(self, other: Term) -> Term:
        return self.maker.op("MatMul", self, other)

    def __gt__(self, other: Term | float) -> Term:
        return self.maker.op("Greater", self, self._other(other))

    def __lt__(self, other: Term | float) -> Term:
        return self.maker.op("Less", self, self._other(other))

    def __ge__(self, other: Term | float) -> Term:
        return self.maker.op("Not", self < other)

    def __le__(self, other: Term | float) -> Term:
        return self.maker.op("Not", self > other)

    def equals(self, other: Term | float) -> Term:
        """Where two terms have equal elements."""
        return self.maker.op("Equal", self, self._other(other))

    def squared(self) -> Term:
        """Each element times itself."""
        return self * self

    def apply(self, op_type: str) -> Term:
        """The result of an operator of one operand."""
        return self.maker.op(op_type, self)

    def where(self, condition: Term, otherwise: Term | float = 0.0) -> Term:
        """This term where the condition holds, else the other one."""
        return self.maker.op("Where", condition, self, self._other(otherwise))

    def cast(self, dtype: ir.DataType) -> Term:
        """The elements in another type."""
        return self if self.dtype is dtype else self.maker.op("Cast", self, attributes={"to": int(dtype)})

    # -- shapes ---------------------------------------------------------------------------------------------------

    def dims(self) -> Term:
        """The dims as an int64 vector: a constant where all are known."""
        known = self.maker.facts.static_shape(self.value)
        return self.maker.op("Shape", self) if known is None else self.maker.ints(*known)

    def dim(self, axis: int) -> Term:
        """One dim as an int64 vector of one element."""
        known = self.shape[axis]
        if isinstance(known, int):
            return self.maker.ints(known)
        return self.maker.op("Gather", self.maker.op("Shape", self), self.maker.ints(self.axis(axis)))

    def reshape(self, *sizes: int | Term) -> Term:
        """The elements under other dims: integers (0 keeps a dim, -1 takes the rest), or int64 vectors of dims."""
        if all(isinstance(size, int) for size in sizes):
            return self.maker.op("Reshape", self, self.maker.ints(*(size for size in sizes if isinstance(size, int))))
        parts = [size if isinstance(size, Term) else self.maker.ints(size) for size in sizes]
        return self.maker.op("Reshape", self, parts[0] if len(parts) == 1 else self.maker.join(parts, 0))

    def reshape_like(self, other: Term) -> Term:
        """The elements under the dims of another term."""
        return self if dims.same(self.shape, other.shape) else self.reshape(other.dims())

    def transpose(self, *order: int) -> Term:
        """The axes in another order."""
        return (
            self if order == tuple(range(len(order))) else self.maker.op("Transpose", self, attributes={"perm": order})
        )

    def swapped(self) -> Term:
        """The last two axes in the place of one another."""
        order = list(range(self.rank))
        order[-2:] = order[:-3:-1]
        return self.transpose(*order)

    def unsqueeze(self, *axes: int) -> Term:
        """Dims of 1 put in."""
        return self.maker.op("Unsqueeze", self, attributes={"axes": axes}) if axes else self

    def squeeze(self, *axes: int) -> Term:
        """Dims of 1 taken away."""
        return self.maker.op("Squeeze", self, attributes={"axes": axes}) if axes else self

    def slice(self, axis: int, start: int, end: int, step: int = 1) -> Term:
        """A range along an axis."""
        attributes: dict[str, Sequence[int]] = {"starts": [start], "ends": [end], "axes": [axis]}
        if step != 1:
            if self.maker.opset < STEPS_SINCE:
                return self._gathered(axis, start, end, step)
            attributes["steps"] = [step]
        return self.maker.op("Slice", self, attributes=attributes)

    def _gathered(self, axis: int, start: int, end: int, step: int) -> Term:
        """A range with steps as single positions, which have to be known."""
        size = self.shape[axis]
        if not isinstance(size, int):
            raise NoGradient(
                f"steps over a dim of '{self.value.name}' need its size, or opset {STEPS_SINCE}; fix it with --dim, or "
                f"lift the model with 'graphopt optimize --opset {STEPS_SINCE}'"
            )
        places = np.arange(size, dtype=np.int64)[start:end:step]
        return self.maker.op("Gather", self, self.maker.array(places), attributes={"axis": axis})

    def flip(self, *axes: int) -> Term:
        """The elements along axes from the last to the first."""
        if self.maker.opset < STEPS_SINCE:
            found = self
            for axis in axes:
                found = found.slice(axis, -1, -LAST, -1)
            return found
        ones = [-1] * len(axes)
        attributes = {"starts": ones, "ends": [-LAST] * len(axes), "axes": axes, "steps": ones}
        return self.maker.op("Slice", self, attributes=attributes) if axes else self

    def scatter(self, places: Term, updates: Term, axis: int) -> Term:
        """This term with the elements of `updates` at `places` along an axis."""
        op_type = "ScatterElements" if self.maker.opset >= SCATTERS_SINCE else "Scatter"  # as ONNX called it before
        return self.maker.op(op_type, self, places, updates, attributes={"axis": axis})

    def pad(self, before: Sequence[int], after: Sequence[int]) -> Term:
        """Zeros put around, a number for each axis; negative ones take elements away."""
        found = self
        if any(one < 0 for one in (*before, *after)):
            axes = [axis for axis, ends in enumerate(zip(before, after, strict=True)) if min(ends) < 0]
            attributes = {
                "starts": [max(-before[axis], 0) for axis in axes],
                "ends": [min(after[axis], 0) or LAST for axis in axes],
                "axes": axes,
            }
            found = self.maker.op("Slice", self, attributes=attributes)
        pads = [max(one, 0) for one in (*before, *after)]
        return self.maker.op("Pad", found, attributes={"pads": pads}) if any(pads) else found

    def expand(self, other: Term) -> Term:
        """Broadcast to the dims of another term."""
        return self if dims.same(self.shape, other.shape) else self.maker.op("Expand", self, other.dims())

    def expand_to(self, sizes: Term) -> Term:
        """Broadcast to dims."""
        return self.maker.op("Expand", self, sizes)

    def zeros(self, dtype: ir.DataType | None = None) -> Term:
        """Zeros of this term's dims, of its type where none is named."""
        kind = self.dtype if dtype is None else dtype
        filler = ir.Tensor(np.zeros(1, kind.numpy()), dtype=kind)
        return self.maker.op("ConstantOfShape", self.dims(), attributes={"value": filler})

    # -- reductions -----------------------------------------------------------------------------------------------

    def sum(self, *axes: int, keep: bool = True) -> Term:
        """Sums along axes."""
        return self._reduce("ReduceSum", axes, keep)

    def mean(self, *axes: int, keep: bool = True) -> Term:
        """Means along axes."""
        return self._reduce("ReduceMean", axes, keep)

    def _reduce(self, op_type: str, axes: Sequence[int], keep: bool) -> Term:
        return self.maker.op(op_type, self, attributes={"axes": axes, "keepdims": int(keep)}) if axes else self

    def count(self, *axes: int) -> float | Term:
        """How many elements lie along axes: a number where it is known, else a term of this one's type."""
        sizes = [self.shape[axis] for axis in axes]
        if all(isinstance(size, int) for size in sizes):
            return float(np.prod([size for size in sizes if isinstance(size, int)]))
        found = self.dim(axes[0])
        for axis in axes[1:]:
            found = found * self.dim(axis)
        return found.squeeze(0).cast(self.dtype)

    def sum_to(self, other: Term) -> Term:
        """Sums along the axes along which the other term was broadcast to this one's dims."""
        mine, wanted = self.shape, other.shape
        if dims.same(mine, wanted):
            return self
        more = len(mine) - len(wanted)
        found = self.sum(*range(more), keep=False) if more else self
        unclear, axes = False, []
        for axis, (left, right) in enumerate(zip(mine[more:], wanted, strict=True)):
            if right == 1 and isinstance(right, int) and left != 1:
                axes.append(axis)
            elif not dims.equal(left, right):
                unclear = True
        return found._sum_where_one(other) if unclear else found.sum(*axes)

    def _sum_where_one(self, other: Term) -> Term:
        """Sums along the axes along which only a run can tell that the other term has one element."""
        if self.maker.opset < 13:
            raise NoGradient(
                f"only a run tells along which axes '{other.value.name}' is broadcast, which needs opset 13; "
                "fix its dims with --dim, or lift the model with 'graphopt optimize --opset 13'"
            )
        differs = self.maker.op("Not", self.maker.op("Equal", self.dims(), other.dims()))
        axes = self.maker.op("Compress", self.maker.ints(*range(other.rank)), differs, attributes={"axis": 0})
        found = self.maker.op("ReduceSum", self, axes, attributes={"keepdims": 1, "noop_with_empty_axes": 1})
        return found.reshape(other.dims())


# One step of a Scan: from the states and one row of each sequence the next states, and what is kept of the step.
Step = Callable[[Sequence[Term], Sequence[Term]], tuple[Sequence[Term], Sequence[Term]]]
