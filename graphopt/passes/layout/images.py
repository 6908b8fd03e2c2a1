"""Which inputs and outputs are images in the layout that shall be left: the rule behind `--layout`.

An input is an image when it is a tensor of rank 3, 4 or 5 with elements of a float type, uint8 or int8, and operators
that can work in either layout (passes/layout/table.py) and Transposes lead from it to an operator that is defined for
channels first (passes/layout/channels.py), where its axes arrive so that its channels are that operator's channels. An
output is an image when it is led to from such an operator's result in the same way. Everything else keeps its layout:
token ids, matrices, masks that meet no image, inputs with a default, an input that is returned as it is, and what is
connected through a Reshape that tears the image apart.
"""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.facts import Facts
from graphopt.model.operators.table import images_of
from graphopt.model.relayout import Relayout
from graphopt.passes.layout.channels import PREFIX
from graphopt.passes.layout.flip import Flip, Question
from graphopt.passes.layout.permute import Perm, to_first, to_last
from graphopt.passes.layout.region import Form, Region, explore
from graphopt.passes.layout.table import standard
from graphopt.passes.operands import FLOATS

TYPES = FLOATS | {ir.DataType.UINT8, ir.DataType.INT8}


def images(model: ir.Model, layout: str) -> Relayout:
    """The inputs and outputs that must be permuted so that all images have the layout ("nhwc" or "nchw")."""
    facts = Facts(model)
    graph = model.graph
    inputs: dict[int, Perm] = {}
    outputs: dict[int, Perm] = {}
    for ports, found in ((graph.inputs, inputs), (graph.outputs, outputs)):
        for position, value in enumerate(ports):
            perm = _wanted(facts, value, layout)
            plain = value.is_graph_input() != value.is_graph_output() and not value.is_initializer()
            if perm is not None and plain and _leads_to_channels(facts, graph, value, perm, layout):
                found[position] = perm
    return Relayout(inputs, outputs)


def _wanted(facts: Facts, value: ir.Value, layout: str) -> Perm | None:
    """The permutation that the value would get, where it could be an image at all."""
    rank = facts.rank(value)
    if rank not in PREFIX or facts.dtype(value) not in TYPES:
        return None
    return to_last(rank) if layout == "nhwc" else to_first(rank)


def _leads_to_channels(facts: Facts, graph: ir.Graph, value: ir.Value, perm: Perm, layout: str) -> bool:
    """Whether an operator for channels first meets the value's tensor on the side that shall be left, or be reached.

    The region calls the value's own form 0. A value that such an operator reads or gives is in channels first, and its
    other form must be channels last.
    """
    region = explore(facts, graph, value, Form(perm, 0), _in_place)
    side = 0 if layout == "nhwc" else 1
    return any(_meets(region, found, form, side) for found, form in region.forms.items())


def _in_place(question: Question) -> Flip:
    """As `standard`, but a Transpose to a third layout is an end: behind it the axes mean something else."""
    question.require(question.node.op_type != "Transpose", "it is a Transpose to a third layout")
    return standard(question)


def _meets(region: Region, value: ir.Value, form: Form, side: int) -> bool:
    if form.side != side or not isinstance(form.label, tuple) or len(form.label) not in PREFIX:
        return False
    if form.label != to_last(len(form.label)):
        return False
    producer = value.producer()
    if producer is not None and images_of(producer):
        return value is producer.outputs[0]
    return any(index in images_of(node) for node, index in value.uses())
