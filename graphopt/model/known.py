"""The record of what is known of one value, and the questions that a rule about an operator may ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.model import content, dims
from graphopt.model.content import Content
from graphopt.model.dims import Dim, Dims
from graphopt.model.reals import Real

# Constants up to this size may be read while looking for a match; weights above it are read only by rules that ask.
SMALL = 1024  # elements


@dataclass(frozen=True, slots=True)
class Known:
    """Type, dims and symbolic integer content; None each where unknown."""

    type: ir.TypeProtocol | None
    shape: Dims | None
    content: Content | None

    @property
    def dtype(self) -> ir.DataType | None:
        """The element type when this is a tensor."""
        return self.type.dtype if isinstance(self.type, ir.TensorType) else None

    def agrees(self, other: Known) -> bool:
        """Whether both say the same of dims and content."""
        if self.shape != other.shape:
            return False
        if self.content is None or other.content is None:
            return self.content is other.content
        return self.content.shape == other.content.shape and bool((self.content == other.content).all())

    def says_more_than(self, earlier: Known) -> bool:
        """Whether inference has learned something: a shape or content where there was none, or a dim that was fresh."""
        if self.content is not None:
            new = _fresh(self.content.reshape(-1).tolist())
            if earlier.content is None or new < _fresh(earlier.content.reshape(-1).tolist()):
                return True
        if self.shape is None:
            return False
        if earlier.shape is None:
            return True
        return len(self.shape) == len(earlier.shape) and any(
            is_fresh(before) and not is_fresh(after) for before, after in zip(earlier.shape, self.shape, strict=True)
        )


def _fresh(items: Sequence[object]) -> int:
    """How many of the dims nothing is known of."""
    return sum(is_fresh(item) for item in items)


def is_fresh(dim: object) -> bool:
    """Whether a dim is, or is made of, one that is equal only to itself."""
    if isinstance(dim, int):
        return False
    return isinstance(dim, sympy.Expr) and any(str(symbol).startswith("?") for symbol in dim.free_symbols)


UNKNOWN = Known(None, None, None)


class Knowledge(ABC):
    """What is known of a model's values, as a rule about an operator asks for it.

    `facts.Facts` answers. It asks the operators' rules in turn, and therefore stands above them.
    """

    functions: Mapping[ir.OperatorIdentifier, ir.Function]  # the model's own
    ir_version: int  # 0 where the model says none

    @abstractmethod
    def opset(self, node: ir.Node, domain: str = "") -> int:
        """The version of `domain` that the node's graph imports (1 where the import is missing)."""

    @abstractmethod
    def known(self, value: ir.Value) -> Known:
        """All that is known of a value; inference runs on demand."""

    @abstractmethod
    def fresh(self) -> Dim:
        """A dimension of which nothing is known, equal only to itself."""

    @abstractmethod
    def tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        """The tensor of an initializer or Constant node, not read from disk yet; None for everything else."""

    @abstractmethod
    def is_constant(self, value: ir.Value) -> bool:
        """Whether `array` would give the value's data."""

    @abstractmethod
    def array(self, value: ir.Value | None) -> np.ndarray | None:
        """The value's data when it is constant; a splat for a ConstantOfShape of known shape. Never modify it."""

    def declared(self, value: ir.Value) -> Known:
        """What the file declares of a value, for operators that no inference knows."""
        if value.shape is None:
            return Known(value.type, None, None)
        return Known(value.type, tuple(dims.from_ir(dim, self.fresh) for dim in value.shape), None)

    def shape(self, value: ir.Value) -> dims.Dims | None:
        """The dims, None when even the rank is unknown."""
        return self.known(value).shape

    def static_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The dims as integers, None unless all are known."""
        return dims.static(self.known(value).shape)

    def rank(self, value: ir.Value) -> int | None:
        """The number of dims, None when unknown."""
        shape = self.known(value).shape
        return None if shape is None else len(shape)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type of a tensor, None when unknown or not a tensor."""
        kind = self.known(value).type
        return kind.dtype if isinstance(kind, ir.TensorType) else None

    def content(self, value: ir.Value) -> content.Content | None:
        """The integers a small tensor holds, possibly symbolic."""
        return self.known(value).content

    def held(self, value: ir.Value) -> Content | None:
        """What an operand of a computation with dims holds: of floats a number too."""
        known = self.content(value)
        tensor = self.tensor(value) if known is None and self.dtype(value) in content.REAL_TYPES else None
        if tensor is None or tensor.size != 1:
            return known
        number = Real.of(float(tensor.numpy().reshape(-1)[0]))
        return None if number is None else np.full(tuple(tensor.shape.numpy()), number, dtype=object)

    def ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The numbers of a constant integer vector (or scalar), else None."""
        if value is None:
            return None
        held = self.content(value)
        if held is not None:
            flat = held.reshape(-1).tolist()
            return tuple(int(item) for item in flat) if all(isinstance(i, (int, bool)) for i in flat) else None
        tensor = self.tensor(value)
        if tensor is None or tensor.dtype not in content.INTEGER_TYPES or tensor.size > SMALL:
            return None
        return tuple(int(item) for item in tensor.numpy().reshape(-1))
