"""Sizes for the dynamic dims of the zoo's models: batch 1, and lengths that are usual."""

from __future__ import annotations

import onnx_ir as ir

LENGTH = 64  # tokens


def sizes_of(model: ir.Model) -> dict[str, int]:
    """A size for each dynamic dim: the first dim of an input is a batch of one, every other one a length."""
    found: dict[str, int] = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                found.setdefault(dim.value, 1 if axis == 0 else LENGTH)
    return found
