"""Which data files the models of a folder name: such a file belongs to them, whoever wrote it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

MODEL_SUFFIX = ".onnx"
MOST_BYTES = 1 << 26  # a model of another name is looked for in files up to this size
_KEY = b"location"  # stands in the bytes of every model with external data


def named_files(path: Path) -> frozenset[str]:
    """The locations of external data in a model file, normalized; none for what is no model. Raises OSError."""
    if not path.is_file() or not _holds(path, _KEY):
        return frozenset()
    proto = _parsed(path)
    return frozenset() if proto is None else frozenset(_locations(proto))


def is_named(folder: Path, name: str) -> bool:
    """Whether a file of the folder may be a model that keeps data in the folder's file `name`. Raises OSError.

    A file that mentions both the name and a location but cannot be parsed counts as one, to be safe.
    """
    for entry in sorted(os.listdir(folder)):
        path = folder / entry
        if entry == name or not path.is_file():
            continue
        if path.suffix != MODEL_SUFFIX and path.stat().st_size > MOST_BYTES:
            continue
        if _holds(path, name.encode(errors="surrogateescape"), _KEY):
            proto = _parsed(path)
            if proto is None or name in _locations(proto):
                return True
    return False


def _holds(path: Path, *texts: bytes) -> bool:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return all(data.find(text) >= 0 for text in texts)


def _parsed(path: Path) -> onnx.ModelProto | None:
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError:
        return None
    return proto


def _locations(message: Message) -> Iterator[str]:
    """Of every tensor, in whatever part of the model it is."""
    if isinstance(message, onnx.TensorProto):
        for entry in message.external_data:
            if entry.key == "location":
                yield os.path.normpath(entry.value)
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                yield from _locations(inner)
