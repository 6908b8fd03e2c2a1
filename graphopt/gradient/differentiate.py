"""A model with gradients: functions inlined, bodies in place of operators without a rule, reverse mode, outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.gradient.decided import settle
from graphopt.gradient.losses import attach_loss, read_by
from graphopt.gradient.maker import PREFIX, GradientMaker
from graphopt.gradient.parameters import chosen, trainable
from graphopt.gradient.reverse import active_nodes, gradients, has_rule
from graphopt.model import nodes
from graphopt.model.bodies import put_bodies
from graphopt.model.facts import Facts
from graphopt.model.functions import inline
from graphopt.model.known import Knowledge
from graphopt.passes.cleanup import lift_constants
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor

LEAST_OPSET = 9  # Where
LIFTING = (Pass("lift-constants", 0, run=lift_constants),)


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
        inline(model)
    if not trainable(model.graph, Facts(model)):  # exporters such as Paddle's write weights as Constant nodes
        run_passes(Editor(model), LIFTING)
    settle(model, lambda facts: chosen(model.graph, facts, with_respect_to))
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
        branches = next((node for node in model.graph if node.op_type == "If" and nodes.is_standard(node)), None)
        way = "name values with --with-respect-to" if branches is None else (
            f"weights in the branches of {nodes.describe(branches)} do not train: where an input decides, fix it with "
            "'graphopt optimize --value' first"
        )  # fmt: skip
        raise OptionError(f"the model has no weights that the loss depends on; {way}.")
    return Differentiated(maker, loss, found)


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
