"""A model in which more can be tiled: later readers make values again, and parts of a product are products.

    v -> a, ..., v -> b                    -->   v -> a, ..., w -> b     w: made by copies of the nodes that made v
    Split(MatMul(x, [W1 W2 W3]), axis -1)  -->   MatMul(x, W1), MatMul(x, W2), MatMul(x, W3)

A value that is made again need not be there between two readers, and tiles of the second one may make it in tiles: the
first skip connection of a U-Net, a mask that every layer reads. That is done where more than the budget is live in
between, from what the caller gave or from what is there anyway, and only as long as all that takes little time.
Products of their own let tiles begin behind keys and values and in front of queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from graphopt.memory.tensors import ModelMemory
from graphopt.memory.tiling.names import names_of, new_name
from graphopt.model import constants, nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.table import operator_of

MOST_TIME = 0.08  # of the whole model's time: what is made again may take so much
LITTLE, MUCH = 0.005, 0.5  # of that time, and of the budget: what takes more than this is made again if it is so large
MOST_NODES = 24  # that make a value again


def with_products_apart(model: ir.Model) -> ir.Model:
    """A copy of `model` with a product for each part that a Split makes of one; the same model where there is none."""
    copy, names = model.clone(), names_of(model)
    divided = [_divide(copy, node, names) for node in tuple(copy.graph) if node.op_type == "Split"]
    return copy if any(divided) else model


def with_values_again(model: ir.Model, memory: ModelMemory, live: Sequence[int], budget: int) -> ir.Model:
    """A copy of `model` in which later readers make values again; the same model where none is worth it.

    It needs `live` bytes at each operator of its `memory`, more than `budget` at some.
    """
    chosen = _chosen(model, memory, live, budget)
    if not chosen:
        return model
    copy, names = model.clone(), names_of(model)
    there = dict(zip(model.graph, copy.graph, strict=True))
    for one in chosen:
        _make_again(copy.graph, [there[node] for node in one.makers], there[one.reader], one.result, names)
    return copy


@dataclass(frozen=True, slots=True)
class _Again:
    """A value that a reader gets anew, by which nodes, in their order."""

    reader: ir.Node
    makers: tuple[ir.Node, ...]
    result: int  # of the last of them
    time: float
    worth: float  # bytes times operators between, for the time


def _chosen(model: ir.Model, memory: ModelMemory, live: Sequence[int], budget: int) -> list[_Again]:
    """What is worth most for its time, as long as all together takes little."""
    facts, operators = Facts(model), memory.graph.operators
    place = {memory.nodes[one.name]: step for step, one in enumerate(operators)}
    sizes = {value.name: value.size for value in memory.graph.values}
    whole = sum(one.time for one in operators)
    found: list[_Again] = []
    for step, one in enumerate(operators):
        node = memory.nodes[one.name]
        for index, value in enumerate(node.outputs):
            readers = sorted({place[use.node] for use in value.uses() if use.node in place})
            if len(readers) < 2 or value.is_graph_output():
                continue
            for before, reader in pairwise(readers):
                if max(live[before : reader + 1]) <= budget:
                    continue
                makers = _makers(facts, memory, place, step, reader)
                if makers is None:
                    continue
                time, size = sum(operators[maker].time for maker in makers), sizes.get(value.name or "", 0)
                if time > LITTLE * whole and size < MUCH * budget:
                    continue
                worth = size * (reader - before) / max(time, 1.0)
                copied = tuple(memory.nodes[operators[maker].name] for maker in makers)
                found.append(_Again(memory.nodes[operators[reader].name], copied, index, time, worth))
    left = MOST_TIME * whole
    chosen = []
    for again in sorted(found, key=lambda one: -one.worth):
        if again.time <= left:
            left -= again.time
            chosen.append(again)
    return chosen


def _makers(
    facts: Facts, memory: ModelMemory, place: Mapping[ir.Node, int], step: int, reader: int
) -> list[int] | None:
    """The operators that make the results of one again at a reader; None where they are many.

    They begin at what the caller gave; or it is one of little work, and what it reads is there anyway.
    """
    operators, found, waiting = memory.graph.operators, set[int](), [step]
    if _is_light(memory.nodes[operators[step].name]) and all(
        value is None or value.producer() not in place or _last_use(value, place) >= reader
        for value in memory.nodes[operators[step].name].inputs
    ):
        return [step]
    while waiting:
        maker = waiting.pop()
        if maker in found:
            continue
        node = memory.nodes[operators[maker].name]
        if len(found) == MOST_NODES or nodes.has_subgraphs(node) or not facts.is_pure(node):
            return None
        found.add(maker)
        producers = [None if value is None else value.producer() for value in node.inputs]
        waiting += [place[one] for one in producers if one is not None and one in place]
    return sorted(found)


def _is_light(node: ir.Node) -> bool:
    """Whether the node reads and writes rather than computes, as a normalization does."""
    operator = operator_of(node)
    return operator is not None and operator.axes is not None and not nodes.has_subgraphs(node)


def _last_use(value: ir.Value, place: Mapping[ir.Node, int]) -> int:
    return max((place[use.node] for use in value.uses() if use.node in place), default=0)


def _make_again(graph: ir.Graph, makers: Sequence[ir.Node], reader: ir.Node, result: int, names: set[str]) -> None:
    """Copies of nodes right before a reader, which reads a result of the last one."""
    made: dict[ir.Value, ir.Value] = {}
    last: ir.Node | None = None
    for node in makers:
        inputs = [None if one is None else made.get(one, one) for one in node.inputs]
        last = ir.Node(
            node.domain, node.op_type, inputs, list(node.attributes.values()), overload=node.overload,
            num_outputs=len(node.outputs), name=new_name(node.name or node.op_type, names), doc_string=node.doc_string,
            metadata_props={**node.metadata_props, nodes.RECOMPUTED: node.name or node.op_type},
        )  # fmt: skip
        for mine, theirs in zip(last.outputs, node.outputs, strict=True):
            mine.name = new_name(theirs.name, names) if theirs.name else ""
            mine.type, mine.shape = theirs.type, theirs.shape
            made[theirs] = mine
        graph.insert_before(reader, last)
    assert last is not None, "a value has a maker"
    whole = makers[-1].outputs[result]
    for position, operand in enumerate(reader.inputs):
        if operand is whole:
            reader.replace_input_with(position, last.outputs[result])


def _divide(model: ir.Model, split: ir.Node, names: set[str]) -> bool:
    """Make a product for each part where a Split alone reads one with constant weights, along its columns."""
    product = split.inputs[0].producer() if split.op_type == "Split" and split.inputs[0] is not None else None
    if product is None or product.op_type != "MatMul" or product.domain or split.domain or len(product.outputs) != 1:
        return False
    facts, (x, w) = Facts(model), product.inputs[:2]
    tensor = None if w is None else constants.of_initializer(w)
    shapes = [facts.static_shape(one) for one in split.outputs]
    whole = facts.static_shape(product.outputs[0])
    if x is None or tensor is None or whole is None or None in shapes or len(product.outputs[0].uses()) != 1:
        return False
    axis = nodes.int_attribute(split, "axis", 0) % len(whole)
    if axis != len(whole) - 1 or len(tensor.shape) != 2 or product.outputs[0].is_graph_output():
        return False
    array, first, producers = tensor.numpy(), 0, []
    for output, shape in zip(split.outputs, shapes, strict=True):
        assert shape is not None, "it was looked at"
        given = split.inputs[1] if len(split.inputs) > 1 else None
        name = new_name(f"{given.name if given is not None and given.name else output.name}_part", names)
        held = ir.Tensor(np.ascontiguousarray(array[:, first : first + shape[axis]]), dtype=tensor.dtype, name=name)
        weights = ir.Value(name=name, shape=held.shape, type=ir.TensorType(held.dtype), const_value=held)
        model.graph.register_initializer(weights)
        part = ir.Node(
            "", "MatMul", [x, weights], name=new_name(f"{product.name or output.name}_part", names),
            metadata_props=dict(product.metadata_props),
        )  # fmt: skip
        producers.append((output, part))
        first += shape[axis]
    for output, part in producers:
        model.graph.insert_before(split, part)
        result = part.outputs[0]
        result.type, result.shape = output.type, output.shape
        ir.convenience.replace_all_uses_with([output], [result], replace_graph_outputs=True)
        result.name, output.name = output.name, None
    model.graph.remove([split, product], safe=True)
    return True
