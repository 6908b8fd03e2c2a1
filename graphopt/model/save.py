"""Saving: a model in one move, at any moment the old one or the new one with the data that belong to it.

Data go into a file with a name that no file has, and are on disk before the model that names them takes its place by
one rename. Then the data that only the replaced model named are removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from graphopt.errors import SaveError
from graphopt.files.place import find_place, replaced_mode, told
from graphopt.files.single import publish, write_through
from graphopt.files.staging import staging
from graphopt.model import maps, nodes
from graphopt.model.data_file import (
    Outside,
    large_initializers,
    note_orphans,
    reading,
    replaced_data,
    write_data,
)
from graphopt.model.tensors import tensors_of, with_external_replaced
from graphopt.model.writing import Piece, pieces_of

# A protobuf message cannot pass 2 GB; data above this goes into a file of its own even when the input was one file.
SINGLE_FILE_LIMIT = 1_900_000_000  # bytes


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a ModelProto; initializers are not described a second time in value_info."""
    with _undescribed_initializers(model):
        return maps.to_proto(model)


@contextlib.contextmanager
def _undescribed_initializers(model: ir.Model) -> Iterator[None]:
    """An initializer carries its own type and dims; onnx_ir would write them again, about 40 bytes for each."""
    hidden = []
    for graph in nodes.graphs_of(model):
        for value in graph.initializers.values():
            if not value.is_graph_input() and not value.is_graph_output():
                hidden.append((value, value.type, value.shape))
                value.type, value.shape = None, None
    try:
        yield
    finally:
        for value, kind, shape in hidden:
            value.type, value.shape = kind, shape


def weight_bytes(model: ir.Model) -> int:
    """The bytes of all initializers."""
    return sum(
        value.const_value.nbytes
        for graph in nodes.graphs_of(model)
        for value in graph.initializers.values()
        if value.const_value is not None
    )


def data_files(model: ir.Model) -> frozenset[Path]:
    """The data files that the model's external tensors are read from, those of attributes included."""
    return frozenset(Path(t.path).resolve() for t in tensors_of(model) if isinstance(t, ir.ExternalTensor))


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    source: Path | None = None,
    source_data: frozenset[Path] = frozenset(),
    in_place: bool = False,
) -> None:
    """Write the model to `path`, large tensors into a file beside it when the input had external data or is too large.

    The data file is `<path>.data`, or `<path>.<checksum>.data` where that name is taken. A data file of the model that
    is replaced is removed, unless it is the input's (`source_data`, and what the model still reads) or another model in
    the folder names it.

    Raises SaveError, leaving everything as it was, when `path` is the input (`source`) and `in_place` was not asked
    for, when it holds the input's data, and when reading or writing fails.
    """
    place = find_place(path)
    is_source = source is not None and place.path.exists() and source.exists() and place.path.samefile(source)
    if is_source and not in_place:
        raise SaveError(f"'{place.given}' is the input itself; choose another output or pass in_place=True.")
    files = data_files(model) | source_data
    if place.path in files:
        raise SaveError(f"'{place.given}' holds data of the input; choose another output.")
    large = large_initializers(model) if files or weight_bytes(model) > SINGLE_FILE_LIMIT else ()
    if large and place.stream:
        raise SaveError(f"'{place.given}' is no file, and this model needs a data file beside it; choose a file.")
    if large and place.path.parent != Path(os.path.realpath(place.given.parent)):
        raise SaveError(
            f"'{place.given}' is a link into another folder, and a data file would be found by one of the two names "
            f"only; write to '{place.path}'."
        )
    if place.stream:
        write_through(place, _pieces(model, {}))
        return
    with contextlib.ExitStack() as stack:
        with told(place.given):
            old = replaced_data(place, frozenset() if is_source else files)
            stage = stack.enter_context(staging(place.path.parent))
            if old and not large:
                note_orphans(stage, old)
        outside = write_data(large, place, stage, old) if large else {}
        content = _pieces(model, outside)
        with told(place.given):
            draft = stage.write_pieces("model", content, replaced_mode(place.path))
        publish(draft, place)


def _pieces(model: ir.Model, outside: Outside) -> list[Piece]:
    """The .onnx file. Tensors that are not `outside` move into it, wherever they lie; raises SaveError."""
    with _self_contained(model, outside):
        return pieces_of(model, to_proto)


@contextlib.contextmanager
def _self_contained(model: ir.Model, outside: Outside) -> Iterator[None]:
    """Initializers and attributes without references to the input's data files."""
    values: list[tuple[ir.Value, ir.TensorProtocol]] = []
    attributes: list[tuple[ir.Node, ir.Attr]] = []
    try:
        for graph in nodes.graphs_of(model):
            for value in graph.initializers.values():
                tensor = value.const_value
                kept: ir.TensorProtocol | None = outside.get(value)
                if kept is None and isinstance(tensor, ir.ExternalTensor):
                    kept = _inside(tensor)
                if tensor is not None and kept is not None:
                    values.append((value, tensor))
                    value.const_value = kept
            for node in graph:
                for attribute in list(node.attributes.values()):
                    moved = with_external_replaced(attribute, _inside)
                    if moved is not attribute:
                        attributes.append((node, attribute))
                        node.attributes[attribute.name] = moved
        yield
    finally:
        for value, tensor in values:
            value.const_value = tensor
        for node, attribute in attributes:
            node.attributes[attribute.name] = attribute


def _inside(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """A tensor that is written into the .onnx file."""
    with reading(tensor):
        return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
