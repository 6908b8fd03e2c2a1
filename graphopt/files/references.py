"""Which data files the models of a folder name: such a file belongs to them, whoever wrote it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

MODEL_SUFFIX = ".onnx"
MOST_BYTES = 1 << 26  # a model of another name is looked for in files up to this size
BLOCK = 1 << 24  # bytes read at once
_KEY = b"location"  # stands in the bytes of every model with external data


def named_files(path: Path) -> frozenset[str]:
    """The locations of external data in a model file, normalized; none for what is no model. Raises OSError."""
    if not path.is_file() or not _holds(path, _KEY):
        return frozenset()
    proto = _parsed(path)
    return frozenset() if proto is None else frozenset(_locations(proto))


def is_named(folder: Path, name: str) -> bool:
    """Whether a file of the folder may be a model that keeps data in the folder's file `name`. Raises OSError.

    To be safe, a file that cannot be read counts as one, and so does one that cannot be parsed but mentions both the
    name and a location.
    """
    return any(_may_name(folder / entry, name) for entry in sorted(os.listdir(folder)) if entry != name)


def _may_name(path: Path, name: str) -> bool:
    try:
        if not path.is_file() or (path.suffix != MODEL_SUFFIX and path.stat().st_size > MOST_BYTES):
            return False
        if not _holds(path, name.encode(errors="surrogateescape"), _KEY):
            return False
        proto = _parsed(path)
    except FileNotFoundError:  # it went meanwhile
        return False
    except OSError:
        return True
    return proto is None or name in _locations(proto)


def _holds(path: Path, *texts: bytes) -> bool:
    """Whether all texts occur; read in blocks, since a file that is cut off while it is mapped ends the process."""
    missing, end = set(texts), b""
    with path.open("rb") as file:
        while missing and (block := file.read(BLOCK)):
            block = end + block
            missing = {text for text in missing if text not in block}
            end = block[-max(map(len, texts)) :]
    return not missing


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
