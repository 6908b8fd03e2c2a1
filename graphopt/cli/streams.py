"""Models through pipes: `-` is stdin where a model is read, and stdout where one is written."""

from __future__ import annotations

import sys
from pathlib import Path

STREAM = Path("-")


def read_source(path: Path) -> Path | bytes:
    """The path, or what stdin holds."""
    return sys.stdin.buffer.read() if path == STREAM else path


def write_stream(data: bytes) -> None:
    """A model on stdout."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
