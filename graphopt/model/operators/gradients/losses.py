"""Gradients of losses over classes."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import Term


def negative_log_likelihood(back: Backward) -> Gradients:
    """NegativeLogLikelihoodLoss: minus the weight of each target at its class."""
    back.only(0)
    return (_at_targets(back, back.x()),)


def softmax_cross_entropy(back: Backward) -> Gradients:
    """SoftmaxCrossEntropyLoss: that of the log likelihood through LogSoftmax, whose result the operator has."""
    back.only(0)
    logarithms = back.y(1)
    found: Term | None = None
    if back.incoming[0] is not None:
        found = _at_targets(back, back.x())
    further = back.incoming[1] if len(back.incoming) > 1 else None
    if further is not None:
        found = further if found is None else found + further
    assert found is not None, "a gradient reaches the node"
    return (found - logarithms.apply("Exp") * found.sum(1),)


def _at_targets(back: Backward, scores: Term) -> Term:
    """The gradient to the logarithms [N, C, ...]: minus each target's weight, by all weights for a mean."""
    targets, dy, maker = back.x(1), back.dy, back.maker
    given, ignored = back.optional(2), "ignore_index" in back.node.attributes
    reduction = back.text("reduction", "mean")
    weight: Term | None = None
    if ignored:
        skipped = targets.equals(back.integer("ignore_index", -1))
        targets = targets.zeros().where(skipped, targets)
    if given is not None:
        weight = maker.op("Gather", given, targets)
    if ignored:
        kept = scores.number(1.0) if weight is None else weight
        weight = scores.number(0.0).where(skipped, kept)
    rows = targets.unsqueeze(1).cast(ir.DataType.INT64)  # [N, 1, ...]
    if reduction == "none":
        share = -dy if weight is None else -(dy * weight)
    elif reduction == "sum":
        share = (-dy if weight is None else -(dy * weight)).expand_to(targets.dims())
    elif weight is None:
        count = targets.count(*range(targets.rank))
        share = (-dy / (count.cast(dy.dtype) if isinstance(count, Term) else count)).expand_to(targets.dims())
    else:
        share = -(dy * weight / weight.sum(*range(weight.rank), keep=False))
    return maker.op("ScatterElements", scores.zeros(), rows, share.unsqueeze(1), attributes={"axis": 1})
