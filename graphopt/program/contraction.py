"""Einsum of several operands as one pair after the other, in the order in which the least is computed.

    "ij,jk,kl->il"    Einsum("kl,jk->lj"), Einsum("ij,lj->il")

Pairs are products of matrices where they sum what both have (`regions/einsum.py`); all operands at once would be a loop
over all labels. The order is that of NumPy's `einsum_path`, greedily.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.model.equation import labels_of
from graphopt.model.facts import Facts
from graphopt.model.nodes import graphs_of, string_attribute

UNKNOWN = 64  # what a dim is taken for of which no size is known


def of_several(model: ir.Model) -> list[ir.Node]:
    """Einsums of more than two operands, whose equations have letters alone."""
    return [
        node
        for graph in graphs_of(model)
        for node in graph
        if node.op_type == "Einsum" and not node.domain and len(node.inputs) > 2 and None not in node.inputs
        and "." not in string_attribute(node, "equation", ".")
    ]  # fmt: skip


def put_pairs(model: ir.Model) -> None:
    """Put pairs in the places of such nodes; the last one is the node itself."""
    facts = Facts(model)
    for node in of_several(model):
        operands = [value for value in node.inputs if value is not None]
        shapes = [facts.shape(value) for value in operands]
        ranks = [
            len(text) for text in string_attribute(node, "equation", "").replace(" ", "").split("->")[0].split(",")
        ]
        terms, result = labels_of(string_attribute(node, "equation", ""), ranks)
        _take_apart(node, operands, terms, result, [_sizes(*one) for one in zip(shapes, ranks, strict=True)])


def _sizes(shape: tuple[object, ...] | None, rank: int) -> tuple[int, ...]:
    return tuple(one if isinstance(one, int) else UNKNOWN for one in shape or (UNKNOWN,) * rank)


def _take_apart(
    node: ir.Node, operands: list[ir.Value], terms: list[list[str]], result: list[str], sizes: list[tuple[int, ...]]
) -> None:
    assert node.graph is not None, "it is one of a graph's nodes"
    equation = f"{','.join(map(''.join, terms))}->{''.join(result)}"
    path, _ = np.einsum_path(equation, *(np.broadcast_to(np.float32(0), one) for one in sizes), optimize="greedy")
    there = list(zip(operands, terms, strict=True))
    for step in path[1:]:
        taken = [there.pop(at) for at in sorted(step, reverse=True)]
        value, term = taken.pop()
        while taken:
            other, labels = taken.pop()
            rest = {label for _, one in (*taken, *there) for label in one} | set(result)
            is_last = not taken and not there
            made = result if is_last else [one for one in dict.fromkeys((*term, *labels)) if one in rest]
            attribute = ir.AttrString("equation", f"{''.join(term)},{''.join(labels)}->{''.join(made)}")
            if is_last:
                node.resize_inputs(2)
                for at, one in enumerate((value, other)):
                    node.replace_input_with(at, one)
                node.attributes["equation"] = attribute
                return
            pair = ir.Node("", "Einsum", [value, other], [attribute], num_outputs=1)
            pair.outputs[0].name = f"{node.outputs[0].name}:{''.join(made)}_{len(there)}_{len(taken)}"
            pair.name = pair.outputs[0].name
            node.graph.insert_before(node, pair)
            value, term = pair.outputs[0], made
        there.append((value, term))
