"""The data file beside a model: large tensors one after the other, under a name that no file has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from graphopt.errors import SaveError
from graphopt.files.leftovers import ORPHANS, Orphan, note, orphan, sync_folder
from graphopt.files.place import Place, told
from graphopt.files.references import named_files
from graphopt.files.staging import Staging, Writer
from graphopt.model import nodes

EXTERNAL_MINIMUM = 1024  # bytes; smaller tensors stay in the .onnx file, where shape inference can read them
ALIGNMENT = 64  # bytes: where a tensor starts
PAGED, PAGE = 1 << 20, 4096  # bytes: one as large as this starts where a page does, so that runtimes can map it
CHECKSUM_DIGITS = 8  # in a name; more where such a file stands already
Outside = Mapping[ir.Value, ir.ExternalTensor]


def large_initializers(model: ir.Model) -> tuple[ir.Value, ...]:
    """What goes into the data file, in its order."""
    return tuple(
        value
        for graph in nodes.graphs_of(model)
        for value in graph.initializers.values()
        if value.const_value is not None
        and value.const_value.nbytes > EXTERNAL_MINIMUM
        and value.const_value.dtype is not ir.DataType.STRING
    )


def replaced_data(place: Place, kept: frozenset[Path]) -> tuple[Orphan, ...]:
    """The data files beside the model at `place`, but for those `kept`: of no use when that model is replaced.

    Whether another model names them is asked when they are removed. Raises OSError.
    """
    folder = place.path.parent
    names = sorted(name for name in named_files(place.path) if Path(name).name == name)
    found = (orphan(folder / name, name) for name in names if folder / name not in kept)
    return tuple(one for one in found if one is not None)


def note_orphans(stage: Staging, orphans: Sequence[Orphan]) -> None:
    """Have files removed when the save ends or has died, unless a model then names them; raises OSError."""
    os.replace(stage.write("note", note(orphans)), stage.path / ORPHANS)


def write_data(values: Sequence[ir.Value], place: Place, stage: Staging, old: Sequence[Orphan]) -> Outside:
    """Write the initializers' data beside `place`, on disk; returns the tensors that stand for them in the model.

    The file is noted as an orphan, beside the `old` ones, until a model names it. Raises SaveError.
    """
    spans = []
    with told(place.given), Writer(stage.path / "data") as file:
        for value in values:
            assert value.const_value is not None, "only initializers with data are large"
            file.write(bytes(-file.size % (PAGE if value.const_value.nbytes >= PAGED else ALIGNMENT)))
            begin = file.size
            with reading(value.const_value):
                _copy(value.const_value, _Sink(file, place))
            spans.append((value, begin, file.size - begin))
    with told(place.given):
        name = _named(file, place, stage, old)
    return {
        value: ir.ExternalTensor(
            name, begin, size, value.const_value.dtype, shape=ir.Shape(value.const_value.shape.numpy()),
            name=value.const_value.name or value.name or "", doc_string=value.const_value.doc_string,
            metadata_props=dict(value.const_value.metadata_props),
        )
        for value, begin, size in spans
        if value.const_value is not None
    }  # fmt: skip


def _named(file: Writer, place: Place, stage: Staging, old: Sequence[Orphan]) -> str:
    """Give the finished file the first name that is free: an old model may still be read by whoever has opened it."""
    folder, model = place.path.parent, place.path.name
    checksums = (file.checksum[:digits] for digits in range(CHECKSUM_DIGITS, len(file.checksum) + 1))
    for name in (f"{model}.data", *(f"{model}.{checksum}.data" for checksum in checksums)):
        if os.path.lexists(folder / name):
            continue
        new = orphan(file.path, name)
        assert new is not None, "the file was just written"
        note_orphans(stage, (new, *old))
        if _taken(file.path, folder / name):
            sync_folder(folder)
            return name
    raise SaveError(f"'{place.given}' was not written: the names for its data are taken; choose another name.")


def _taken(path: Path, target: Path) -> bool:
    """Move a file to a name that is free; False where somebody was faster."""
    try:
        os.link(path, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        os.rename(path, target)
    else:
        os.unlink(path)
    return True


class _Sink:
    """What tensors are written to. Faults of writing are told apart from those of reading."""

    def __init__(self, file: Writer, place: Place) -> None:
        self._file, self._place = file, place

    def write(self, data: bytes) -> int:
        """Append."""
        with told(self._place.given):
            return self._file.write(data)


def _copy(tensor: ir.TensorProtocol, sink: _Sink) -> None:
    if isinstance(tensor, ir.ExternalTensor):
        tensor.tofile(sink)  # in pieces
    else:
        sink.write(tensor.tobytes())


@contextlib.contextmanager
def reading(tensor: ir.TensorProtocol) -> Iterator[None]:
    """What onnx_ir and the system refuse while a tensor is read, as a SaveError."""
    try:
        yield
    except (OSError, ValueError) as error:
        where = f" from '{tensor.path}'" if isinstance(tensor, ir.ExternalTensor) else ""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SaveError(
            f"tensor '{tensor.name}' cannot be read{where}: {reason}; put a plain copy of its data beside the model, "
            "and load it again."
        ) from error
