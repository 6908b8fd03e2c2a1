"""Reading a model's file: large initializers become arrays of their own at once, and only the rest is parsed.

A parsed model keeps its initializers for as long as one of them lives, and gives a copy to whoever reads one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from graphopt.model.wire import BYTES, GRAPH, INITIALIZER, RAW, Field, Otherwise, as_field, between, fields

Array = npt.NDArray[Any]
LARGE = 64 << 10  # bytes of an initializer that is worth an array of its own
# The fields beside its raw data of a tensor that is taken: none of them holds or names other data.
_BESIDE = frozenset((
    onnx.TensorProto.DIMS_FIELD_NUMBER, onnx.TensorProto.DATA_TYPE_FIELD_NUMBER, onnx.TensorProto.NAME_FIELD_NUMBER,
    onnx.TensorProto.DOC_STRING_FIELD_NUMBER, onnx.TensorProto.METADATA_PROPS_FIELD_NUMBER,
    onnx.TensorProto.DATA_LOCATION_FIELD_NUMBER,
))  # fmt: skip
_TYPES = frozenset((
    ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.INT8,
    ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8, ir.DataType.UINT16,
    ir.DataType.UINT32, ir.DataType.UINT64,
))  # fmt: skip
# What a tensor has in the place of its data until it gets its array: as if a file held it.
_ELSEWHERE = onnx.TensorProto(
    data_location=onnx.TensorProto.EXTERNAL,
    external_data=[onnx.StringStringEntryProto(key="location", value="array")],
).SerializeToString()


@dataclass(frozen=True, slots=True)
class _Taken:
    """An initializer with an array of its own."""

    name: str
    field: Field  # of the graph
    raw: Field  # of the tensor
    array: Array


@dataclass(frozen=True, slots=True)
class Parsed:
    """A model, and the data of those initializers of its graph that are external in it, by name."""

    proto: onnx.ModelProto
    arrays: Mapping[str, Array]

    def give(self, model: ir.Model) -> None:
        """Put the arrays into what onnx_ir made of the model."""
        for name, array in self.arrays.items():
            value = model.graph.initializers[name]
            known = value.const_value
            assert known is not None, "it was parsed as an external one"
            value.const_value = ir.Tensor(
                array, dtype=known.dtype, shape=ir.Shape(array.shape), name=name, doc_string=known.doc_string,
                metadata_props=dict(known.metadata_props),
            )  # fmt: skip


def parsed(file: BinaryIO) -> Parsed:
    """The model in a file that can be read anywhere; raises protobuf's DecodeError."""
    try:
        graph, taken = _large(file, file.seek(0, 2))
        arrays = {one.name: one.array for one in taken}
        if len(arrays) == len(taken) > 0:  # a name that stands twice is refused, in the words for all models
            return Parsed(onnx.ModelProto.FromString(_rest(file, graph, taken)), arrays)
    except (Otherwise, DecodeError):
        pass
    return Parsed(onnx.ModelProto.FromString(between(file, 0, file.seek(0, 2))), {})


def _large(file: BinaryIO, size: int) -> tuple[Field, list[_Taken]]:
    """The field of the graph, and its initializers that get arrays."""
    graphs = [one for one in fields(file, 0, size) if one.number == GRAPH]
    if len(graphs) != 1 or graphs[0].form != BYTES:
        raise Otherwise
    graph, found = graphs[0], []
    for field in fields(file, graph.value, graph.stop):
        if field.number == INITIALIZER and field.form == BYTES and field.stop - field.value >= LARGE:
            taken = _taken(file, field)
            found += [] if taken is None else [taken]
    return graph, found


def _taken(file: BinaryIO, field: Field) -> _Taken | None:
    """An initializer with its array; None where its data are small, in another field, or do not fit its dims."""
    inside = list(fields(file, field.value, field.stop))
    raws = [one for one in inside if one.number == RAW]
    beside = [one for one in inside if one.number != RAW]
    if len(raws) != 1 or any(one.number not in _BESIDE for one in beside):
        return None
    (raw,) = raws
    header = onnx.TensorProto.FromString(b"".join(between(file, one.start, one.stop) for one in beside))
    size, name = raw.stop - raw.value, header.name
    if header.data_location != onnx.TensorProto.DEFAULT:
        return None
    if raw.form != BYTES or size < LARGE or header.data_type not in _TYPES or not isinstance(name, str) or not name:
        return None
    dtype = ir.DataType(header.data_type).numpy()
    if any(dim < 1 for dim in header.dims) or math.prod(header.dims) * dtype.itemsize != size:
        return None
    array = np.empty(tuple(header.dims), dtype.newbyteorder("<"))
    file.seek(raw.value)
    if file.readinto(array.reshape(-1).view(np.uint8).data) != size:  # type: ignore[attr-defined]
        raise Otherwise
    array.flags.writeable = False
    return _Taken(name, field, raw, array)


def _rest(file: BinaryIO, graph: Field, taken: list[_Taken]) -> bytes:
    """The file with those initializers as external ones."""
    inside, at = [], graph.value
    for one in taken:
        kept = between(file, one.field.value, one.raw.start) + between(file, one.raw.stop, one.field.stop)
        inside += [between(file, at, one.field.start), as_field(INITIALIZER, kept + _ELSEWHERE)]
        at = one.field.stop
    inside.append(between(file, at, graph.stop))
    size = file.seek(0, 2)
    return between(file, 0, graph.start) + as_field(GRAPH, b"".join(inside)) + between(file, graph.stop, size)
