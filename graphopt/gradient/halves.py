"""A training step in two halves, between which gradients of several parts of a batch are averaged.

batch, w      -->  loss, gradient, running statistics        of each part of the batch
gradient, w   -->  w_new, state_new                          once, by the mean
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from graphopt.errors import ModelError
from graphopt.gradient.step import METADATA, Step
from graphopt.model import nodes


@dataclass(frozen=True, slots=True)
class Halves:
    """Both halves; each takes of the step's inputs those that it reads."""

    gradients: ir.Model
    update: ir.Model
    means: tuple[str, ...]  # outputs of `gradients` that are means over what the loss counts: the loss and gradients
    statistics: tuple[str, ...]  # outputs of `gradients` too, as the step has them


def halves_of(model: ir.Model, step: Step) -> Halves:
    """The halves of a step, cut at its gradients.

    Raises ModelError for a step that does not say where they are, or that passes some of them by.
    """
    batch = _of_batch(model, step)
    known = _values(model.graph)
    if not step.gradients or any(name not in known for name in step.gradients):
        raise ModelError(
            "the step's gradients are not found in it, so that it cannot be run in parts; take it as graphopt "
            "train-step writes it."
        )
    parameters = [one for one in step.carried if one.kind == "parameter"]
    likes = {  # the inner values to cut at; a gradient that no batch decides is computed with the update
        name: known[one.input]
        for name, one in zip(step.gradients, parameters, strict=True)
        if known[name] in batch and known[name].producer() is not None
    }
    statistics = tuple(one.output for one in step.carried if one.kind == "statistic")
    changed = [one.output for one in step.carried if one.kind != "statistic"]
    first = _with_outputs(model, step, [step.loss, *likes, *statistics], likes)
    second = _with_gradients_given(model, likes)
    second = _with_outputs(second, step, changed, {})
    given = {value.name for value in model.graph.inputs if value in batch}
    passed_by = sorted(value.name or "" for value in second.graph.inputs if value.name in given)
    if passed_by:
        raise ModelError(
            f"the step changes weights by its input '{passed_by[0]}' beside gradients, so that it cannot be run in "
            "parts."
        )
    return Halves(first, second, (step.loss, *likes), statistics)


def _of_batch(model: ir.Model, step: Step) -> set[ir.Value]:
    """What a batch decides: its inputs and the seed, and all that is computed of them."""
    same = {step.learning_rate, *(one.input for one in step.carried)}
    found = {value for value in model.graph.inputs if value.name not in same}
    for node in model.graph:
        if any(value in found for value in (*node.inputs, *nodes.implicit_inputs(node)) if value is not None):
            found.update(node.outputs)
    return found


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    """The values of the main graph by name."""
    values = [*graph.inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs)]
    return {value.name: value for value in values if value.name}


def _with_outputs(model: ir.Model, step: Step, names: list[str], likes: dict[str, ir.Value]) -> ir.Model:
    """The part of a step that computes some of its values; `likes` have the types and dims of inner ones."""
    half = model.clone()
    graph, known = half.graph, _values(half.graph)
    graph.outputs.clear()
    for name in names:
        value = known[name]
        if name in likes:
            value.type, value.shape = likes[name].type, likes[name].shape
        graph.outputs.append(value)
    nodes.remove_unused(graph)
    for value in list(graph.inputs):
        if not nodes.is_used(value):
            graph.inputs.remove(value)
            graph.initializers.pop(value.name or "", None)
    left = {value.name for value in graph.inputs}
    carried = tuple(one for one in step.carried if one.input in left)
    half.metadata_props[METADATA] = replace(step, carried=carried).to_metadata()
    return half


def _with_gradients_given(model: ir.Model, likes: dict[str, ir.Value]) -> ir.Model:
    """The step with inputs in the place of its gradients."""
    half = model.clone()
    known = _values(half.graph)
    for name, like in likes.items():
        old = known[name]
        new = ir.Value(name=name, type=like.type, shape=like.shape)
        old.replace_all_uses_with(new)
        old.name = f"{name}/computed"
        half.graph.inputs.append(new)
    return half
