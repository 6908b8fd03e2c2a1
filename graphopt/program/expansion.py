"""Operators without kernels of their own, as the operators that ONNX defines them by.

    SwiGLU(x)  -->  Split, Sigmoid, Mul, Mul

What has a template, a formula or a definition as loops stays: its kernel is faster than those of a body. A body may
hold operators that have bodies themselves. Einsums of several operands are pairs of them (`contraction.py`).
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.bodies import put_bodies
from graphopt.program.contraction import of_several, put_pairs
from graphopt.program.regions.lower import has_lowering


def expanded(model: ir.Model) -> ir.Model:
    """A model in which bodies stand in the place of such nodes; the same one where there are none."""
    if not _wanting(model) and not of_several(model):
        return model
    work = model.clone()
    put_pairs(work)
    put_bodies(work, lambda facts: _wanting(work))
    return work


def _wanting(model: ir.Model) -> list[ir.Node]:
    """Nodes that no kernel computes."""
    calls = model.functions
    graphs = list(nodes.graphs_of(model))
    every = (node for graph in graphs for node in graph)
    return [one for one in every if one.op_identifier() not in calls and not nodes.has_subgraphs(one)
            and one.op_type != "Constant" and not has_lowering(one)]  # fmt: skip
