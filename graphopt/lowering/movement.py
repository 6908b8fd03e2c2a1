"""Operators that move data without computing: views where strides can say it."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from graphopt.lowering.elementwise import NotLowered
from graphopt.lowering.view import View

Ints = Callable[[ir.Value | None], tuple[int, ...] | None]


def moved(node: ir.Node, view: View, shape: tuple[int, ...], ints: Ints) -> View | None:
    """The view of a node's first result, given its first operand's and the result's shape; None where it is a copy.

    Raises NotLowered for an operator that is none of these.
    """
    kind = node.op_type
    if kind in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"):
        return view.reshaped(shape)
    if kind == "Transpose":
        order = node.attributes.get("perm")
        axes = range(len(view.shape))[::-1] if order is None else [int(axis) for axis in order.as_ints()]
        return view.transposed(tuple(axes))
    if kind == "Expand":
        return view.expanded(shape)
    if kind == "Slice":
        return _slice(node, view, shape, ints)
    raise NotLowered(f"{kind} '{node.name}' has no kernel yet.")


def is_movement(node: ir.Node) -> bool:
    """Whether an operator's result may be a view of its first operand."""
    return node.domain in ("", "ai.onnx") and node.op_type in (
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Expand", "Slice",
    )  # fmt: skip


def _slice(node: ir.Node, view: View, shape: tuple[int, ...], ints: Ints) -> View | None:
    """Starts and steps are inputs since opset 10, attributes before; what they leave is told by the result's shape."""

    def given(position: int, name: str) -> tuple[int, ...] | None:
        if position < len(node.inputs) and node.inputs[position] is not None:
            found = ints(node.inputs[position])
            if found is None:
                raise NotLowered(f"Slice '{node.name}' has a {name} that is known only when it runs.")
            return found
        attribute = node.attributes.get(name)
        return None if attribute is None else tuple(int(one) for one in attribute.as_ints())

    starts = given(1, "starts") or ()
    axes = given(3, "axes") or tuple(range(len(starts)))
    steps = given(4, "steps") or (1,) * len(starts)
    for axis, start, step in zip(axes, starts, steps, strict=True):
        axis %= len(view.shape)
        if step < 0:
            return None
        size = view.shape[axis]
        first = max(0, min(start + size if start < 0 else start, size))
        view = view.sliced(axis, first, shape[axis], step)
    return view
