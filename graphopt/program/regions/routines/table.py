"""All operators that are written as loops, by domain and name; adding one is a line in its family's table."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.model.operators.contrib import CACHES
from graphopt.program.regions.routines import (
    attention,
    boxes,
    caching,
    contributed,
    convolving,
    fourier,
    hardmax,
    indexing,
    integers,
    largest,
    learning,
    linear_attention,
    making,
    moving,
    normalizations,
    padding,
    products,
    quantized,
    random,
    recurrent,
    reductions,
    resampling,
    resizing,
    scans,
    selecting,
    support_vectors,
    tapers,
    transposed,
    trees,
    windows,
)
from graphopt.program.regions.routines.stage import Defined, Definition
from graphopt.program.regions.scope import Scope

FAMILIES: tuple[Mapping[str, Definition], ...] = (
    attention.DEFINITIONS,
    boxes.DEFINITIONS,
    caching.DEFINITIONS,
    convolving.DEFINITIONS,
    fourier.DEFINITIONS,
    hardmax.DEFINITIONS,
    indexing.DEFINITIONS,
    integers.DEFINITIONS,
    largest.DEFINITIONS,
    learning.DEFINITIONS,
    making.DEFINITIONS,
    moving.DEFINITIONS,
    normalizations.DEFINITIONS,
    padding.DEFINITIONS,
    products.DEFINITIONS,
    quantized.DEFINITIONS,
    random.DEFINITIONS,
    recurrent.DEFINITIONS,
    reductions.DEFINITIONS,
    resampling.DEFINITIONS,
    resizing.DEFINITIONS,
    scans.DEFINITIONS,
    selecting.DEFINITIONS,
    tapers.DEFINITIONS,
    transposed.DEFINITIONS,
    windows.DEFINITIONS,
)
ROUTINES: Mapping[tuple[str, str], Definition] = {
    **{("", name): definition for family in FAMILIES for name, definition in family.items()},
    **{("ai.onnx.ml", name): definition for name, definition in learning.ML_DEFINITIONS.items()},
    **{("ai.onnx.ml", name): definition for name, definition in trees.ML_DEFINITIONS.items()},
    **{("ai.onnx.ml", name): definition for name, definition in support_vectors.ML_DEFINITIONS.items()},
    **{(CACHES, name): definition for name, definition in caching.OURS.items()},
    **{("com.microsoft", name): definition for name, definition in contributed.MICROSOFT.items()},
    **{("com.microsoft", name): definition for name, definition in linear_attention.MICROSOFT.items()},
}


def definition_of(node: ir.Node) -> Definition | None:
    """How a node's operator is written as loops; None where it is not."""
    return ROUTINES.get((node.domain if node.domain != "ai.onnx" else "", node.op_type))


def lower_defined(scope: Scope, node: ir.Node, definition: Definition) -> None:
    """The regions of a node by its definition; raises NotLowered for a form that it does not compute."""
    definition(Defined(scope, node))
