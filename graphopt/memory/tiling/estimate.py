"""What a tiled stretch of a model takes, without writing it: the live peak inside it, and its time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir

from graphopt.memory.plan import problem_of
from graphopt.memory.tensors import BANDWIDTH, ModelMemory
from graphopt.memory.tiling.region import Cut, Join, Piece, Run, Step
from graphopt.model import constants, nodes
from graphopt.model.facts import Facts
from memplan.bounds import live_peak
from memplan.graph import Graph, Operator, Share, Value


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of the whole stretch, with what lives through it."""

    peak: int  # bytes
    time: float  # nanoseconds


class Stretch:
    """The operators `first` to `last` of an order, with what is live before them and needed behind.

    With `views` pieces are cut without a copy, and written over what is cut for them alone, as in a program. With
    `joined` what earlier tiles are joined to is there whole.
    """

    def __init__(
        self, memory: ModelMemory, facts: Facts, first: int, last: int, *, views: bool = False, joined: bool = False
    ) -> None:
        graph = memory.graph
        self._views = views
        self._facts = facts
        self.operators = graph.operators[first : last + 1]
        made = {name for one in graph.operators[:first] for name in one.outputs}
        here = {name for one in self.operators for name in one.outputs}
        later = {name for one in graph.operators[last + 1 :] for name in one.inputs}
        later.update(value.name for value in graph.values if value.kind == "output")
        read = {name for one in self.operators for name in one.inputs}
        self._values = {value.name: value for value in graph.values}
        self.nodes = tuple(memory.nodes[one.name] for one in self.operators)
        self._begin = tuple(sorted(made & (read | later)))
        self._end = tuple(sorted((made | here) & later))
        self._shares = [one for one in graph.shares if one.value in here or one.of in here]
        self._offered = {(one.value, one.of): one for one in self._shares}
        self._sharing = memory.sharing
        self._names = {value: name for name, value in _ir_values(memory).items()}
        placed = {one.value for one in self._shares}
        ends = (self._begin, [name for name in self._end if name not in placed])
        self._room = self._begun(memory, made | here, last) if joined else 0
        self.least = self._room + max(sum(self._values[name].size for name in names) for names in ends)  # however tiled

    def _begun(self, memory: ModelMemory, made: set[str], last: int) -> int:
        """Bytes of what earlier tiles are joined to behind the stretch, but for the pieces that are there by then.

        A program writes pieces where the whole lies, which is all there from the first one on.
        """
        room = 0
        for one in memory.graph.operators[last + 1 :]:
            node = memory.nodes[one.name]
            if node.op_type == "Concat" and nodes.TILED in node.metadata_props and not made.isdisjoint(one.inputs):
                there = [self._values[name].size for name in one.inputs if name in made]
                room += max(0, self._values[one.outputs[0]].size - sum(there))
        return room

    def tiled(self, before: Sequence[Operator], steps: Iterable[Step], after: Sequence[Operator]) -> Estimate:
        """Operators that come before the tiles, the tiles, and what comes after them."""
        by_output = {name: one for one in self.operators for name in one.outputs}
        pieces: dict[Piece, Value] = {}
        operators, shares = list(before), list(self._shares)
        steps = list(steps)
        sources = {step.made: step.source for step in steps if isinstance(step, Cut) and self._is_view(step)}
        replaced = self._replaced(steps)
        placed = {  # pieces that are made where the value that they replace was, or in the caller's memory
            _source(piece, sources) for step in steps
            if isinstance(step, Join) and step.whole.axis is None
            and (step.whole.value in replaced or not self._values[self._names[step.whole.value]].size)
            for piece in step.pieces
        }  # fmt: skip
        for number, step in enumerate(steps):
            if isinstance(step, Run):
                read = [_source(piece, sources) for piece in step.inputs if piece is not None]
                read = [piece for piece in read if self._takes_bytes(piece)]
                made = step.outputs
                time = by_output[self._names[made[0].value]].time * step.share
                shares += self._kept(read, [piece for piece in made if piece.value not in replaced])
            elif isinstance(step, Cut):
                if self._is_view(step) or not self._takes_bytes(step.source):
                    continue
                read, made = [_source(step.source, sources)], (step.made,)
                time = 2e9 * self._size(step.made) / BANDWIDTH
            elif step.whole.axis is not None:  # what was kept is copied, what is new was made in its place
                kept, new = (_source(piece, sources) for piece in step.pieces)
                read, made = [kept, new], (step.whole,)
                time = 2e9 * self._size(step.pieces[0] if self._views else step.whole) / BANDWIDTH
                if self._views and new == step.pieces[1]:
                    shares.append(Share(self._name(new), self._name(step.whole), self._size(kept)))
            else:
                read, made = [_source(piece, sources) for piece in step.pieces], (step.whole,)
                time = 0.0 if self._views else 2e9 * self._size(step.whole) / BANDWIDTH
                if step.whole.value in replaced:  # it takes the place of what was there until now
                    read.append(Piece(replaced[step.whole.value]))
                    shares.append(Share(self._name(step.whole), self._name(read[-1]), overwrites=True))
                elif self._sharing in (True, "strided"):
                    shares += self._side_by_side(read if self._views else step.pieces, step.whole)
            for piece in made:
                size = 0 if piece in placed else self._size(piece)
                pieces[piece] = replace(self._values[self._names[piece.value]], name=self._name(piece),
                                        size=size, kind="temporary")  # fmt: skip
            names = tuple(dict.fromkeys(self._name(piece) for piece in read))
            operators.append(Operator(f"tile step {number}", names, tuple(self._name(one) for one in made), time))
        operators += after
        return self._estimate(operators, list(pieces.values()), shares)

    def _replaced(self, steps: Sequence[Step]) -> dict[ir.Value, ir.Value]:
        """By what is joined, a value whose place it may take: a tile reads of it only what its own piece replaces."""
        joins = [step for step in steps if isinstance(step, Join) and step.whole.axis is None and self._views]
        found: dict[ir.Value, ir.Value] = {}
        for whole in joins:
            node = whole.whole.value.producer()
            for value in node.inputs if node is not None else ():
                if value is None or value not in self._names or value in found.values():
                    continue
                name = self._names[value]
                share = self._offered.get((self._names[whole.whole.value], name))
                held = name in self._begin and name not in self._end
                if share is not None and share.overwrites and held and _read_before(steps, value, node, whole):
                    found[whole.whole.value] = value
                    break
        return found

    def _estimate(self, operators: Sequence[Operator], pieces: Sequence[Value], shares: Sequence[Share]) -> Estimate:
        made = {name for one in operators for name in one.outputs} | set(self._begin)
        constants = {
            name
            for one in operators
            for name in one.inputs
            if name not in made and self._values[name].kind in ("constant", "input")
        }
        values = [replace(self._values[name], kind="constant") for name in sorted(constants)]
        own = {piece.name for piece in pieces}
        values += [replace(self._values[name], kind="temporary") for name in sorted(made - own)]
        values += pieces
        enter, leave = Operator("begin", (), self._begin), Operator("end", self._end, ())
        known = made | constants
        graph = Graph(
            tuple(values),
            (enter, *operators, leave),
            tuple(one for one in shares if one.value in known and one.of in known),
        )
        return Estimate(live_peak(problem_of(graph)) + self._room, sum(one.time for one in operators))

    def _is_view(self, step: Cut) -> bool:
        return self._views and step.copied is None

    def _takes_bytes(self, piece: Piece) -> bool:
        """Weights are cut when the model is written."""
        return piece.value in self._names and constants.of_initializer(piece.value) is None

    def _name(self, piece: Piece) -> str:
        name = self._names[piece.value]
        return name if piece.axis is None else f"{name}[{piece.low}:{piece.high}] {piece.number}"

    def _size(self, piece: Piece) -> int:
        whole = self._values[self._names[piece.value]].size
        if piece.axis is None:
            return whole
        shape, kind = self._facts.static_shape(piece.value), self._facts.dtype(piece.value)
        assert shape is not None and kind is not None, "a part was found of it"
        whole = whole or int(prod(shape) * kind.itemsize)  # of the caller's memory a tile is a copy, before it is there
        return whole // shape[piece.axis] * (piece.high - piece.low)

    def _kept(self, read: Sequence[Piece], made: Sequence[Piece]) -> Iterable[Share]:
        """The places that the whole operator offers, for its pieces."""
        for result in made:
            for operand in read:
                for value, of in ((result, operand), (operand, result)):
                    share = self._offered.get((self._names[value.value], self._names[of.value]))
                    if share is not None and self._size(value) <= self._size(of):
                        whole = self._values[share.of].size or 1
                        yield Share(self._name(value), self._name(of), share.at * self._size(of) // whole,
                                    share.overwrites)  # fmt: skip

    def _side_by_side(self, pieces: Sequence[Piece], whole: Piece) -> Iterable[Share]:
        """Pieces can be made where the whole will stand, if they are blocks of memory one after the other."""
        shape = self._facts.static_shape(whole.value)
        assert shape is not None and pieces[0].axis is not None, "a part was found of it"
        if self._sharing == "strided" or all(size == 1 for size in shape[: pieces[0].axis]):
            at = 0
            for piece in pieces:
                yield Share(self._name(piece), self._name(whole), at)
                at += self._size(piece)


def _read_before(steps: Sequence[Step], value: ir.Value, node: ir.Node | None, whole: Join) -> bool:
    """Whether what tiles read of a value are the positions of pieces of the whole, and none after `node` made them."""
    places = {(piece.axis, piece.low, piece.high) for piece in whole.pieces}
    made: set[tuple[int | None, int, int]] = set()
    for run in [step for step in steps if isinstance(step, Run)]:
        pieces = [piece for piece in run.inputs if piece is not None and piece.value is value]
        read = {(piece.axis, piece.low, piece.high) for piece in pieces}
        if not read <= places or not made.isdisjoint(read):
            return False
        made |= read if run.node is node else set()
    return True


def _source(piece: Piece, sources: Mapping[Piece, Piece]) -> Piece:
    """What a piece is cut from in the end."""
    while piece in sources:
        piece = sources[piece]
    return piece


def _ir_values(memory: ModelMemory) -> Mapping[str, ir.Value]:
    """The values of the model by their names in the graph of memory."""
    found: dict[str, ir.Value] = {}
    for operator in memory.graph.operators:
        node = memory.nodes[operator.name]
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.name:
                found[value.name] = value
    return found
