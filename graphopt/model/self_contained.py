"""Models for an engine: every external tensor is handed over as an array or written inside, none keeps a path.

A location in a model has a meaning only beside the file that the model was read from. Whatever runs or checks a model
gets it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from graphopt.model.bodies import put_bodies
from graphopt.model.collection import paused_collection
from graphopt.model.inside import bring_inside
from graphopt.model.late import order_late
from graphopt.model.nodes import is_used
from graphopt.model.save import to_proto

LOSSES = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})
STAND_IN = "weights.bin"  # the location of tensors that are handed over; ONNX Runtime asks that such a file exists


@dataclass(frozen=True, slots=True)
class SelfContained:
    """A model without paths: `proto`, and the initializers of its main graph that are given beside it, by name."""

    proto: onnx.ModelProto
    handed: Mapping[str, ir.TensorProtocol]


@paused_collection()
def self_contained(model: ir.Model, handed_from: int | None = None, *, late: bool = False) -> SelfContained:
    """The model with all data inside, or with initializers of at least `handed_from` bytes to be handed over.

    Only initializers of the main graph can be handed to an engine. Strings and types of less than a byte stay inside.
    With `late`, what follows from constants, or is made of inputs, stands right before its first reader, and losses are
    taken apart: ONNX Runtime, which has no kernels for them, would run their nodes after all others that can be run.
    The model itself is not changed.
    """
    copy = model.clone()
    if late:
        if any(map(_is_loss, copy.graph)):
            put_bodies(copy, lambda facts: filter(_is_loss, tuple(copy.graph)))
        order_late(copy.graph)
    handed: dict[str, ir.TensorProtocol] = {}
    for name, value in copy.graph.initializers.items():
        tensor = value.const_value
        if handed_from is not None and tensor is not None and tensor.nbytes >= handed_from and _fills_bytes(tensor):
            handed[name] = tensor
            value.const_value = None
    bring_inside(copy)
    for name, tensor in handed.items():
        copy.graph.initializers[name].const_value = ir.ExternalTensor(
            STAND_IN, 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
        )
    return SelfContained(to_proto(copy), handed)


def _is_loss(node: ir.Node) -> bool:
    return not node.domain and node.op_type in LOSSES and all(map(is_used, node.outputs))


def _fills_bytes(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth % 8 == 0
