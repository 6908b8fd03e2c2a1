"""Reading a node: operands that must be there, attributes that are numbers."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.lowering.elementwise import NotLowered


def operand(node: ir.Node, position: int) -> ir.Value:
    """An operand that must be there; raises NotLowered when it is left out."""
    found = optional(node, position)
    if found is None:
        raise NotLowered(f"{node.op_type} '{node.name}' has no operand {position}.")
    return found


def optional(node: ir.Node, position: int) -> ir.Value | None:
    """An operand; None when it is left out."""
    return node.inputs[position] if position < len(node.inputs) else None


def number(node: ir.Node, name: str, otherwise: int) -> int:
    """An attribute that is an integer."""
    attribute = node.attributes.get(name)
    return otherwise if attribute is None else int(attribute.value)


def real(node: ir.Node, name: str, otherwise: float) -> float:
    """An attribute that is a real number."""
    attribute = node.attributes.get(name)
    return otherwise if attribute is None else float(attribute.value)


def is_read(value: ir.Value) -> bool:
    """Whether anything needs the value."""
    return bool(value.uses()) or value.is_graph_output()
