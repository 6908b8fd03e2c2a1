"""Values too large to be computed only to see them: what a model makes out of little, or out of nothing.

A damaged number in a Resize or an Expand asks for more memory than any machine has. No network makes a value hundreds
of times as large as all that it is given, so what is given is the measure, and large models have room. Models whose
weights were taken out make them of one number with ConstantOfShape; these count as what they stand for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.tensors import tensors_of

ALWAYS = 1 << 25  # elements of a value that any model may compute
STAND_IN = 1 << 27  # elements of a ConstantOfShape that may stand for a weight
GROWN = 256  # times the elements of all inputs and weights together, which a value may have


def oversized(model: ir.Model, facts: Facts | None = None) -> str | None:
    """What is said of a value that is too large to be computed; None where there is none.

    Dims that are not known before a run count as 1. `facts` are those of `model`; without them a copy's are made.
    """
    if facts is None:
        model = model.clone()
        facts = Facts(model)
    given = sum(tensor.size for tensor in tensors_of(model))
    given += sum(_elements(facts, value) for value in model.graph.inputs if not value.is_initializer())
    sizes = [(node, _elements(facts, value)) for graph in nodes.graphs_of(model) for node, value in _results(graph)]
    made = (size for node, size in sizes if node.op_type == "ConstantOfShape" and size <= STAND_IN)
    most = max(ALWAYS, GROWN * given, *made)
    for node, elements in sizes:
        if elements > most:
            return (
                f"{nodes.describe(node)} gives {elements:,} elements, and {most:,} are the most that is computed "
                f"out of {given:,} elements of inputs and weights"
            )
    return None


def _results(graph: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Value]]:
    return ((node, value) for node in graph for value in node.outputs)


def _elements(facts: Facts, value: ir.Value) -> int:
    return math.prod(size for size in facts.shape(value) or () if isinstance(size, int))
