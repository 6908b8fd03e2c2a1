"""Recurrent layers in chunks of steps: each layer hands its state to its next chunk, and layers take turns.

    GRU(x) -> a, GRU(a) -> b   -->   GRU(x[:k]) -> a1, h1;      GRU(a1) -> b1, g1;
                                     GRU(x[k:], h1) -> a2, h2;  GRU(a2, g1) -> b2, g2

What a layer's kernel needs for all steps, the products of its inputs with W above all, is then needed for some of them,
and so is what one layer hands to the next. No step is computed twice; weights are read once for each chunk. Between
layers stand operators that treat steps alike. The last step of a result is the layer's final state, so that a Gather of
it needs no result of all steps. Left alone: layers that run backwards or both ways, which need all steps of the layer
before them first, and sequences with lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.memory.tiling.locality import part
from graphopt.memory.tiling.names import names_of, new_name
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.parts import AttributeValue, Part, Range

STATES: Mapping[str, Mapping[int, int]] = {"GRU": {5: 1}, "RNN": {5: 1}, "LSTM": {5: 1, 6: 2}}  # operand: result
LENGTHS = 4  # the operand with the lengths of sequences


@dataclass(frozen=True, slots=True)
class _Chain:
    """Nodes in their order, all along an axis of as many steps; the last one is a layer, and so may others be."""

    members: tuple[ir.Node, ...]
    axes: Mapping[ir.Value, int]  # of the steps, in what they read and make
    steps: int


def in_chunks(model: ir.Model, count: int) -> ir.Model | None:
    """A copy of `model` whose recurrent layers run in so many chunks of steps; None where none can."""
    copy = model.clone()
    facts = Facts(copy)
    _read_states(copy, facts)
    writer = _Writer(copy, facts)
    chains = [chain for chain in _chains(facts, list(copy.graph)) if chain.steps >= count]
    for chain in chains:
        writer.write(chain, count)
    return copy if chains else None


def _is_layer(facts: Facts, node: ir.Node) -> bool:
    """Whether a layer runs forward alone, over sequences that all have the same number of steps."""
    if node.op_type not in STATES or node.domain or nodes.has_reference_attributes(node):
        return False
    forward = nodes.string_attribute(node, "direction", "forward") == "forward"
    x = node.inputs[0]
    shape = None if x is None else facts.static_shape(x)
    whole = nodes.input_at(node, LENGTHS) is None and not nodes.int_attribute(node, "layout", 0)
    return forward and whole and shape is not None and shape[0] > 1


def _read_states(model: ir.Model, facts: Facts) -> None:
    """Let a Gather of the last step read the layer's final state."""
    for node in tuple(model.graph):
        if not _is_layer(facts, node) or not node.outputs:
            continue
        value, axis, steps = node.outputs[0], 0, facts.static_shape(node.inputs[0] or node.outputs[0])
        while len(value.uses()) == 1 and not value.is_graph_output():
            ((user, position),) = value.uses()
            if user.op_type == "Gather" and position == 0 and not user.domain and steps is not None:
                chosen = facts.array(user.inputs[1]) if user.inputs[1] is not None else None
                shape = facts.static_shape(user.outputs[0])
                if (
                    nodes.int_attribute(user, "axis", 0) == axis and chosen is not None and chosen.size == 1
                    and int(chosen.reshape(())) in (-1, steps[0] - 1) and shape is not None
                ):  # fmt: skip
                    _read_state(model, node, user, shape)
                break
            how = _across(facts, user, position, axis) if user.op_type in ("Squeeze", "Reshape", "Transpose") else None
            if how is None:
                break
            value, axis = user.outputs[0], how


def _read_state(model: ir.Model, layer: ir.Node, gather: ir.Node, shape: tuple[int, ...]) -> None:
    names = names_of(model)
    while len(layer.outputs) < 2:
        layer.resize_outputs(len(layer.outputs) + 1)
    state = layer.outputs[1]
    if not state.name:
        state.name = new_name(f"{layer.name or layer.op_type}_state", names)
    state.type = gather.outputs[0].type
    target = _constant(model, np.array(shape, np.int64), new_name(f"{state.name}_shape", names))
    reshape = ir.Node("", "Reshape", [state, target], name=new_name(f"{state.name}_reshape", names))
    result, old = reshape.outputs[0], gather.outputs[0]
    result.type, result.shape = old.type, ir.Shape(shape)
    model.graph.insert_before(gather, reshape)
    ir.convenience.replace_all_uses_with([old], [result], replace_graph_outputs=True)
    result.name, old.name = old.name, None
    dead: ir.Node | None = gather
    while dead is not None and dead is not layer:
        before = dead.inputs[0].producer() if dead.inputs[0] is not None else None
        model.graph.remove(dead, safe=True)
        dead = before


