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
from graphopt.model.inside import bring_inside
from graphopt.model.tensors import tensors_of

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
    """Write the model to `path`, its large tensors to `<path>.data` when the input had external data or is too large.

    Everything is written under temporary names in the same folder and renamed at the end. Raises SaveError, leaving
    nothing behind, when `path` is the input (`source`) and `in_place` was not asked for, or when writing fails. The
    input's data files (`source_data`, and those the model still reads) are only overwritten in place.
    """
    target = Path(path)
    is_source = source is not None and target.exists() and target.resolve() == source.resolve()
    if is_source and not in_place:
        raise SaveError(f"'{target}' is the input itself; choose another output or pass --in-place.")
    if target.is_dir():
        raise SaveError(f"'{target}' is a folder; give the name of the .onnx file to write.")
    if not target.parent.exists():
        raise SaveError(f"the folder '{target.parent}' does not exist; create it first.")
    files = data_files(model) | source_data
    external = bool(files) or weight_bytes(model) > SINGLE_FILE_LIMIT
    data_name = _data_name(target, frozenset() if is_source else files) if external else None
    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        _write(model, folder / target.name, data_name)
        if data_name is None or not (folder / data_name).exists():
            os.replace(folder / target.name, target)
        else:
            _move_both(folder, target, target.parent / data_name)
    except OSError as error:
        raise SaveError(_reason(target, error)) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _move_both(folder: Path, target: Path, data: Path) -> None:
    """Move the data, then the model; where the second fails, the first is taken back."""
    earlier = folder / "earlier"
    if data.exists():
        os.replace(data, earlier)
    os.replace(folder / data.name, data)
    try:
        os.replace(folder / target.name, target)
    except OSError:
        if earlier.exists():
            os.replace(earlier, data)
        else:
            data.unlink()
        raise


def _data_name(target: Path, files: frozenset[Path]) -> str:
    """A name for the data file that is none of `files`, the data the input is read from."""
    name = f"{target.name}.data"
    number = 0
    while (target.parent / name).resolve() in files:
        number += 1
        name = f"{target.name}.{number}.data"
    return name


def _write(model: ir.Model, path: Path, data_name: str | None) -> None:
    copy = model.clone()
    if data_name is None:
        bring_inside(copy)
        path.write_bytes(to_proto(copy).SerializeToString(deterministic=True))
        return
    bring_inside(copy, EXTERNAL_MINIMUM)
    with _undescribed_initializers(copy):
        ir.save(copy, path, external_data=data_name, size_threshold_bytes=EXTERNAL_MINIMUM)


def _reason(target: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"'{target}' was not written: the disk is full; free some space or choose another folder."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"'{target}' was not written: no permission to write there; choose another folder."
    return f"'{target}' was not written: {error.strerror or error}; choose another place."
