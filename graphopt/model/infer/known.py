"""The record of what is known of one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
import sympy

from graphopt.model.content import Content
from graphopt.model.dims import Dims


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
            _is_fresh(before) and not _is_fresh(after) for before, after in zip(earlier.shape, self.shape, strict=True)
        )


def _fresh(items: Sequence[object]) -> int:
    """How many of the dims nothing is known of."""
    return sum(_is_fresh(item) for item in items)


def _is_fresh(dim: object) -> bool:
    """Whether a dim is, or is made of, one that is equal only to itself."""
    return isinstance(dim, sympy.Expr) and any(str(symbol).startswith("?") for symbol in dim.free_symbols)


UNKNOWN = Known(None, None, None)
