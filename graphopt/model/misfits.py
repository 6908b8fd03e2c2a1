"""Operands that do not fit one another: a model does not run at every size that its inputs declare.

Exporters call dims of images and sequences free, and write tables of positions, windows or counts of one size beside
them. What runs such a model at another size fails in the middle, each in its own words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.dims import Dim, Dims, static
from graphopt.model.known import Knowledge
from graphopt.model.operators.table import operator_of


def misfit(graph: ir.Graph, facts: Knowledge) -> str | None:
    """Why a graph cannot run: a sentence on the first node whose operands surely do not fit; None where none is seen.

    Branches and bodies of loops are not looked at: they may never run.
    """
    for node in graph:
        if not nodes.is_standard(node):
            continue
        doing, fits = _rule(node, facts)
        if fits is None:
            continue
        operands = node.inputs[: 1 if node.op_type in ("Reshape", "Expand") else None]
        shapes = [None if value is None else facts.shape(value) for value in operands]
        if not fits(shapes):
            given = " and ".join("x".join(map(str, shape)) or "a number" for shape in shapes if shape is not None)
            what = "one another" if len(shapes) > 1 else "it"
            return f"{nodes.describe(node)} {doing} {given}, which do not fit {what}"
    return None


_Fits = Callable[[Sequence[Dims | None]], bool]


def _rule(node: ir.Node, facts: Knowledge) -> tuple[str, _Fits | None]:
    """What a node does to its operands, in a word, and whether operands of such dims can be; None for not known."""
    operator = operator_of(node)
    if operator is not None and operator.broadcasts is not None and facts.opset(node) >= operator.broadcasts:
        return "combines", _broadcast
    if node.op_type == "MatMul":
        return "multiplies", _multiply
    if node.op_type == "Concat":
        axis = nodes.int_attribute(node, "axis", 0)
        return "joins", lambda shapes: _join(axis, shapes)
    if node.op_type == "Reshape" and len(node.inputs) > 1:
        asked = facts.ints(node.inputs[1])
        if asked is not None and 0 not in asked:
            return f"has room for {'x'.join(map(str, asked))} and is given", lambda shapes: _hold(asked, shapes[0])
    if node.op_type == "Expand" and len(node.inputs) > 1:
        asked = facts.ints(node.inputs[1])
        if asked is not None:
            return f"spreads over {'x'.join(map(str, asked))} what has the dims", lambda shapes: _broadcast(
                (asked, shapes[0])
            )
    return "", None


def _agree(dims: Sequence[Dim]) -> bool:
    return len({dim for dim in dims if isinstance(dim, int)}) <= 1


def _broadcast(shapes: Sequence[Dims | None]) -> bool:
    known = [shape[::-1] for shape in shapes if shape is not None]
    columns = ([shape[at] for shape in known if at < len(shape) and shape[at] != 1] for at in range(_rank(known)))
    return all(map(_agree, columns))


def _rank(shapes: Sequence[Dims]) -> int:
    return max(map(len, shapes), default=0)


def _multiply(shapes: Sequence[Dims | None]) -> bool:
    left, right = shapes[:2]
    if not left or not right:  # a rank that is not known; a number is none of its operands
        return True
    return _agree((left[-1], right[-2 if len(right) > 1 else -1])) and _broadcast((left[:-2], right[:-2]))


def _join(axis: int, shapes: Sequence[Dims | None]) -> bool:
    known = [shape for shape in shapes if shape]
    if len({len(shape) for shape in known}) != 1 or not -len(known[0]) <= axis < len(known[0]):
        return True
    axis %= len(known[0])
    return all(_agree(column) for at, column in enumerate(zip(*known, strict=True)) if at != axis)


def _hold(asked: Sequence[int], shape: Dims | None) -> bool:
    sizes = static(shape)
    if sizes is None:
        return True
    elements = math.prod(sizes)
    fixed = math.prod(size for size in asked if size != -1)
    return elements % fixed == 0 if -1 in asked else elements == fixed
