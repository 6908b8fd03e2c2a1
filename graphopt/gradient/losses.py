"""Losses: one number that says how far a model's output is from a target."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

from graphopt.errors import ModelError, OptionError
from graphopt.gradient.maker import GradientMaker
from graphopt.model import dims, nodes
from graphopt.model.known import Knowledge
from graphopt.model.operators.gradients.terms import FLOATS, NoGradient, Term

LossName = Literal["cross-entropy", "mse"]
TARGET, LOSS = "target", "loss"
CROSS_ENTROPY_SINCE = 12  # opset of SoftmaxCrossEntropyLoss


def attach_loss(
    maker: GradientMaker, loss: str, *, output: str | None, class_axis: int | None, ignore_index: int | None
) -> ir.Value:
    """The loss of a model, which gets an input `target` and an output for it where the loss is made here.

    `loss` is "cross-entropy" (targets are classes, int64, without the class axis), "mse" (targets of the output's
    dims) or the name of an output of one element. `output` is the output that a made loss reads; None: the first one
    that holds floats. A Softmax in front of it is passed over, since the loss has one of its own. Classes lie along
    `class_axis`; None: the axis of that Softmax, else 1, but the last axis of three. Targets equal to `ignore_index`
    do not count. Raises OptionError and ModelError.
    """
    read = read_by(maker.graph, maker.facts, loss, output)
    if loss not in ("cross-entropy", "mse"):
        return read
    producer = read.producer()
    if producer is None:
        raise OptionError(f"output '{read.name}' is an input; nothing between them could learn.")
    maker.serve(producer)
    for name in (TARGET, LOSS):
        if maker.has(name):
            raise ModelError(f"the model has a value named '{name}' already, which the loss would have; rename it.")
    if maker.facts.shape(read) is None and (rank := maker.facts.declared(read).shape) is not None:
        maker.declare(read, rank)  # as behind an If whose branches nothing is known of: the file tells
    try:
        made = _squared_error(maker, read) if loss == "mse" else _cross_entropy(maker, read, class_axis, ignore_index)
    except NoGradient as reason:
        raise ModelError(f"no loss can be made of output '{read.name}': {reason}.") from None
    return maker.give(made, LOSS)


def read_by(graph: ir.Graph, facts: Knowledge, loss: str, output: str | None) -> ir.Value:
    """The output that a loss reads, or is. Raises OptionError where there is none."""
    if loss not in ("cross-entropy", "mse"):
        return _named(graph, facts, loss)
    for value in graph.outputs:
        if value.name == output or (output is None and facts.dtype(value) in FLOATS):
            return value
    wanted = "that holds floats" if output is None else f"'{output}'"
    raise OptionError(f"there is no output {wanted} for a loss to read.")


def _named(graph: ir.Graph, facts: Knowledge, name: str) -> ir.Value:
    for value in graph.outputs:
        if value.name == name:
            # Behind an operator of another domain only the file tells, until its body is in its place.
            known = facts.declared(value) if facts.shape(value) is None else facts.known(value)
            if known.dtype not in FLOATS or known.shape is None or any(dim != 1 for dim in known.shape):
                raise OptionError(
                    f"output '{name}' is no float of one element, which a loss is; name one that is, or make a loss of "
                    "it with --loss cross-entropy or --loss mse."
                )
            return value
    names = ", ".join(f"'{value.name}'" for value in graph.outputs)
    raise OptionError(
        f"there is no output '{name}' for a loss; there are {names}, and the losses cross-entropy and mse."
    )


def _squared_error(maker: GradientMaker, output: ir.Value) -> ir.Value:
    value = maker.term(output)
    target = ir.Value(name=TARGET, type=ir.TensorType(value.dtype), shape=_written(value.shape))
    maker.graph.inputs.append(target)
    difference = value - maker.term(target)
    return difference.squared().mean(*range(value.rank), keep=False).value


def _cross_entropy(
    maker: GradientMaker, output: ir.Value, class_axis: int | None, ignore_index: int | None
) -> ir.Value:
    producer = output.producer()
    scores = maker.term(output)
    axis = class_axis
    if producer is not None and producer.op_type in ("Softmax", "LogSoftmax") and nodes.is_standard(producer):
        given = nodes.int_attribute(producer, "axis", -1 if maker.opset >= 13 else 1)
        if maker.opset >= 13 or given % scores.rank == scores.rank - 1:
            scores = maker.term(nodes.given_input(producer))
            axis = given if axis is None else axis
    if scores.rank < 2:
        raise OptionError(f"output '{output.name}' has rank {scores.rank}; a cross entropy needs samples and classes.")
    if axis is None:
        axis = 2 if scores.rank == 3 else 1
    if not -scores.rank <= axis < scores.rank:
        raise OptionError(f"output '{output.name}' has no axis {axis} for classes; its rank is {scores.rank}.")
    axis = scores.axis(axis)
    order = (0, axis, *(at for at in range(1, scores.rank) if at != axis))
    if axis == 0:
        raise OptionError("classes cannot lie along axis 0, along which samples lie.")
    classes_second = scores.transpose(*order)
    shape = [scores.shape[at] for at in order if at != axis]
    target = ir.Value(name=TARGET, type=ir.TensorType(ir.DataType.INT64), shape=_written(tuple(shape)))
    maker.graph.inputs.append(target)
    if maker.opset >= CROSS_ENTROPY_SINCE:
        attributes: dict[str, int | str] = {"reduction": "mean"}
        if ignore_index is not None:
            attributes["ignore_index"] = ignore_index
        return maker.op("SoftmaxCrossEntropyLoss", classes_second, maker.term(target), attributes=attributes).value
    return _in_pieces(classes_second, maker.term(target), ignore_index)


def _in_pieces(scores: Term, target: Term, ignore_index: int | None) -> ir.Value:
    """Minus the mean logarithm of the targets' shares, as operators before opset 12 say it."""
    maker, rest = scores.maker, tuple(range(2, scores.rank))
    flat = scores.transpose(0, *rest, 1).reshape(maker.ints(-1), scores.dim(1))
    logarithms = maker.op("LogSoftmax", flat, attributes={"axis": 1})
    rows = target.reshape(-1)
    kept = None
    if ignore_index is not None:
        skipped = rows.equals(ignore_index)
        rows = rows.zeros().where(skipped, rows)
        kept = maker.op("Not", skipped).cast(scores.dtype)
    choice = maker.array(np.array([0, 1]).astype(scores.dtype.numpy()), scores.dtype)
    chosen = maker.op("OneHot", rows, scores.dim(1), choice, attributes={"axis": 1})
    taken = (logarithms * chosen).sum(1, keep=False)
    if kept is None:
        return (-taken.mean(0, keep=False)).value
    return (-((taken * kept).sum(0, keep=False) / kept.sum(0, keep=False))).value


def _written(shape: dims.Dims) -> ir.Shape:
    return ir.Shape([dims.to_ir(dim) for dim in shape])