def _across(facts: Facts, node: ir.Node, position: int, axis: int) -> int | None:
    """The axis of a node's one result that follows an axis of an operand."""
    for at in range(facts.rank(node.outputs[0]) or 0):
        how = _whole(facts, node, at)
        found = None if how is None else how.inputs[position]
        if found is not None and found.axis == axis:
            return at
    return None


def _whole(facts: Facts, node: ir.Node, axis: int) -> Part | None:
    shape = facts.static_shape(node.outputs[0])
    return None if shape is None or len(node.outputs) != 1 else part(facts, node, Range(axis, 0, shape[axis]))


def _chains(facts: Facts, order: Sequence[ir.Node]) -> list[_Chain]:
    """Layers with those that read what they hand on step by step, and what comes before the first step by step."""
    found: list[_Chain] = []
    seen: set[ir.Node] = set()
    for node in order:
        if node in seen or not _is_layer(facts, node):
            continue
        x = node.inputs[0]
        assert x is not None, "a layer has an input"
        shape = facts.static_shape(x)
        assert shape is not None, "its steps are known"
        axes: dict[ir.Value, int] = {x: 0}
        members = [*_before(facts, x, axes), *_behind(facts, node, axes)]
        seen.update(members)
        found.append(_Chain(tuple(members), axes, shape[0]))
    return found


def _before(facts: Facts, value: ir.Value, axes: dict[ir.Value, int]) -> list[ir.Node]:
    """The nodes that alone lead to a value, from the first to the last; a Concat of steps is the first at the most."""
    found: list[ir.Node] = []
    while True:
        node = value.producer()
        if node is None or len(value.uses()) > 1 or value.is_graph_output() or len(node.outputs) != 1:
            return found
        axis = axes[value]
        if node.op_type == "Concat" and not node.domain and nodes.int_attribute(node, "axis", 0) == axis:
            return [node, *found]
        how = _whole(facts, node, axis)
        tied = [] if how is None else [(one, at) for one, at in zip(node.inputs, how.inputs, strict=True) if at]
        if len(tied) != 1 or tied[0][0] is None or node.op_type in STATES:
            return found
        value = tied[0][0]
        axes[value] = tied[0][1].axis
        found.insert(0, node)


def _behind(facts: Facts, layer: ir.Node, axes: dict[ir.Value, int]) -> list[ir.Node]:
    """A layer, and those that follow on it with what stands between them."""
    found, between, value = [layer], list[ir.Node](), layer.outputs[0]
    axes[value] = 0
    while len(value.uses()) == 1 and not value.is_graph_output():
        ((user, position),) = value.uses()
        if _is_layer(facts, user) and position == 0 and axes[value] == 0:
            found += [*between, user]
            between, value = [], user.outputs[0]
            axes[value] = 0
            continue
        after = _across(facts, user, position, axes[value]) if len(user.outputs) == 1 else None
        how = None if after is None else _whole(facts, user, after)
        if after is None or how is None or sum(one is not None for one in how.inputs) != 1:
            break
        between.append(user)
        value = user.outputs[0]
        axes[value] = after
    return found


