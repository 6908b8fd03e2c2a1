"""Regions of a model that can be computed in tiles, and the steps that do so.

A region is a set of nodes without a way out and back in. Each value that it makes and others need is an exit: it is
made in tiles along one axis and joined. For each tile, ranges are followed from the exits back to what the region
reads: halos of convolutions are computed once for each tile that needs them (Alwani et al., "Fused-layer CNN
accelerators", MICRO 2016; Lin et al., "MCUNetV2: memory-efficient patch-based inference", NeurIPS 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.memory.tiling.locality import part
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.parts import Part, Range


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes in an order in which they can run, and the axis along which each value that they make is tiled."""

    members: tuple[ir.Node, ...]
    axes: Mapping[ir.Value, int]
    exits: tuple[ir.Value, ...]  # what is made here and needed outside


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions `low` to `high` of a value along an axis, as a tensor of its own; without an axis, the whole value."""

    value: ir.Value
    axis: int | None = None
    low: int = 0
    high: int = 0
    number: int = 0  # tells pieces of the same positions apart


@dataclass(frozen=True, slots=True)
class Cut:
    """Copy `made` out of a larger piece or the whole value."""

    source: Piece
    made: Piece


@dataclass(frozen=True, slots=True)
class Run:
    """The node once more, for a part of its result."""

    node: ir.Node
    how: Part
    inputs: tuple[Piece | None, ...]
    outputs: tuple[Piece, ...]
    share: float  # of the work of the whole node


@dataclass(frozen=True, slots=True)
class Join:
    """Put pieces one after the other: the whole value, as the rest of the model knows it."""

    pieces: tuple[Piece, ...]
    whole: Piece


Step = Cut | Run | Join


def axes_from(facts: Facts, seed: ir.Value, axis: int, among: Iterable[ir.Node]) -> dict[ir.Value, int]:
    """The axis of every value that nodes `among` tie to `axis` of `seed`, along operands and results."""
    allowed = set(among)
    found = {seed: axis}
    waiting = [seed]
    while waiting:
        value = waiting.pop()
        producer = value.producer()
        near = [] if producer is None or producer not in allowed else [(producer, found[value])]
        for user, position in value.uses():
            if user in allowed:
                across = _axis_across(facts, user, position, found[value])
                near += [] if across is None else [(user, across)]
        for node, at in near:
            how = _whole(facts, node, at)
            if how is None:
                continue
            tied = [(output, at) for output in nodes.used_outputs(node)]
            tied += [(value, one.axis) for value, one in zip(node.inputs, how.inputs, strict=True) if value and one]
            for other, its in tied:
                if other not in found:
                    found[other] = its
                    waiting.append(other)
    return found


def _whole(facts: Facts, node: ir.Node, axis: int) -> Part | None:
    used = nodes.used_outputs(node)
    shape = facts.static_shape(used[0]) if used else None
    if shape is None or axis >= len(shape) or shape[axis] < 2:
        return None
    return part(facts, node, Range(axis, 0, shape[axis]))


def _axis_across(facts: Facts, node: ir.Node, position: int, axis: int) -> int | None:
    """The axis of the node's result that follows `axis` of one of its operands."""
    used = nodes.used_outputs(node)
    for at in range(facts.rank(used[0]) or 0) if used else ():
        how = _whole(facts, node, at)
        found = how.inputs[position] if how is not None else None
        if found is not None and found.axis == axis:
            return at
    return None


def members_of(facts: Facts, order: Sequence[ir.Node], axes: Mapping[ir.Value, int]) -> list[ir.Node]:
    """The nodes of a stretch whose results have an axis, but for those that must have run before the others begin.

    Such a node makes what another one needs whole, or what leads there.
    """
    members = {node for node in order if (used := nodes.used_outputs(node)) and used[0] in axes}
    needed = {node: _wholly_read(facts, node, axes) for node in members}
    while True:
        wanted = [value for node in members for value in needed[node]]
        wanted += [
            value
            for node in members
            for value in node.inputs
            if value is not None and value.producer() in order and value.producer() not in members
        ]
        before: set[ir.Node] = set()
        while wanted:
            producer = wanted.pop().producer()
            if producer is not None and producer in order and producer not in before:
                before.add(producer)
                wanted += [one for one in (*producer.inputs, *nodes.implicit_inputs(producer)) if one is not None]
        if members.isdisjoint(before):
            return [node for node in order if node in members]
        members -= before


def _wholly_read(facts: Facts, node: ir.Node, axes: Mapping[ir.Value, int]) -> list[ir.Value]:
    how = _whole(facts, node, axes[nodes.used_outputs(node)[0]])
    if how is None:
        return []
    return [value for value, found in zip(node.inputs, how.inputs, strict=True) if value is not None and found is None]


