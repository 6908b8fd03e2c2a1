"""A model with gradients: functions inlined, bodies in place of operators without a rule, reverse mode, outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from graphopt.errors import OptionError
from graphopt.gradient.losses import attach_loss, read_by
from graphopt.gradient.maker import PREFIX, GradientMaker
from graphopt.gradient.parameters import chosen
from graphopt.gradient.reverse import active_nodes, gradients, has_rule
from graphopt.model import nodes
from graphopt.model.bodies import put_bodies
from graphopt.model.content import INTEGER_TYPES
from graphopt.model.evaluate import evaluate
from graphopt.model.facts import Facts
from graphopt.model.known import SMALL, Knowledge

LEAST_OPSET = 9  # Where


@dataclass(frozen=True, slots=True)
class LossRequest:
    """The number whose gradients are asked for; `attach_loss` says what each field means."""

    loss: str
    output: str | None = None
    class_axis: int | None = None
    ignore_index: int | None = None


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A model with the gradients of its loss."""

    maker: GradientMaker
    loss: ir.Value
    gradients: Mapping[ir.Value, ir.Value]  # by the value that they are taken to


def differentiate(
    model: ir.Model,
    request: LossRequest,
    with_respect_to: str | Sequence[str],
    prepare: Callable[[GradientMaker], None] | None = None,
) -> Differentiated:
    """Put the loss and its gradients behind a model's nodes, in place; `prepare` changes the model first.

    Raises OptionError for names that nothing has and for values that the loss does not depend on, and ModelError for an
    operator without a rule.
    """
    opset = model.graph.opset_imports.get("", 1)
    if opset < LEAST_OPSET:
        raise OptionError(
            f"gradients need opset {LEAST_OPSET} or newer, and the model has {opset}; lift it with 'graphopt optimize "
            "--opset 13'."
        )
    if model.functions:
        InlinePass()(model)
    _fold_sizes(model)
    put_bodies(model, lambda facts: _lacking(model, facts, request, with_respect_to))
    maker = GradientMaker(model)
    wanted = chosen(model.graph, maker.facts, with_respect_to)  # before the loss brings constants of its own
    if prepare is not None:
        prepare(maker)
    loss = attach_loss(
        maker, request.loss, output=request.output, class_axis=request.class_axis, ignore_index=request.ignore_index
    )
    found = gradients(maker, loss, wanted)
    apart = [f"'{value.name}'" for value in wanted if value not in found]
    if apart and with_respect_to != "trainable":
        raise OptionError(f"the loss does not depend on {', '.join(apart)}, or is flat in it.")
    if not found:
        raise OptionError("the model has no weights that the loss depends on; name values with --with-respect-to.")
    return Differentiated(maker, loss, found)


def _fold_sizes(model: ir.Model) -> None:
    """Compute small integers that only constants decide: pads and dims, which rules have to know. Weights stay."""
    facts = Facts(model)
    for node in list(model.graph):
        kept = nodes.has_subgraphs(node) or len(node.outputs) != 1 or node.outputs[0].is_graph_output()
        if kept or node.op_type == "Constant" or not facts.is_pure(node) or not nodes.is_standard(node):
            continue
        output = node.outputs[0]
        kind, given = facts.dtype(output), [value for value in node.inputs if value is not None]
        if kind not in INTEGER_TYPES or not given or not all(map(facts.is_constant, given)):
            continue
        arrays = [None if value is None else facts.array(value) for value in node.inputs]
        results = evaluate(node, arrays, facts.opset(node))
        if results is None or results[0].size > SMALL:
            continue
        name = output.name or ""
        tensor = ir.Tensor(results[0], name=name)
        made = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        output.replace_all_uses_with(made)
        model.graph.remove(node)
        output.name = None
        model.graph.register_initializer(made)


def _lacking(
    model: ir.Model, facts: Knowledge, request: LossRequest, with_respect_to: str | Sequence[str]
) -> list[ir.Node]:
    """The nodes between parameters and loss that have no rule, and those in graphs that such nodes hold."""
    end = read_by(model.graph, facts, request.loss, request.output)
    wanted = chosen(model.graph, facts, with_respect_to)
    active = active_nodes(model.graph, facts, wanted, [end])
    inside = [inner for node in active for graph in nodes.subgraphs(node) for inner in nodes.nodes_of(graph)]
    return [node for node in (*active, *inside) if not has_rule(node)]


def add_outputs(done: Differentiated) -> dict[str, str]:
    """Give the model an output for each gradient; returns their names by those of the values they are taken to."""
    maker, names = done.maker, {}
    for value, gradient in done.gradients.items():
        names[value.name or ""] = maker.give(gradient, f"{PREFIX}/{value.name}").name or ""
    return names
