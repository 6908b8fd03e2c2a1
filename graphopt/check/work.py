"""An estimate of what one run of a model takes, so that feeds are many where runs are cheap, and the same everywhere.

The unit is about one floating-point operation: a byte moved counts as one, the start of a node as many.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.costs import Sizes, cost_of
from graphopt.model.facts import Facts

NODE = 300_000  # what an engine spends around one node
UNNAMED = 16  # elements along a dim that only a run can tell, or that has no name


def work_of_run(model: ir.Model, facts: Facts, sizes: Mapping[str, int]) -> int:
    """The work of a run with these sizes; the graphs inside of nodes are counted once."""
    numbers = Sizes(facts, sizes, default=UNNAMED)
    total = 0
    for graph in nodes.graphs_of(model):
        for node in graph:
            cost = cost_of(node, numbers)
            total += NODE + (0 if cost is None else cost.flops + cost.bytes)
    return total