def region_of(facts: Facts, members: Sequence[ir.Node], axes: Mapping[ir.Value, int]) -> Region | None:
    """The region of these nodes, given in an order that can run; None where one of them has no part that fits."""
    inside = set(members)
    made: dict[ir.Value, int] = {}
    exits = []
    for node in members:
        used = nodes.used_outputs(node)
        if not used or used[0] not in axes:
            return None
        how = _whole(facts, node, axes[used[0]])
        if how is None:
            return None
        for value, found in zip(node.inputs, how.inputs, strict=True):
            if value is not None and value in made and (found is None or found.axis != made[value]):
                return None
        for value in used:
            made[value] = axes[used[0]]
            if value.is_graph_output() or any(user not in inside for user, _ in value.uses()):
                exits.append(value)
    return Region(tuple(members), made, tuple(exits))


def steps_of(facts: Facts, region: Region, count: int) -> tuple[Step, ...] | None:
    """What computes the region in `count` tiles; None where a tile of something would be empty or has no part."""
    writer = _Tiles(facts, region, count)
    try:
        return tuple(writer.write())
    except _NoPart:
        return None


class _NoPart(Exception):
    pass


class _Tiles:
    def __init__(self, facts: Facts, region: Region, count: int) -> None:
        self._facts, self._region, self._count = facts, region, count
        self._numbers = 0
        self._lengths: dict[ir.Value, int] = {}
        for value, axis in region.axes.items():
            shape = facts.static_shape(value)
            assert shape is not None, "parts were found for it"
            self._lengths[value] = shape[axis]

    def write(self) -> Iterator[Step]:
        if min(self._lengths.values()) < self._count:
            raise _NoPart
        joined: dict[ir.Value, list[Piece]] = {value: [] for value in self._region.exits}
        for tile in range(self._count):
            runs = self._ranges(tile)
            held: dict[ir.Value, Piece] = {}
            cut: dict[tuple[ir.Value, Range], Piece] = {}
            for node in self._region.members:
                if node not in runs:
                    continue
                how = runs[node]
                inputs: list[Piece | None] = []
                for position, value in enumerate(node.inputs):
                    wanted = how.inputs[position]
                    if value is None or position in how.constants:
                        inputs.append(None)
                    else:
                        yield from self._cut(value, wanted, held, cut)
                        inputs.append(Piece(value) if wanted is None else cut[value, wanted])
                used = nodes.used_outputs(node)
                axis = self._region.axes[used[0]]
                outputs = tuple(self._piece(value, Range(axis, *how.made)) for value in used)
                held.update(zip(used, outputs, strict=True))
                share = (how.made[1] - how.made[0]) / self._lengths[used[0]]
                yield Run(node, how, tuple(inputs), outputs, share)
            for value, pieces in joined.items():
                wanted = Range(self._region.axes[value], *self._own(value, tile))
                yield from self._cut(value, wanted, held, cut)
                pieces.append(cut[value, wanted])
        for value, pieces in joined.items():
            yield Join(tuple(pieces), Piece(value))

    def _cut(
        self,
        value: ir.Value,
        wanted: Range | None,
        held: Mapping[ir.Value, Piece],
        cut: dict[tuple[ir.Value, Range], Piece],
    ) -> Iterator[Step]:
        """Make sure that there is a piece of exactly the wanted positions."""
        if wanted is None or (value, wanted) in cut:
            return
        source = held.get(value, Piece(value))
        if source.axis is None:
            shape = self._facts.static_shape(value)
            assert shape is not None, "a part was found of what reads it"
            if wanted[1:] == (0, shape[wanted.axis]):
                cut[value, wanted] = source
                return
        elif (source.low, source.high) == wanted[1:]:
            cut[value, wanted] = source
            return
        cut[value, wanted] = self._piece(value, wanted)
        yield Cut(source, cut[value, wanted])

    def _piece(self, value: ir.Value, of: Range) -> Piece:
        self._numbers += 1
        return Piece(value, *of, self._numbers)

    def _own(self, value: ir.Value, tile: int) -> tuple[int, int]:
        length = self._lengths[value]
        return tile * length // self._count, (tile + 1) * length // self._count

    def _ranges(self, tile: int) -> dict[ir.Node, Part]:
        """How each node that the tile needs runs, from what all its users together want."""
        wanted: dict[ir.Value, tuple[int, int]] = {}

        def want(value: ir.Value, low: int, high: int) -> None:
            known = wanted.get(value, (low, high))
            wanted[value] = min(low, known[0]), max(high, known[1])

        for value in self._region.exits:
            want(value, *self._own(value, tile))
        found: dict[ir.Node, Part] = {}
        for node in reversed(self._region.members):
            used = nodes.used_outputs(node)
            ranges = [wanted[value] for value in used if value in wanted]
            if not ranges:
                continue
            low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
            how = part(self._facts, node, Range(self._region.axes[used[0]], low, high))
            if how is None:
                raise _NoPart
            found[node] = how
            for operand, reach in zip(node.inputs, how.inputs, strict=True):
                if operand is not None and operand in self._region.axes:
                    assert reach is not None and reach.axis == self._region.axes[operand], "region_of looked at it"
                    want(operand, *reach[1:])
        return found
