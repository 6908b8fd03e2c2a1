"""How much a model may ask of whoever expands or runs it: nodes, dims, elements, and runs of nodes.

A file of a hundred bytes can ask for more than any machine has: functions that call functions twice, a Loop of 2^62
trips, a Reshape to twenty million dims. Each stage that would expand or run such a thing asks here first, and refuses
in a sentence. The limits are far above what networks need, and the same on every machine.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import constants, nodes

MOST_NODES = 1_000_000  # of a model whose functions have taken the place of their calls
MOST_DIMS = 64  # of a tensor; no array library takes more
MOST_BYTES = 1 << 48  # of a tensor: what a processor can address
MOST_FED = 1 << 27  # elements of all inputs of one run
MOST_WRITTEN = 1 << 31  # bytes of a constant that only repeats numbers, where a program needs them written out
MOST_RUNS = 1_000_000_000  # of nodes, in loops whose trips are known


def endless_loop(model: ir.Model) -> str | None:
    """What is said of loops that are known to run nodes more often than `MOST_RUNS`; None where none does."""
    for function in model.functions.values():
        if (found := _endless(function.graph)) is not None:
            return found
    return _endless(model.graph)


def _endless(graph: ir.Graph) -> str | None:
    for node in nodes.nodes_of(graph):
        if node.op_type == "Loop" and nodes.is_standard(node):
            runs = _runs(node)
            if runs > MOST_RUNS:
                return f"{nodes.describe(node)} runs its nodes {runs:,} times, more than {MOST_RUNS:,}"
    return None


def _runs(node: ir.Node) -> int:
    """How often a Loop surely runs nodes, with the loops inside of it; an iteration where its trips are not known."""
    (body,) = nodes.subgraphs(node)
    once = sum(_runs(inner) if inner.op_type == "Loop" and nodes.is_standard(inner) else 1 for inner in body)
    return max(1, _trips(node, body)) * max(1, once)


def _trips(node: ir.Node, body: ir.Graph) -> int:
    """The trips that nothing ends earlier: a constant count, a condition that is true and stays so. Else 1."""
    count = _constant(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    starts = len(node.inputs) < 2 or node.inputs[1] is None or _constant(node.inputs[1]) == 1
    return count if count is not None and starts and _goes_on(body) else 1


def _goes_on(body: ir.Graph) -> bool:
    """Whether the body's condition is the one that it was given, or true."""
    condition = body.outputs[0]
    while (producer := condition.producer()) is not None and producer.op_type == "Identity" and producer.inputs[0]:
        condition = producer.inputs[0]
    return (len(body.inputs) > 1 and condition is body.inputs[1]) or _constant(condition) == 1


def _constant(value: ir.Value) -> int | None:
    """The number that a value holds; None where it is none, or is not known."""
    producer = value.producer()
    tensor = constants.of_initializer(value) if producer is None else constants.of_constant_node(producer)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return int(tensor.numpy().reshape(-1)[0])
