"""A model in which more can be tiled: later readers make values again.

    v -> a, ..., v -> b   -->   v -> a, ..., w -> b     w: made by copies of the nodes that made v

A value that is made again need not be there between two readers, and tiles of the second one may make it in tiles: the
first skip connection of a U-Net, a mask that every layer reads. That is done where more than the budget is live in
between, from what the caller gave or from what is there anyway, and only as long as all that takes little time. Nearby
ones are products too, of what is there anyway: what queries are made of is then not there whole beside the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from graphopt.memory.tensors import ModelMemory
from graphopt.memory.tiling.names import names_of, new_name
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.table import operator_of

MOST_TIME = 0.08  # of the whole model's time: what is made again may take so much
LITTLE, MUCH = 0.005, 0.5  # of that time, and of the budget: what takes more than this is made again if it is so large
MOST_NODES = 24  # that make a value again


def with_values_again(
    model: ir.Model, memory: ModelMemory, live: Sequence[int], budget: int, *, nearby: bool = False
) -> ir.Model:
    """A copy of `model` in which later readers make values again; the same model where none is worth it.

    It needs `live` bytes at each operator of its `memory`, more than `budget` at some. With `nearby` values that take
    longer are made again where one node makes them of what is there anyway, instead of those that are large.
    """
    chosen = _chosen(model, memory, live, budget, nearby)
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


def _chosen(model: ir.Model, memory: ModelMemory, live: Sequence[int], budget: int, nearby: bool) -> list[_Again]:
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
                if max(live[before + 1 : reader], default=0) <= budget:  # where they read it, it is there anyway
                    continue
                is_near = nearby and facts.is_pure(node) and _is_there(node, place, reader)
                makers = [step] if is_near else _makers(facts, memory, place, step, reader)
                if makers is None:
                    continue
                time, size = sum(operators[maker].time for maker in makers), sizes.get(value.name or "", 0)
                if time > LITTLE * whole and not is_near and (nearby or size < MUCH * budget):
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
    if is_light(memory.nodes[operators[step].name]) and _is_there(memory.nodes[operators[step].name], place, reader):
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


def _is_there(node: ir.Node, place: Mapping[ir.Node, int], reader: int) -> bool:
    """Whether what a node reads is there when a later one runs, whatever that reads."""
    values = [value for value in node.inputs if value is not None and value.producer() in place]
    return not nodes.has_subgraphs(node) and all(_last_use(value, place) >= reader for value in values)


def is_light(node: ir.Node) -> bool:
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
