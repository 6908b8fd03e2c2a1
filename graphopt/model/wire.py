"""Protobuf's fields as bytes: where they are, and how one is written.

The encoding is that of https://protobuf.dev/programming-guides/encoding. Large tensors are read and written past
protobuf, which would copy them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import onnx

_MOST_VARINT = 10  # bytes of a number
_VARINT, _EIGHT_BYTES, BYTES, _FOUR_BYTES = 0, 1, 2, 5  # forms of fields
GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
RAW = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


class Otherwise(Exception):
    """The bytes are written in a way that is left to protobuf, or damaged, which protobuf will say."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message."""

    number: int
    form: int
    start: int  # bytes of the file before it, ...
    value: int  # ... before its content, ...
    stop: int  # ... and before the next field


def fields(file: BinaryIO, start: int, stop: int) -> Iterator[Field]:
    """The fields of a message between two places of the file."""
    at = start
    while at < stop:
        file.seek(at)
        head = file.read(min(2 * _MOST_VARINT, stop - at))
        tag, used = _varint(head, 0)
        number, form = tag >> 3, tag & 7
        if form == BYTES:
            length, used = _varint(head, used)
        elif form == _VARINT:
            length = _varint(head, used)[1] - used
        elif form in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if form == _EIGHT_BYTES else 4
        else:
            raise Otherwise
        field = Field(number, form, at, at + used, at + used + length)
        if field.stop > stop:
            raise Otherwise
        yield field
        at = field.stop


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and the place behind it."""
    number = 0
    for place, byte in enumerate(data[at : at + _MOST_VARINT]):
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise Otherwise


def as_field(number: int, content: bytes) -> bytes:
    """A message as a field of another one."""
    return head(number, len(content)) + content


def head(number: int, size: int) -> bytes:
    """What stands before the content of a field of so many bytes."""
    return _number(number << 3 | BYTES) + _number(size)


def _number(number: int) -> bytes:
    """A number as protobuf writes it."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def between(file: BinaryIO, start: int, stop: int) -> bytes:
    """The bytes between two places of the file."""
    file.seek(start)
    return file.read(stop - start)
