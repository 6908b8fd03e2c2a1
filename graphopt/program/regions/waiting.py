"""How long values are waited for in the order of a model's nodes, as results lie where memory is tight."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

FAR = 16  # nodes between two that are no neighbours: memory is not held over so many for what lies beside it
SHOWING = ("Slice", "Split", "Concat")  # operators whose results show a part of an operand, or have it as a part


def last_read(value: ir.Value, place: Mapping[ir.Node, int]) -> int:
    """Where a value is read last, or what shows a part of it, or has it as a part; by the places of nodes."""
    last, seen, left = 0, {value}, [value]
    while left:
        one = left.pop()
        last = max(last, len(place) if one.is_graph_output() else 0, *(place.get(user, 0) for user, _ in one.uses()))
        shown = {made for user, _ in one.uses() if user.op_type in SHOWING for made in user.outputs}
        left += shown - seen
        seen |= shown
    return last


def reading(value: ir.Value, place: Mapping[ir.Node, int]) -> tuple[int, int]:
    """Where a value is read first, and last."""
    return min((place[user] for user, _ in value.uses() if user in place), default=0), last_read(value, place)
