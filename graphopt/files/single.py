"""One file: written beside its place, then moved there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from graphopt.files.place import Place, confirm, find_place, replaced_mode, told
from graphopt.files.staging import staging, write_all


def write_file(path: str | os.PathLike[str], data: bytes | memoryview) -> None:
    """Write a file, or leave what was there; raises SaveError.

    Links are followed; devices and pipes are written through. Other hard links of a replaced file keep what they had.
    """
    with prepared(path, data):
        pass


@contextlib.contextmanager
def prepared(path: str | os.PathLike[str], data: bytes | memoryview) -> Iterator[None]:
    """Write `data` beside its place, and move it there when the body has ended well; raises SaveError."""
    place = find_place(path)
    if place.stream:
        yield
        write_through(place, (data,))
        return
    with contextlib.ExitStack() as stack:
        with told(place.given):
            stage = stack.enter_context(staging(place.path.parent))
            draft = stage.write("file", data, replaced_mode(place.path))
        yield
        publish(draft, place)


def publish(draft: Path, place: Place) -> None:
    """Move a finished file to its place: the moment at which the new one counts. Raises SaveError."""
    with told(place.given):
        os.replace(draft, place.path)
    confirm(place.given, place.path.parent)


def write_through(place: Place, pieces: Iterable[bytes | memoryview]) -> None:
    """Write to a device or pipe as it stands; raises SaveError."""
    with told(place.given):
        descriptor = os.open(place.path, os.O_WRONLY | os.O_TRUNC)
        try:
            for piece in pieces:
                write_all(descriptor, piece)
        finally:
            os.close(descriptor)
