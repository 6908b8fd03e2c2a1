"""The axes of a node: which of them it treats as positions side by side, and how it names the others.

One answer serves two readers. A layout asks whether the operands' axes may change places, and which names change then.
A tile asks whether a range of the result along one axis follows from the same range of the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.known import Knowledge
from graphopt.model.operators.parameters import Unclear, clear_input


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of one node. Along an axis that is not `bound`, each position of the results needs that of the operands.

    All axes are those of the first operand, counted from 0. The results have the same axes, without the bound ones
    where these are `gone`.
    """

    rank: int
    bound: frozenset[int]  # axes whose positions meet, or have a meaning of their own
    names: tuple[int, ...] = ()  # what the node says, in its parameter `place`
    place: Literal["axis", "axes"] | None = None  # None: nothing names them
    operands: int = 1  # how many of the first inputs have these axes
    gone: bool = False
    fixed: str = ""  # why the bound axes keep their places, where no name could tell others


# each:      an element of the result needs that of the first operand at its place; other operands are numbers or types.
# broadcast: it needs those of all operands, which broadcast.
# symmetric: the first operand may be read in any order of its axes, and the first result has that order; other results,
#            and the other operands, are no tensors of these axes.
AxesOf = Callable[[ir.Node, Knowledge], Axes]
AxesRule = Literal["each", "broadcast", "symmetric"] | AxesOf


def rank_of(facts: Knowledge, node: ir.Node, position: int = 0) -> int:
    """The rank of an operand; raises Unclear where it is absent or of unknown rank."""
    value = clear_input(node, position)
    rank = facts.rank(value)
    if rank is None:
        raise Unclear(f"the rank of '{value.name}' is not known")
    return rank


def counted(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Axes counted from 0, in the given order, each once."""
    return tuple(dict.fromkeys(axis % max(rank, 1) for axis in axes))


def named_axis(default: int, *, operands: int | Literal["all"] = 1) -> AxesOf:
    """The rule of an operator that works along the attribute `axis`."""

    def rule(node: ir.Node, facts: Knowledge) -> Axes:
        rank = rank_of(facts, node)
        names = counted([nodes.int_attribute(node, "axis", default)], rank)
        alike = len(node.inputs) if operands == "all" else operands
        return Axes(rank, frozenset(names), names, "axis", alike)

    return rule


def channels_first(first: int, last: int | None = None) -> AxesOf:
    """The rule of an operator on [N, C, ...] that binds the axes from `first` on, up to `last` (exclusive)."""

    def rule(node: ir.Node, facts: Knowledge) -> Axes:
        rank = rank_of(facts, node)
        bound = frozenset(range(first, rank if last is None else last))
        return Axes(rank, bound, fixed="its axes have fixed meanings")

    return rule
