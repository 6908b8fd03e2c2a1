"""The record of what is known of one value."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

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


UNKNOWN = Known(None, None, None)
