"""Saving: a finished model in one move, with its external data beside it, or nothing at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from graphopt.errors import SaveError
from graphopt.model import nodes

# A protobuf message cannot pass 2 GB; data above this goes into a file of its own even when the input was one file.
SINGLE_FILE_LIMIT = 1_900_000_000  # bytes
EXTERNAL_MINIMUM = 1024  # bytes; smaller tensors stay in the .onnx file, where shape inference can read them


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a ModelProto; initializers are not described a second time in value_info."""
    with _undescribed_initializers(model):
        return ir.to_proto(model)


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


def source_files(model: ir.Model) -> set[Path]:
    """The data files that the model's external tensors are read from."""
    return {
        Path(value.const_value.path).resolve()
        for graph in nodes.graphs_of(model)
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    }


def save(model: ir.Model, path: str | os.PathLike[str], *, source: Path | None = None, in_place: bool = False) -> None:
    """Write the model to `path`, its large tensors to `<path>.data` when the input had external data or is too large.

    Everything is written under temporary names in the same folder and renamed at the end. Raises SaveError, leaving
    nothing behind, when `path` is the input (`source`) and `in_place` was not asked for, or when writing fails.
    """
    target = Path(path)
    if source is not None and not in_place and target.exists() and target.resolve() == source.resolve():
        raise SaveError(f"'{target}' is the input itself; choose another output or pass --in-place.")
    if target.is_dir():
        raise SaveError(f"'{target}' is a folder; give the name of the .onnx file to write.")
    if not target.parent.exists():
        raise SaveError(f"the folder '{target.parent}' does not exist; create it first.")
    files = source_files(model)
    external = bool(files) or weight_bytes(model) > SINGLE_FILE_LIMIT
    data_name = _data_name(target, files, in_place) if external else None
    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        _write(model, folder / target.name, data_name)
        if data_name is not None and (folder / data_name).exists():
            os.replace(folder / data_name, target.parent / data_name)
        os.replace(folder / target.name, target)
    except OSError as error:
        raise SaveError(_reason(target, error)) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _data_name(target: Path, files: set[Path], in_place: bool) -> str:
    """A name for the data file that does not overwrite data the input is read from."""
    name = f"{target.name}.data"
    number = 0
    while not in_place and (target.parent / name).resolve() in files:
        number += 1
        name = f"{target.name}.{number}.data"
    return name


def _write(model: ir.Model, path: Path, data_name: str | None) -> None:
    if data_name is None:
        path.write_bytes(to_proto(model).SerializeToString(deterministic=True))
        return
    with _undescribed_initializers(model):
        ir.save(model, path, external_data=data_name, size_threshold_bytes=EXTERNAL_MINIMUM)


def _reason(target: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"'{target}' was not written: the disk is full; free some space or choose another folder."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"'{target}' was not written: no permission to write there; choose another folder."
    return f"'{target}' was not written: {error.strerror or error}; choose another place."
