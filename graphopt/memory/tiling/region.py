"""Regions of a model that can be computed in tiles, and the steps that do so.

A region is a set of nodes without a way out and back in. Each value that it makes and others need is an exit: it is
made in tiles along one axis and joined. For each tile, ranges are followed from the exits back to what the region
reads. What two tiles need, as halos of convolutions, is computed for both or kept by one for the other: the recompute
and the reuse model of Alwani et al., "Fused-layer CNN accelerators", MICRO 2016. The former is that of Lin et al.,
"MCUNetV2: memory-efficient patch-based inference", NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Literal

import onnx_ir as ir

from graphopt.memory.tiling.axes import whole
from graphopt.memory.tiling.images import in_channels
from graphopt.memory.tiling.locality import part
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.parts import Part, Range
from graphopt.model.operators.table import formula_of


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


Copied = Literal["kept", "joined"]  # for a tile behind this one, or to where pieces are joined


@dataclass(frozen=True, slots=True)
class Cut:
    """Copy `made` out of a larger piece or the whole value."""

    source: Piece
    made: Piece
    copied: Copied | None = None  # None: where pieces are views it may be one


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
    """Put pieces one after the other: a larger one, or the whole value, as the rest of the model knows it."""

    pieces: tuple[Piece, ...]
    whole: Piece


Step = Cut | Run | Join


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
    how = whole(facts, node, axes[nodes.used_outputs(node)[0]])
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
        how = whole(facts, node, axes[used[0]])
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


def steps_of(
    facts: Facts, region: Region, count: int, *, keep: bool = False, vector: int = 1
) -> tuple[Step, ...] | None:
    """What computes the region in `count` tiles, as `Tiling` says."""
    return Tiling(facts, region, vector).steps(count, keep=keep)


class Tiling:
    """A region in any number of tiles.

    Kernels compute a `vector` of channels or columns at once: no tile has a part of one but the last, which takes as
    long as a whole one.
    """

    def __init__(self, facts: Facts, region: Region, vector: int = 1) -> None:
        self.region = region
        self._facts = facts
        self._lengths: dict[ir.Value, int] = {}
        self._grains: dict[ir.Value, int] = {}
        images = in_channels(facts, region.members, region.axes)
        for value, axis in region.axes.items():
            shape = facts.static_shape(value)
            assert shape is not None, "parts were found for it"
            self._lengths[value] = shape[axis]
            inner = 1 if value in images else len(shape) - 1  # channels of images, else columns
            self._grains[value] = vector if axis == inner else 1
        for value, block in self._blocks().items():
            self._grains[value] = lcm(self._grains[value], block)

    def steps(self, count: int, *, keep: bool = False) -> tuple[Step, ...] | None:
        """What computes the region in `count` tiles; None where a tile of something would be empty or has no part.

        With `keep` no position is computed twice: a tile keeps of each value what those behind it need.
        """
        if min(-(-length // self._grains[value]) for value, length in self._lengths.items()) < count:
            return None
        writer = _Tiles(self._facts, self.region, count, keep, self._lengths, self._grains)
        try:
            return tuple(writer.write())
        except _NoPart:
            return None

    def _blocks(self) -> dict[ir.Value, int]:
        """How many positions of each value go together: one row of what a Reshape joins, or one head."""
        blocks: dict[ir.Value, int] = {}
        for node in self.region.members:
            value = nodes.used_outputs(node)[0]
            how, length = whole(self._facts, node, self.region.axes[value]), self._lengths[value]
            assert how is not None, "parts were found for it"
            block = 1
            if node.op_type in ("Reshape", "Attention"):
                first = part(self._facts, node, Range(self.region.axes[value], 0, 1))
                block = 1 if first is None else first.made[1]
            for operand, reach in zip(node.inputs, how.inputs, strict=True):
                if operand is None or reach is None:
                    continue
                theirs, size = blocks.get(operand, 1), reach.high - reach.low
                if size == length:
                    block = lcm(block, theirs)
                elif node.op_type == "Reshape" and length % size == 0:
                    block = lcm(block, theirs * length // size)
                elif node.op_type == "Reshape" and size % length == 0:
                    block = lcm(block, theirs // gcd(theirs, size // length))
            blocks[value] = block
        return blocks


class _NoPart(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Tile:
    """How each node runs that runs for a tile, what is wanted of each value, and how far each has been made then."""

    runs: Mapping[ir.Node, Part]
    wanted: Mapping[ir.Value, tuple[int, int]]
    done: Mapping[ir.Value, int]


class _Tiles:
    def __init__(
        self, facts: Facts, region: Region, count: int, keep: bool, lengths: Mapping[ir.Value, int],
        grains: Mapping[ir.Value, int],
    ) -> None:  # fmt: skip
        self._facts, self._region, self._count, self._keep = facts, region, count, keep
        self._numbers = 0
        self._lengths, self._grains = lengths, grains

    def write(self) -> Iterator[Step]:
        joined: dict[ir.Value, list[Piece]] = {value: [] for value in self._region.exits}
        tiles = self._tiles()
        kept: dict[ir.Value, Piece] = {}
        for number, tile in enumerate(tiles):
            held = dict(kept)
            cut: dict[tuple[ir.Value, Range], Piece] = {}
            behind = self._needed_behind(tiles, number)
            last_use = {
                value: node for node in self._region.members if node in tile.runs
                for value in (*node.inputs, *nodes.used_outputs(node)) if value in self._region.axes
            }  # fmt: skip

            idle = [value for value in behind if value not in last_use]
            yield from self._cut_all(idle, behind, held, cut, "kept")
            own = {value: Range(self._region.axes[value], *self._own(value, number)) for value in joined}
            ready: list[ir.Value] = []  # to be kept, once the kernel is written that a node begins
            for node in [one for one in self._region.members if one in tile.runs]:
                if formula_of(node) is None:
                    yield from self._cut_all(ready, behind, held, cut, "kept")
                    ready = []
                how = tile.runs[node]
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
                grain = self._grains[used[0]]
                share = -(-(how.made[1] - how.made[0]) // grain) / -(-self._lengths[used[0]] // grain)
                yield Run(node, how, tuple(inputs), outputs, share)
                for value, piece in zip(used, outputs, strict=True):
                    yield from self._extend(piece, tile.done[value], held)
                    if value in own:
                        yield from self._cut(value, own[value], held, cut, "joined")
                        joined[value].append(cut[value, own.pop(value)])
                ready += [value for value in behind if last_use.get(value) is node]
            yield from self._cut_all(ready, behind, held, cut, "kept")
            kept = {value: cut[value, wanted] for value, wanted in behind.items()}
            yield from self._cut_all(own, own, held, cut, "joined")
            for value, wanted in own.items():
                joined[value].append(cut[value, wanted])
        for value, pieces in joined.items():
            yield Join(tuple(pieces), Piece(value))

    def _extend(self, made: Piece, end: int, held: dict[ir.Value, Piece]) -> Iterator[Step]:
        """Put what was made, up to `end`, behind what an earlier tile has kept of the value."""
        before = held.get(made.value)
        if before is None:
            held[made.value] = made
            return
        axis = self._region.axes[made.value]
        if (made.low, made.high) != (before.high, end):
            if made.low > before.high or made.high < end:
                raise _NoPart
            part_of_it = self._piece(made.value, Range(axis, before.high, end))
            yield Cut(made, part_of_it)
            made = part_of_it
        held[made.value] = self._piece(made.value, Range(axis, before.low, end))
        yield Join((before, made), held[made.value])

    def _cut_all(
        self,
        values: Iterable[ir.Value],
        wanted: Mapping[ir.Value, Range],
        held: Mapping[ir.Value, Piece],
        cut: dict[tuple[ir.Value, Range], Piece],
        copied: Copied,
    ) -> Iterator[Step]:
        for value in values:
            yield from self._cut(value, wanted[value], held, cut, copied)

    def _cut(
        self,
        value: ir.Value,
        wanted: Range | None,
        held: Mapping[ir.Value, Piece],
        cut: dict[tuple[ir.Value, Range], Piece],
        copied: Copied | None = None,
    ) -> Iterator[Step]:
        """Make sure that there is a piece of exactly the wanted positions."""
        if wanted is None or ((value, wanted) in cut and copied is None):
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
        yield Cut(source, cut[value, wanted], copied)

    def _piece(self, value: ir.Value, of: Range) -> Piece:
        self._numbers += 1
        return Piece(value, *of, self._numbers)

    def _own(self, value: ir.Value, tile: int) -> tuple[int, int]:
        length, grain = self._lengths[value], self._grains[value]
        low, high = (number * -(-length // grain) // self._count * grain for number in (tile, tile + 1))
        return low, min(high, length)

    def _needed_behind(self, tiles: Sequence[_Tile], number: int) -> dict[ir.Value, Range]:
        """What tiles behind one need of what there is with it."""
        needed: dict[ir.Value, Range] = {}
        for value, end in tiles[number].done.items() if self._keep else ():
            low = min((one.wanted[value][0] for one in tiles[number + 1 :] if value in one.wanted), default=end)
            if low < end:
                needed[value] = Range(self._region.axes[value], low, end)
        return needed

    def _tiles(self) -> list[_Tile]:
        found: list[_Tile] = []
        done: dict[ir.Value, int] = {}
        for number in range(self._count):
            found.append(self._tile(number, done))
            done = dict(found[-1].done)
        return found

    def _tile(self, number: int, done: Mapping[ir.Value, int]) -> _Tile:
        """How each node that a tile needs runs, from what all its users want and what has been made before."""
        wanted: dict[ir.Value, tuple[int, int]] = {}
        after = dict(done)

        def want(value: ir.Value, low: int, high: int) -> None:
            known = wanted.get(value, (low, high))
            wanted[value] = min(low, known[0]), max(high, known[1])

        for value in self._region.exits:
            want(value, *self._own(value, number))
        runs: dict[ir.Node, Part] = {}
        for node in reversed(self._region.members):
            used = nodes.used_outputs(node)
            ranges = [wanted[value] for value in used if value in wanted]
            if not ranges:
                continue
            low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
            if self._keep:
                low = max(low, done.get(used[0], low))
            if low >= high:
                continue
            how = part(self._facts, node, Range(self._region.axes[used[0]], low, high))
            if how is None:
                raise _NoPart
            runs[node] = how
            after.update(dict.fromkeys(used, high))
            for operand, reach in zip(node.inputs, how.inputs, strict=True):
                if operand is not None and operand in self._region.axes:
                    assert reach is not None and reach.axis == self._region.axes[operand], "region_of looked at it"
                    want(operand, *reach[1:])
        return _Tile(runs, wanted, after)