class _Writer:
    """Writes chains in chunks in the place of their last nodes."""

    def __init__(self, model: ir.Model, facts: Facts) -> None:
        self._model, self._facts, self._names = model, facts, names_of(model)

    def write(self, chain: _Chain, count: int) -> None:
        graph, last = self._model.graph, chain.members[-1]
        state: dict[ir.Value, ir.Value] = {}  # of a layer's final state, what the latest chunk left
        pieces: list[ir.Value] = []
        made: list[ir.Node] = []
        for chunk in range(count):
            low, high = chunk * chain.steps // count, (chunk + 1) * chain.steps // count
            held: dict[ir.Value, ir.Value] = {}
            for node in chain.members:
                made += self._part(chain, node, (low, high), held, state)
            pieces.append(held[last.outputs[0]])
        if nodes.is_used(last.outputs[0]):
            whole = self._node("Concat", pieces, {"axis": 0}, last.outputs[0])
            state[last.outputs[0]] = whole.outputs[0]
            made.append(whole)
        for node in made:
            graph.insert_before(last, node)
        for old, new in state.items():
            ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
            if old.name:
                new.name, old.name = old.name, None
        for node in reversed(chain.members):
            graph.remove(node, safe=True)

    def _part(
        self, chain: _Chain, node: ir.Node, steps: tuple[int, int], held: dict[ir.Value, ir.Value],
        state: dict[ir.Value, ir.Value],
    ) -> list[ir.Node]:  # fmt: skip
        """What computes some steps of a node; pieces are held by what they are pieces of."""
        made: list[ir.Node] = []
        if node.op_type == "Concat" and node is chain.members[0]:
            axis, first, operands = chain.axes[node.outputs[0]], 0, list[ir.Value]()
            for value in node.inputs:
                shape = None if value is None else self._facts.static_shape(value)
                assert value is not None and shape is not None, "dims are known"
                low, high = max(steps[0] - first, 0), min(steps[1] - first, shape[axis])
                first += shape[axis]
                if low < high:
                    cuts = [] if (low, high) == (0, shape[axis]) else [self._slice(value, axis, low, high)]
                    operands.append(cuts[0].outputs[0] if cuts else value)
                    made += cuts
            made.append(self._node("Concat", operands, {"axis": axis}, node.outputs[0]))
            held[node.outputs[0]] = made[-1].outputs[0]
            return made
        inputs = list(node.inputs)
        for position, value in enumerate(inputs):
            if value is None or value not in chain.axes or (node.op_type in STATES and position):
                continue
            if value not in held:
                made.append(self._slice(value, chain.axes[value], *steps))
                held[value] = made[-1].outputs[0]
            inputs[position] = held[value]
        if node.op_type in STATES:
            return [*made, self._layer(node, inputs, held, state)]
        how = part(self._facts, node, Range(chain.axes[node.outputs[0]], *steps))
        assert how is not None, "the whole has one"
        for position, array in how.constants.items():
            inputs[position] = _constant(self._model, array, new_name(f"{node.name}_shape", self._names))
        copy = self._copy(node, inputs, 1, how.attributes)
        held[node.outputs[0]] = copy.outputs[0]
        return [*made, copy]

    def _layer(
        self, node: ir.Node, inputs: list[ir.Value | None], held: dict[ir.Value, ir.Value],
        state: dict[ir.Value, ir.Value],
    ) -> ir.Node:  # fmt: skip
        """A layer from the state that its last chunk left on."""
        states = STATES[node.op_type]
        while len(node.outputs) <= max(states.values()):
            node.resize_outputs(len(node.outputs) + 1)
        for position, output in states.items():
            inputs += [None] * (position + 1 - len(inputs))
            inputs[position] = state.get(node.outputs[output], inputs[position])
        copy = self._copy(node, inputs, 1 + max(states.values()), {})
        for output in states.values():
            state[node.outputs[output]] = copy.outputs[output]
        held[node.outputs[0]] = copy.outputs[0]
        return copy

    def _copy(
        self, node: ir.Node, inputs: Sequence[ir.Value | None], count: int, attributes: Mapping[str, AttributeValue]
    ) -> ir.Node:
        kept = [one for one in node.attributes.values() if one.name not in attributes]
        changed = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        of = node.name or node.op_type
        copy = ir.Node(
            node.domain, node.op_type, inputs, [*kept, *changed], num_outputs=count, name=new_name(of, self._names),
            metadata_props={**node.metadata_props, nodes.TILED: of},
        )  # fmt: skip
        for number, value in enumerate(copy.outputs):
            value.name = new_name(f"{of}_{number}_chunk", self._names)
            value.type = node.outputs[number].type or node.outputs[0].type
        return copy

    def _slice(self, value: ir.Value, axis: int, low: int, high: int) -> ir.Node:
        bounds = [
            _constant(self._model, np.array([one], np.int64), new_name(f"{value.name}_bound", self._names))
            for one in (low, high, axis)
        ]
        return self._node("Slice", [value, *bounds], {}, value)

    def _node(self, kind: str, inputs: Sequence[ir.Value], attributes: Mapping[str, int], of: ir.Value) -> ir.Node:
        name = of.name or kind
        node = ir.node(kind, inputs, attributes, name=new_name(f"{name}_{kind.lower()}", self._names))
        node.metadata_props[nodes.TILED] = name
        node.outputs[0].name = new_name(f"{name}_chunk", self._names)
        node.outputs[0].type = of.type
        return node


def _constant(model: ir.Model, array: np.ndarray, name: str) -> ir.Value:
    held = ir.Tensor(array, name=name)
    value = ir.Value(name=name, shape=held.shape, type=ir.TensorType(held.dtype), const_value=held)
    model.graph.register_initializer(value)
    return value
