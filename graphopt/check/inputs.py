"""What has to be fed to run a model: names, types, dims, defaults, and the use of each input's values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.check.uses import Use, uses_of
from graphopt.model import constants, nodes

FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
)
MOST_STRINGS = 16
UNKNOWN = ("a", "b", "c", "?")  # strings that a model may not know
MOST_OVERRIDDEN = 1 << 16  # elements of a default in whose place another value is fed


@dataclass(frozen=True, slots=True)
class Input:
    """One input to feed: its name, ONNX type and dims (a string for each dynamic one)."""

    name: str
    type: onnx.TypeProto
    dims: tuple[int | str, ...] | None
    use: Use
    default: np.ndarray | None = None  # an initializer of this name, which a caller may override
    required: bool = False  # with a default: a caller must feed it, and the default is only a value that suits it
    strings: tuple[str, ...] = UNKNOWN  # that the model knows, and others

    @property
    def is_float(self) -> bool:
        """Whether its elements, or those of its sequence, are floating-point numbers."""
        tensor = tensor_type(self.type)
        return tensor is not None and tensor.elem_type in FLOATS


def inputs_of(model: ir.Model) -> tuple[Input, ...]:
    """The inputs; of those with a default the ones that are not weights.

    A dim without a name, or below zero, gets a name of its own: INPUT:AXIS.
    """
    uses = uses_of(model)
    strings = tuple(dict.fromkeys(_strings(model)))[:MOST_STRINGS]
    found = []
    for value in model.graph.inputs:
        proto = ir.to_proto(value)
        tensor = tensor_type(proto.type)
        dims: tuple[int | str, ...] | None = None
        if tensor is not None and tensor.HasField("shape"):
            dims = tuple(
                dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0
                else (dim.dim_param or f"{value.name}:{axis}")
                for axis, dim in enumerate(tensor.shape.dim)
            )  # fmt: skip
        default = None
        if value.const_value is not None:
            constant = (model.ir_version or 0) < 4 or constants.of_initializer(value) is not None
            if value.is_initializer() and (constant or value.const_value.size > MOST_OVERRIDDEN):
                continue  # before IR version 4 every initializer was listed as an input
            default = value.const_value.numpy()
            dims = tuple(default.shape)
        name = value.name or ""
        use = uses[name]
        use.constants |= uses[""].constants
        required = default is not None and not value.is_initializer()
        found.append(Input(name, proto.type, dims, use, default, required, (*strings, *UNKNOWN)))
    return tuple(found)


def tensor_type(kind: onnx.TypeProto) -> onnx.TypeProto.Tensor | None:
    """The tensor's type, also that inside of a sequence or an optional; None for a map."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return kind.tensor_type
    if which == "sequence_type":
        return tensor_type(kind.sequence_type.elem_type)
    if which == "optional_type":
        return tensor_type(kind.optional_type.elem_type)
    return None


def _strings(model: ir.Model) -> Iterator[str]:
    """The strings in the attributes of operators that look them up."""
    for graph in nodes.graphs_of(model):
        for node in graph:
            for attribute in node.attributes.values():
                if not attribute.is_ref() and attribute.type == ir.AttributeType.STRINGS:
                    yield from attribute.as_strings()
