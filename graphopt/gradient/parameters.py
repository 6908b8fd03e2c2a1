"""The parameters of a model: the weights that training changes."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.model import constants, nodes
from graphopt.model.known import Knowledge
from graphopt.model.operators.gradients.terms import FLOATS

HIDING = 1e4  # a number that is added to scores to hide them is at least so large
# Operands that no gradient trains: statistics, which follow the data, and what says how to compute.
FIXED = {
    "BatchNormalization": (3, 4),
    "MaxRoiPool": (1,),
    "NegativeLogLikelihoodLoss": (2,),  # the weights of classes
    "OneHot": (1, 2),
    "Resize": (1, 2),
    "RoiAlign": (1,),
    "SoftmaxCrossEntropyLoss": (2,),
    "Upsample": (1,),
}


def trainable(graph: ir.Graph, facts: Knowledge) -> list[ir.Value]:
    """Initializers that hold weights: floats of more than one element that nothing marks as fixed.

    Fixed are statistics of a BatchNormalization, scales of a Resize and the like, masks (they hold numbers of 10,000
    and more) and single numbers, other than the slope of a PRelu.
    """
    found = []
    for value in graph.initializers.values():
        tensor = constants.of_initializer(value)
        if tensor is None or facts.dtype(value) not in FLOATS or not value.uses():
            continue
        uses = list(value.uses())
        if any(index in FIXED.get(node.op_type, ()) and nodes.is_standard(node) for node, index in uses):
            continue
        if tensor.size == 1 and not any(node.op_type == "PRelu" for node, _ in uses):
            continue
        if tensor.size > 1 and _is_mask(tensor):
            continue
        found.append(value)
    return found


def _is_mask(tensor: ir.TensorProtocol) -> bool:
    array = tensor.numpy()
    return not bool((np.abs(array.astype(np.float32, copy=False)) < HIDING).all())


def chosen(graph: ir.Graph, facts: Knowledge, with_respect_to: str | Sequence[str]) -> list[ir.Value]:
    """The values of a choice: "trainable", or names of inputs and initializers, in which * stands for any text.

    Raises OptionError for a name that nothing has, and for values that hold no floats.
    """
    if with_respect_to == "trainable":
        return trainable(graph, facts)
    patterns = [with_respect_to] if isinstance(with_respect_to, str) else list(with_respect_to)
    there = {value.name or "": value for value in (*graph.inputs, *graph.initializers.values())}
    found: dict[str, ir.Value] = {}
    for pattern in patterns:
        if pattern == "trainable":
            found.update({value.name or "": value for value in trainable(graph, facts)})
            continue
        names = [name for name in there if fnmatchcase(name, pattern)]
        floats = [name for name in names if facts.dtype(there[name]) in FLOATS]
        if not names:
            raise OptionError(f"the model has no input and no initializer '{pattern}' to take a gradient to.")
        if not floats:
            raise OptionError(f"'{pattern}' holds no floats, so that there is no gradient to it.")
        found.update({name: there[name] for name in floats})
    return list(found.values())
