"""All operators that are written as loops, by domain and name; adding one is a line in its family's table."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.program.regions.routines import (
    boxes,
    convolving,
    indexing,
    largest,
    making,
    moving,
    padding,
    resampling,
    resizing,
    scans,
    selecting,
    transposed,
    windows,
)
from graphopt.program.regions.routines.stage import Defined, Definition
from graphopt.program.regions.scope import Scope

FAMILIES: tuple[Mapping[str, Definition], ...] = (
    boxes.DEFINITIONS,
    convolving.DEFINITIONS,
    indexing.DEFINITIONS,
    largest.DEFINITIONS,
    making.DEFINITIONS,
    moving.DEFINITIONS,
    padding.DEFINITIONS,
    resampling.DEFINITIONS,
    resizing.DEFINITIONS,
    scans.DEFINITIONS,
    selecting.DEFINITIONS,
    transposed.DEFINITIONS,
    windows.DEFINITIONS,
)
ROUTINES: Mapping[tuple[str, str], Definition] = {
    ("", name): definition for family in FAMILIES for name, definition in family.items()
}


def definition_of(node: ir.Node) -> Definition | None:
    """How a node's operator is written as loops; None where it is not."""
    return ROUTINES.get((node.domain if node.domain != "ai.onnx" else "", node.op_type))


def lower_defined(scope: Scope, node: ir.Node, definition: Definition) -> None:
    """The regions of a node by its definition; raises NotLowered for a form that it does not compute."""
    definition(Defined(scope, node))
