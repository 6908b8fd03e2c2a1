"""Which values kernels compute in whole vectors of channels: images, but not heads that channels are reshaped to."""

from __future__ import annotations

from collections.abc import Container, Sequence

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.operators.table import operator_of


def in_channels(facts: Facts, members: Sequence[ir.Node], among: Container[ir.Value]) -> set[ir.Value]:
    """Of values `among` which nodes read and make those of images, and what is made of these under the same dims."""
    near = {
        node: [one for one in (*node.inputs, *node.outputs) if one is not None and one in among] for node in members
    }
    found = {one for values in near.values() for one in values if any(map(_has_images, _around(one)))}
    joined = [values for node, values in near.items() if not _reshapes(facts, node)]
    while more := {one for values in joined if not found.isdisjoint(values) for one in values} - found:
        found |= more
    return found


def _around(value: ir.Value) -> tuple[ir.Node | None, ...]:
    return value.producer(), *value.consumers()


def _has_images(node: ir.Node | None) -> bool:
    operator = None if node is None else operator_of(node)
    return operator is not None and bool(operator.images)


def _reshapes(facts: Facts, node: ir.Node) -> bool:
    """Whether the result has the same elements under other dims.

    A Transpose does not count: rows that it puts where channels were go in as many as before. ConvNeXt's tiles of other
    heights took 1 % longer.
    """
    operator, source = operator_of(node), nodes.input_at(node, 0)
    if operator is None or source is None:
        return True
    return operator.storage == "same" and facts.static_shape(source) != facts.static_shape(node.outputs[0])
