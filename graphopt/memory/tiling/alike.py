"""Equal places of a model, as its layers are: what is good for one region is good for those that are built alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from graphopt.memory.tiling.region import Region, members_of, region_of
from graphopt.model import nodes
from graphopt.model.facts import Facts


def regions_alike(facts: Facts, order: Sequence[ir.Node], region: Region, *, kin: bool = False) -> list[Region]:
    """The other regions of the same nodes, at the same distances in the order; none has a node of another.

    With `kin` only the dims along which there are tiles need be the same: layers that join and read more and more.
    """
    place = {node: at for at, node in enumerate(order)}
    places = [place[node] for node in region.members]
    axes_of = [region.axes[nodes.used_outputs(node)[0]] if kin else None for node in region.members]
    signs = [_sign(facts, node, axis) for node, axis in zip(region.members, axes_of, strict=True)]
    taken = set(region.members)
    found: list[Region] = []
    for shift in range(-min(places), len(order) - max(places)):
        members = [order[at + shift] for at in places]
        if not taken.isdisjoint(members) or any(
            node.op_type != sign[0] or _sign(facts, node, axis) != sign
            for node, sign, axis in zip(members, signs, axes_of, strict=True)
        ):
            continue
        there = dict(zip(region.members, members, strict=True))
        reads_alike = _reads_kin if kin else _reads_alike
        if not all(reads_alike(node, other, there) for node, other in there.items()):
            continue
        axes = {
            mine: region.axes[theirs]
            for node, other in there.items()
            for theirs, mine in zip(node.outputs, other.outputs, strict=True)
            if theirs in region.axes
        }
        stretch = order[min(places) + shift : max(places) + shift + 1]
        if members_of(facts, stretch, axes) != members:
            continue  # something between them needs some and is needed by others
        one = region_of(facts, members, axes)
        if one is not None and len(one.exits) == len(region.exits):
            found.append(one)
            taken.update(members)
    return found


def _sign(facts: Facts, node: ir.Node, axis: int | None) -> tuple[object, ...]:
    """What equal nodes have in common: the operator, and the dims of what it reads and makes, or one of its result."""
    if axis is not None:
        made = [facts.static_shape(value) or () for value in nodes.used_outputs(node)]
        return node.op_type, node.domain, *((len(shape), *shape[axis : axis + 1]) for shape in made)
    shapes = (None if value is None else facts.static_shape(value) for value in (*node.inputs, *node.outputs))
    return node.op_type, node.domain, len(node.inputs), len(node.outputs), *shapes


def _reads_alike(node: ir.Node, other: ir.Node, there: Mapping[ir.Node, ir.Node]) -> bool:
    """Whether one reads of its region's nodes what the other reads of the nodes there."""
    inside = set(there.values())
    for mine, theirs in zip(node.inputs, other.inputs, strict=True):
        maker, its = (None if value is None else value.producer() for value in (mine, theirs))
        if maker is not None and maker in there:
            if its is not there[maker] or mine is None or theirs is None or mine.index() != theirs.index():
                return False
        elif its in inside:
            return False
    return True


def _reads_kin(node: ir.Node, other: ir.Node, there: Mapping[ir.Node, ir.Node]) -> bool:
    """As `_reads_alike`, whatever else either reads: one of them may join more."""
    inside = set(there.values())
    mine = [(value.producer(), value.index()) for value in node.inputs if value is not None]
    theirs = [(value.producer(), value.index()) for value in other.inputs if value is not None]
    expected = [(there[maker], index) for maker, index in mine if maker is not None and maker in there]
    return expected == [(maker, index) for maker, index in theirs if maker in inside]
