"""Operators that the standard defines for channels first, as model-local functions for channels last.

The body of such a function turns its images to channels first, runs the operator and turns the result back. Any runtime
runs it as it stands; one with kernels for channels last recognizes the function by its domain and name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.model.known import Known
from graphopt.model.operators.table import images_of
from graphopt.passes.layout.flip import Flip, Question
from graphopt.passes.layout.permute import Perm, to_first, to_last
from graphopt.passes.layout.table import standard
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Match, Refused

DOMAIN = "graphopt.nhwc"
PREFIX = {3: "Nwc", 4: "Nhwc", 5: "Ndhwc"}


class Turner:
    """Answers for a graph that shall work on channels last, and keeps the functions that this takes."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.planned: dict[ir.OperatorIdentifier, ir.Function] = {}

    def answer(self, question: Question) -> Flip:
        """As a standard operator where that can be; else as a function, from channels first to channels last only."""
        try:
            return standard(question)
        except Refused:
            if not images_of(question.node):
                raise
        return self._turned(question)

    def _turned(self, question: Question) -> Flip:
        node = question.node
        rank = len(question.perm)
        question.require(rank in PREFIX and question.perm == to_last(rank), "it is defined for channels first")
        question.require(not nodes.has_reference_attributes(node), "an attribute is given by the function's caller")
        question.require(all(not nodes.is_used(value) for value in node.outputs[1:]), "it has several results")
        question.require(not self.editor.is_in_function(_graph(node)), "it stands in a function itself")
        question.require(question.facts.is_pure(node), "it is not a function of its operands")
        perm = question.perm
        images = [index for index in images_of(node) if nodes.input_at(node, index) is not None]
        question.require(
            all(question.rank(question.operand(index)) == rank for index in images), "its images differ in rank"
        )

        def build(match: Match, inputs: Sequence[ir.Value | None]) -> ir.Node:
            attributes = _attributes(match, node)
            function = self._function(node, question.opset, rank, images, attributes)
            present = [value for value in inputs if value is not None]
            call = match.node_of(function.name, *present, attributes=attributes, domain=DOMAIN)
            _declare(match, call.outputs[0], node.outputs[0], perm)
            return call

        return Flip(dict.fromkeys(images, perm), {0: perm}, build, turns=True)

    def _function(
        self, node: ir.Node, opset: int, rank: int, images: Sequence[int], attributes: Mapping[str, ir.Attr]
    ) -> ir.Function:
        """The function for the node: one that is there, or a new one under the first name that is free."""
        base = name = f"{PREFIX[rank]}{node.op_type}"
        number = 1
        while True:
            identifier = (DOMAIN, name, "")
            made = _make(name, node, opset, rank, images, attributes)
            there = self.editor.model.functions.get(identifier) or self.planned.get(identifier)
            if there is None:
                self.planned[identifier] = made
                return made
            if _same(there, made):
                return there
            number += 1
            name = f"{base}_{number}"

    def settle(self, made: Sequence[ir.Node]) -> None:
        """Give the model the functions that new nodes call."""
        for node in made:
            function = self.planned.get(node.op_identifier())
            if function is not None and node.op_identifier() not in self.editor.model.functions:
                self.editor.add_function(function)


def _graph(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph), "the node is in a graph"
    return node.graph


def _attributes(match: Match, node: ir.Node) -> dict[str, ir.Attr]:
    """The operator's attributes; a convolution's are all written, so that most convolutions call one function."""
    found = dict(node.attributes)
    if nodes.string_attribute(node, "auto_pad", "NOTSET") == "NOTSET":
        found.pop("auto_pad", None)
    found.pop("training_mode", None)  # the pass takes only operators that do not train
    if node.op_type != "Conv" or node.inputs[1] is None:
        return found
    shape = match.facts.static_shape(node.inputs[1])
    if shape is None:
        return found
    spatial = len(shape) - 2
    found.setdefault("dilations", ir.AttrInt64s("dilations", [1] * spatial))
    found.setdefault("group", ir.AttrInt64("group", 1))
    found.setdefault("kernel_shape", ir.AttrInt64s("kernel_shape", shape[2:]))
    found.setdefault("strides", ir.AttrInt64s("strides", [1] * spatial))
    if "auto_pad" not in found:
        found.setdefault("pads", ir.AttrInt64s("pads", [0] * (2 * spatial)))
    return found


def _declare(match: Match, value: ir.Value, original: ir.Value, perm: Perm) -> None:
    """Say what a call gives: nobody infers through a function."""
    known = match.facts.known(original)
    shape = None if known.shape is None else tuple(known.shape[axis] for axis in perm)
    match.facts.set_known(value, Known(known.type, shape, None))
    value.type = known.type
    if shape is not None:
        value.shape = ir.Shape([dims.to_ir(dim) for dim in shape])


def _make(
    name: str, node: ir.Node, opset: int, rank: int, images: Sequence[int], attributes: Mapping[str, ir.Attr]
) -> ir.Function:
    """Transpose, the operator with its caller's attributes, Transpose."""
    schema = onnx.defs.get_schema(node.op_type, opset)
    formal = {
        index: ir.Value(name=schema.inputs[index].name) for index, value in enumerate(node.inputs) if value is not None
    }
    body: list[ir.Node] = []
    operands: list[ir.Value | None] = [formal.get(index) for index in range(len(node.inputs))]
    for index in images:
        body.append(_transpose(formal[index], to_first(rank), f"{formal[index].name}_channels_first"))
        operands[index] = body[-1].outputs[0]
    given = [ir.RefAttr(key, key, attributes[key].type) for key in sorted(attributes)]
    inner = ir.Node("", node.op_type, operands, given, num_outputs=1, name=node.op_type)
    result = schema.outputs[0].name
    inner.outputs[0].name = f"{result}_channels_first"
    body += [inner, _transpose(inner.outputs[0], to_last(rank), result)]
    graph = ir.Graph(list(formal.values()), [body[-1].outputs[0]], nodes=body, opset_imports={"": opset}, name=name)
    formal_attributes = [ir.Attr(key, ir.AttributeType.UNDEFINED, None) for key in sorted(attributes)]
    return ir.Function(DOMAIN, name, graph=graph, attributes=formal_attributes)


def _transpose(value: ir.Value, perm: Perm, name: str) -> ir.Node:
    node = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", perm)], num_outputs=1, name=f"{name}_Transpose")
    node.outputs[0].name = name
    return node


def _same(one: ir.Function, other: ir.Function) -> bool:
    """Whether the functions have the same inputs, attributes and body."""
    return (
        [value.name for value in one.inputs] == [value.name for value in other.inputs]
        and sorted(one.attributes) == sorted(other.attributes)
        and one.opset_imports == other.opset_imports
        and [_described(node) for node in one] == [_described(node) for node in other]
    )


def _described(node: ir.Node) -> tuple[object, ...]:
    attributes = [(key, attribute.ref_attr_name, attribute.value) for key, attribute in sorted(node.attributes.items())]
    names = [None if value is None else value.name for value in (*node.inputs, *node.outputs)]
    return node.op_type, names, str(attributes)
