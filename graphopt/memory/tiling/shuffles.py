"""Parts of a channel shuffle are made by themselves, each from what it takes of what was joined.

    c = Concat(a, b), Reshape(c, [N, 2, C/2, H, W]), Transpose([0, 2, 1, 3, 4]), Reshape([N, C, H, W]), Split in two
    -->   for each part, Concat(Unsqueeze(Slice(a)), Unsqueeze(Slice(b)), axis 2), Reshape([N, C/2, H, W])

What was joined is then never there whole, nor is what is shuffled: a part that is read early is gone before the other
one is. Left alone: parts that begin or end between two groups, and values that something else reads too.

After ShuffleNet (Zhang et al., CVPR 2018), whose units hand one part on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.memory.tiling.names import names_of, new_name
from graphopt.memory.tiling.products import parts_taken
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.movement import permutation

CHANNELS = 1  # the axis that is shuffled


def with_shuffles_apart(model: ir.Model) -> ir.Model:
    """A copy of `model` in which parts of shuffles are made by themselves; the same model where there are none."""
    copy, names = model.clone(), names_of(model)
    shuffles = [node for node in copy.graph if node.op_type == "Transpose" and not node.domain]
    divided = [_divide(copy, node, names) for node in shuffles]
    return copy if any(divided) else model


@dataclass(frozen=True, slots=True)
class _Shuffle:
    """A Concat of channels, which lie in groups then, and what is taken of the channels whose groups are mixed."""

    joined: ir.Node
    movers: tuple[ir.Node, ...]  # behind the Concat: into groups, their Transpose, and channels again
    groups: int
    parts: dict[ir.Value, tuple[int, int]]  # what is taken: the first channel and behind the last one
    takers: tuple[ir.Node, ...]  # none where the whole is read


def _divide(model: ir.Model, transpose: ir.Node, names: set[str]) -> bool:
    """Make each part of a shuffle by itself; tells whether it is one of which all parts can be."""
    facts, graph = Facts(model), model.graph
    shuffle = _shuffle(facts, transpose)
    if shuffle is None:
        return False
    shape = facts.static_shape(shuffle.joined.outputs[0])
    assert shape is not None, "it was read as a shuffle"
    size = shape[CHANNELS] // shuffle.groups
    for output, (low, high) in shuffle.parts.items():
        each = low // shuffle.groups, high // shuffle.groups
        lengths = (*shape[:CHANNELS], each[1] - each[0], 1, *shape[CHANNELS + 1 :])
        channels = (*shape[:CHANNELS], each[1] - each[0], *shape[CHANNELS + 1 :])
        writer = _Writer(model, output, names, dict(transpose.metadata_props))
        pieces = []
        for group in range(shuffle.groups):
            source, start = _operand_of(facts, shuffle.joined, group * size + each[0])
            bounds = start, start + each[1] - each[0], CHANNELS
            cut = writer.add("Slice", [source, *(writer.constant([one]) for one in bounds)], channels)
            pieces.append(writer.add("Reshape", [cut, writer.constant(lengths)], lengths))
        dims = (*shape[:CHANNELS], each[1] - each[0], shuffle.groups, *shape[CHANNELS + 1 :])
        whole = writer.add("Concat", pieces, dims, ir.AttrInt64("axis", CHANNELS + 1))
        dims = (*shape[:CHANNELS], high - low, *shape[CHANNELS + 1 :])
        result = writer.add("Reshape", [whole, writer.constant(dims)], dims)
        graph.insert_before(shuffle.takers[0] if shuffle.takers else shuffle.movers[-1], writer.nodes)
        ir.convenience.replace_all_uses_with([output], [result], replace_graph_outputs=True)
        result.name, output.name = output.name, None
    graph.remove([*shuffle.takers, *reversed(shuffle.movers), shuffle.joined], safe=True)
    return True


def _shuffle(facts: Facts, transpose: ir.Node) -> _Shuffle | None:
    """The shuffle whose groups a Transpose mixes; None for other ones, or where a part takes half of a mixed group."""
    before, after = _only(transpose.inputs[0], transpose), _reader(transpose.outputs[0])
    joined = None if before is None or before.op_type != "Reshape" else _only(before.inputs[0], before)
    if before is None or after is None or after.op_type != "Reshape" or joined is None or joined.op_type != "Concat":
        return None
    shape, groups = (facts.static_shape(one.outputs[0]) for one in (joined, before))
    whole = after.outputs[0]
    if shape is None or groups is None or len(groups) != len(shape) + 1 or facts.static_shape(whole) != shape:
        return None
    rest, swapped = range(CHANNELS + 2, len(groups)), (CHANNELS + 1, CHANNELS)
    is_split = groups == (*shape[:CHANNELS], *groups[CHANNELS : CHANNELS + 2], *shape[CHANNELS + 1 :])
    if not is_split or permutation(transpose, len(groups)) != (*range(CHANNELS), *swapped, *rest):
        return None
    if nodes.int_attribute(joined, "axis", 0) % len(shape) != CHANNELS:
        return None
    parts, takers = _taken(facts, whole)
    count, size = groups[CHANNELS : CHANNELS + 2]
    if not parts or any(bound % count for bounds in parts.values() for bound in bounds):
        return None
    starts = _starts(facts, joined)
    for low, high in parts.values():
        for group in range(count):
            first, last = (group * size + bound // count for bound in (low, high))
            if starts is None or any(first < one < last for one in starts):
                return None  # a part of it has some of both of two operands
    return _Shuffle(joined, (before, transpose, after), count, parts, takers)


def _taken(facts: Facts, whole: ir.Value) -> tuple[dict[ir.Value, tuple[int, int]], tuple[ir.Node, ...]]:
    """The channels that readers take of a value: each its own, or all of them take it whole."""
    users = tuple(dict.fromkeys(use.node for use in whole.uses()))
    shape = facts.static_shape(whole)
    found: dict[ir.Value, tuple[int, int]] = {}
    for user in users:
        for part, (axis, low, high) in parts_taken(facts, user, whole).items():
            if axis == CHANNELS:
                found[part] = low, high
    made = {value for user in users for value in nodes.used_outputs(user)}
    if not whole.is_graph_output() and len(found) > 1 and made == set(found):
        return found, users
    return ({whole: (0, shape[CHANNELS])} if shape is not None and users else {}), ()


def _only(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """What makes a value that this node alone reads."""
    if value is None or value.is_graph_output() or {use.node for use in value.uses()} != {reader}:
        return None
    return value.producer()


def _reader(value: ir.Value) -> ir.Node | None:
    users = {use.node for use in value.uses()}
    return users.pop() if len(users) == 1 and not value.is_graph_output() else None


def _starts(facts: Facts, joined: ir.Node) -> list[int] | None:
    """The first channel of each operand in what is joined of them."""
    found, start = [], 0
    for value in joined.inputs:
        shape = None if value is None else facts.static_shape(value)
        if shape is None:
            return None
        found.append(start)
        start += shape[CHANNELS]
    return found


def _operand_of(facts: Facts, joined: ir.Node, channel: int) -> tuple[ir.Value, int]:
    """The operand in which a channel of what is joined lies, and its place there."""
    starts = _starts(facts, joined)
    assert starts is not None, "its operands have dims"
    number = max(at for at, one in enumerate(starts) if one <= channel)
    value = joined.inputs[number]
    assert value is not None, "every operand of a Concat is there"
    return value, channel - starts[number]


class _Writer:
    """New nodes for one part, with names after it."""

    def __init__(self, model: ir.Model, part: ir.Value, names: set[str], props: dict[str, str]) -> None:
        self._model, self._part, self._names, self._props = model, part, names, props
        self.nodes: list[ir.Node] = []

    def add(self, operator: str, inputs: Sequence[ir.Value], dims: Sequence[int], *attributes: ir.Attr) -> ir.Value:
        name = new_name(f"{self._part.name}_{operator.lower()}", self._names)
        node = ir.Node("", operator, inputs, attributes, name=name, metadata_props=dict(self._props))
        made = node.outputs[0]
        made.name, made.type = new_name(f"{self._part.name}_apart", self._names), self._part.type
        made.shape = ir.Shape(dims)
        self.nodes.append(node)
        return made

    def constant(self, numbers: Sequence[int]) -> ir.Value:
        name = new_name(f"{self._part.name}_dims", self._names)
        held = ir.Tensor(np.array(numbers, np.int64), name=name)
        value = ir.Value(name=name, shape=held.shape, type=ir.TensorType(held.dtype), const_value=held)
        self._model.graph.register_initializer(value)
        return value
