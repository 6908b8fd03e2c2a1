"""A graph in segments that run one after the other: those with kernels, and those that ONNX Runtime has to run.

A node's stage is at least that of what it reads and grows by one wherever a value crosses between the two sides, so
kernels stand on even stages and ONNX Runtime on odd ones:

    Relu(x) -> NonZero -> Cast        stages 0, 1, 2: three segments, each a model with inputs and outputs of its own
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model.nodes import implicit_inputs
from graphopt.model.operators.table import MOVEMENTS
from graphopt.program.regions.fusion import is_anchor, is_elementwise, trees
from graphopt.program.regions.scope import Scope

LEAST_WORK = 2  # kernels between two parts of ONNX Runtime: fewer do not pay for the way in and out


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes that run together, in the order of the graph; nodes of constants belong to none."""

    nodes: tuple[ir.Node, ...]
    native: bool  # whether kernels compute it
    inputs: tuple[ir.Value, ...]  # computed elsewhere, or inputs of the graph
    outputs: tuple[ir.Value, ...]  # read by others, or outputs of the graph; never empty


def reads(scope: Scope, node: ir.Node) -> tuple[ir.Value, ...]:
    """The values that a node reads when it runs, its subgraphs' included; each once."""
    found = dict.fromkeys((*(value for value in node.inputs if value is not None), *implicit_inputs(node)))
    return tuple(value for value in found if not is_fixed(scope, value))


def is_fixed(scope: Scope, value: ir.Value) -> bool:
    """Whether a value is an initializer, or made of such alone by a node that lowering reads as a constant."""
    if scope.constant(value) is None:
        return False
    producer = value.producer()
    return producer is None or all(one is None or is_fixed(scope, one) for one in producer.inputs)


def cut(scope: Scope, graph: ir.Graph, outside: AbstractSet[ir.Node]) -> list[Segment]:
    """The segments in the order in which they run, when ONNX Runtime has to run the nodes `outside`."""
    computed = [node for node in graph if not all(is_fixed(scope, output) for output in node.outputs)]
    needed = {node: reads(scope, node) for node in computed}
    known = set(outside)
    while True:
        stages = _stages(computed, needed, known)
        small = _not_worth_it(scope, computed, needed, stages)
        if not small:
            break
        known |= small
    return _segments(graph, computed, needed, stages)


def part(scope: Scope, model: ir.Model, segment: Segment) -> ir.Model:
    """A segment as a model of its own, its constants included; it shares their data with `model`."""
    graph = ir.convenience.extract(model.graph, segment.inputs, segment.outputs)
    for new, old in zip((*graph.inputs, *graph.outputs), (*segment.inputs, *segment.outputs), strict=True):
        new.type = scope.facts.known(old).type
        shape = scope.facts.static_shape(old)
        new.shape = None if shape is None else ir.Shape(shape)
    functions = [function.clone() for function in model.functions.values()]
    return ir.Model(graph, ir_version=model.ir_version, functions=functions)


Needed = dict[ir.Node, tuple[ir.Value, ...]]


def _stages(computed: Sequence[ir.Node], needed: Needed, outside: AbstractSet[ir.Node]) -> dict[ir.Node, int]:
    stages: dict[ir.Node, int] = {}
    for node in computed:
        producers = [value.producer() for value in needed[node]]
        stage = max((stages[one] for one in producers if one is not None), default=0)
        stages[node] = stage + ((stage % 2 == 1) != (node in outside))
    return stages


def _not_worth_it(
    scope: Scope, computed: Sequence[ir.Node], needed: Needed, stages: dict[ir.Node, int]
) -> set[ir.Node]:
    """Groups of nodes with little work between parts of ONNX Runtime, and of movement alone beside one."""
    found: set[ir.Node] = set()
    for group in _groups(computed, needed, stages):
        fed = any(stages.get(one, 0) % 2 for node in group for value in needed[node] if (one := value.producer()))
        members = set(group)
        asked = any(
            use.node not in members for node in group for value in node.outputs for use in value.uses()
        )  # fmt: skip
        given = any(value.is_graph_output() for node in group for value in node.outputs)
        work = _work(scope, group)
        if (work == 0 and (fed or asked)) or (work < LEAST_WORK and fed and asked and not given):
            found |= members
    return found


def _groups(computed: Sequence[ir.Node], needed: Needed, stages: dict[ir.Node, int]) -> list[list[ir.Node]]:
    """The nodes with kernels that hang together within a stage."""
    group: dict[ir.Node, list[ir.Node]] = {}
    for node in computed:
        if stages[node] % 2:
            continue
        group[node] = [node]
        for value in needed[node]:
            producer = value.producer()
            if producer in group and stages[producer] == stages[node] and group[producer] is not group[node]:
                joined = group[producer]
                joined += group[node]
                for one in group[node]:
                    group[one] = joined
    return list({id(members): members for members in group.values()}.values())


def _work(scope: Scope, group: Sequence[ir.Node]) -> int:
    """About how many kernels a group needs, movement not counted."""
    alone = sum(not (is_elementwise(node) or is_anchor(node)) and node.op_type not in MOVEMENTS for node in group)
    return alone + len(trees(group, scope.shape))


def _segments(
    graph: ir.Graph, computed: Sequence[ir.Node], needed: Needed, stages: dict[ir.Node, int]
) -> list[Segment]:
    readers: dict[ir.Value, set[int]] = {}
    for node in computed:
        for value in needed[node]:
            readers.setdefault(value, set()).add(stages[node])
    found = []
    for stage in sorted(set(stages.values())):
        nodes = tuple(node for node in computed if stages[node] == stage)
        own = {value for node in nodes for value in node.outputs}
        inputs = dict.fromkeys(value for node in nodes for value in needed[node] if value not in own)
        outputs = tuple(
            value for node in nodes for value in node.outputs
            if value.is_graph_output() or readers.get(value, set()) - {stage}
        )  # fmt: skip
        if outputs:
            found.append(Segment(nodes, stage % 2 == 0, tuple(inputs), outputs))
    return found
