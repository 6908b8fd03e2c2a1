"""Records as JSON: one object, keys in the order of the record, the same bytes for the same record."""

from __future__ import annotations

from pathlib import Path

import msgspec

from graphopt.errors import OptionError
from graphopt.flows.records.memory import MemoryRecord

ENCODER = msgspec.json.Encoder()


def encode(record: msgspec.Struct) -> bytes:
    """The record as an indented JSON object with a newline at its end."""
    return msgspec.json.format(ENCODER.encode(record), indent=2) + b"\n"


def read_memory(file: Path) -> MemoryRecord:
    """The record that `graphopt memory --json` wrote; raises OptionError for a file that holds none of this version."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=MemoryRecord)
    except OSError as error:
        raise OptionError(f"'{file}' cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OptionError(
            f"'{file}' is no record of memory of this version ({error}): write it with graphopt memory --json."
        ) from error
