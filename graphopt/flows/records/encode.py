"""Records as JSON: one object, keys in the order of the record, the same bytes for the same record."""

from __future__ import annotations

import msgspec

ENCODER = msgspec.json.Encoder()


def encode(record: msgspec.Struct) -> bytes:
    """The record as an indented JSON object with a newline at its end."""
    return msgspec.json.format(ENCODER.encode(record), indent=2) + b"\n"
