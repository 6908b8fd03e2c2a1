"""Types with maps in them, which onnx_ir has no words for: kept as they are from load to save.

ONNX's classifiers give a sequence of maps from class to probability (ZipMap). Nothing here computes with one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from graphopt.errors import ModelError
from graphopt.model.nodes import graphs_of
from graphopt.model.text import shown


class MapType:
    """The type of a map, or of a sequence or optional that holds maps, as ONNX describes it."""

    def __init__(self, proto: onnx.TypeProto) -> None:
        self._bytes: bytes = proto.SerializeToString(deterministic=True)
        # What onnx_ir asks of every type: a map has no elements of one type.
        self.denotation: str | None = None
        self.dtype = ir.DataType.UNDEFINED
        self.elem_type: ir.TypeProtocol | ir.DataType = ir.DataType.UNDEFINED

    @property
    def proto(self) -> onnx.TypeProto:
        """ONNX's description."""
        proto: onnx.TypeProto = onnx.TypeProto.FromString(self._bytes)
        return proto

    def __eq__(self, value: object, /) -> bool:
        return isinstance(value, MapType) and self._bytes == value._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __str__(self) -> str:
        return _name(self.proto)

    __repr__ = __str__


def has_map(kind: onnx.TypeProto) -> bool:
    """Whether the type is a map, or one that holds maps."""
    which: str | None = kind.WhichOneof("value")
    if which == "sequence_type":
        return has_map(kind.sequence_type.elem_type)
    if which == "optional_type":
        return has_map(kind.optional_type.elem_type)
    return which == "map_type"


def type_of(kind: onnx.TypeProto) -> ir.TypeProtocol | None:
    """The type in onnx_ir's words, or as a MapType."""
    return MapType(kind) if has_map(kind) else ir.serde.deserialize_type_proto_for_type(kind)


def type_proto(kind: ir.TypeProtocol) -> onnx.TypeProto:
    """The type in ONNX's words."""
    return kind.proto if isinstance(kind, MapType) else ir.serde.serialize_type(kind)


def from_proto(proto: onnx.ModelProto, what: str) -> ir.Model:
    """The model with its types of maps; raises ModelError for an input of such a type."""
    found = {value.name: MapType(value.type) for value in _described(proto) if has_map(value.type)}
    for value in proto.graph.input:
        if value.name in found:
            raise ModelError(
                f"{what}: input '{shown(value.name)}' is a {found[value.name]}, for which there are no feeds; give the "
                "model inputs that are tensors."
            )
    if not found:
        return ir.from_proto(proto)
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    for value in _described(proto):
        if value.name in found:
            value.ClearField("type")
    model = ir.from_proto(proto)
    for graph in graphs_of(model):
        for held in _values(graph):
            if held.name in found:
                held.type = found[held.name]
    return model


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model in ONNX's words, its types of maps included."""
    with _without_maps(model) as found:
        proto = ir.to_proto(model)
    if found:
        for value in _described(proto):
            if value.name in found and value.type.WhichOneof("value") is None:
                value.type.CopyFrom(found[value.name].proto)
    return proto


@contextlib.contextmanager
def _without_maps(model: ir.Model) -> Iterator[dict[str, MapType]]:
    """The model without the types that onnx_ir cannot write; gives these by the names of their values."""
    hidden = [
        (value, value.type) for graph in graphs_of(model) for value in _values(graph) if isinstance(value.type, MapType)
    ]
    for value, _ in hidden:
        value.type = None
    try:
        yield {value.name or "": kind for value, kind in hidden}
    finally:
        for value, kind in hidden:
            value.type = kind


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.outputs
    for node in graph:
        yield from node.outputs


def _described(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """Every value that the file describes, in all graphs."""
    graphs = [proto.graph]
    while graphs:
        graph = graphs.pop()
        yield from (*graph.input, *graph.output, *graph.value_info)
        for node in graph.node:
            for attribute in node.attribute:
                graphs.extend((*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs))
    for function in proto.functions:
        yield from function.value_info


def _name(kind: onnx.TypeProto) -> str:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return f"Sequence({_name(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"Optional({_name(kind.optional_type.elem_type)})"
    if which == "map_type":
        key = ir.DataType(kind.map_type.key_type).name
        return f"Map({key}, {_name(kind.map_type.value_type)})"
    return str(ir.serde.deserialize_type_proto_for_type(kind))
