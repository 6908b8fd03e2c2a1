"""A model as the bytes of its file, in pieces: large initializers are not copied on the way.

Protobuf would hold each of them once, and the whole message once more. The pieces together are what it would write.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.model.wire import GRAPH, INITIALIZER, RAW, Field, between, fields, head

LARGE = 64 << 10  # bytes of a tensor that is a piece of its own
Piece = bytes | memoryview


class _Without(ir.Tensor[Any]):
    """A tensor that is written without its elements."""

    def tobytes(self) -> bytes:
        """None of them."""
        return b""


def pieces_of(model: ir.Model, to_proto: Callable[[ir.Model], onnx.ModelProto]) -> list[Piece]:
    """The bytes of a model that `to_proto` serializes, one piece after the other."""
    large = {
        value.name: value.const_value for value in model.graph.initializers.values()
        if type(value.const_value) is ir.Tensor and value.name and _is_piece(value.const_value)
    }  # fmt: skip
    with _emptied(model, large):
        light: bytes = to_proto(model).SerializeToString(deterministic=True)
    if not large:
        return [light]
    file = BytesIO(light)
    (graph,) = (one for one in fields(file, 0, len(light)) if one.number == GRAPH)
    inside: list[Piece] = []
    for field in fields(file, graph.value, graph.stop):
        inside += _initializer(file, field, large) if field.number == INITIALIZER else [_whole(file, field)]
    size = sum(map(len, inside))
    return [light[: graph.start], head(GRAPH, size), *inside, light[graph.stop :]]


def _is_piece(tensor: ir.TensorProtocol) -> bool:
    return tensor.nbytes >= LARGE and tensor.dtype.bitwidth % 8 == 0 and sys.byteorder == "little"


@contextlib.contextmanager
def _emptied(model: ir.Model, large: dict[str, ir.Tensor[Any]]) -> Iterator[None]:
    """With these initializers written without their elements."""
    values = model.graph.initializers
    try:
        for name, tensor in large.items():
            values[name].const_value = _Without(
                tensor.numpy(), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name,
                doc_string=tensor.doc_string, metadata_props=dict(tensor.metadata_props),
            )  # fmt: skip
        yield
    finally:
        for name, tensor in large.items():
            values[name].const_value = tensor


def _initializer(file: BytesIO, field: Field, large: dict[str, ir.Tensor[Any]]) -> list[Piece]:
    """An initializer, with its elements where it has them as a piece."""
    name = onnx.TensorProto.FromString(between(file, field.value, field.stop)).name
    tensor = large.get(name)
    if tensor is None:
        return [_whole(file, field)]
    raw = next(one for one in fields(file, field.value, field.stop) if one.number == RAW)
    data = np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data
    before = between(file, field.value, raw.start) + head(RAW, data.nbytes)
    after = between(file, raw.stop, field.stop)
    return [head(INITIALIZER, len(before) + data.nbytes + len(after)) + before, data, after]


def _whole(file: BytesIO, field: Field) -> bytes:
    return between(file, field.start, field.stop)
