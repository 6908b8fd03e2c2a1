"""A hidden folder beside what is written: files are made there, whole and on disk, and then moved by one rename.

The folder is locked as long as its process lives. The next save into the same place sweeps those that are not.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from graphopt.files.leftovers import settle

if sys.platform != "win32":
    import fcntl

_NAME = re.compile(r"\.graphopt-\d+-[0-9a-f]{8}")
_ATTEMPTS = 16  # at making the folder: a sweep may take one away before it is locked


class Writer:
    """A new file that is being written. `write` takes bytes; `close` returns when they are on disk."""

    def __init__(self, path: Path, mode: int | None = None, *, is_summed: bool = True) -> None:
        """`mode`: permissions of the file that this one will replace; None for those of a new file.

        `is_summed`: whether the checksum will be asked for.
        """
        self.path = path
        self._is_summed = is_summed
        self.size = 0  # bytes
        self._digest = hashlib.sha256()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            if mode is not None:
                os.chmod(path, mode)
        except OSError:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def write(self, data: bytes | memoryview) -> int:
        """Append all of it; returns its bytes."""
        size = memoryview(data).nbytes
        write_all(self._descriptor, data)
        if self._is_summed:
            self._digest.update(data)
        self.size += size
        return size

    @property
    def checksum(self) -> str:
        """SHA-256 of what was written, in hex."""
        assert self._is_summed, "asked for"
        return self._digest.hexdigest()


class Staging:
    """The hidden folder `path` inside of `folder`."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder = folder
        self.path = path

    def write(self, name: str, data: bytes | memoryview, mode: int | None = None) -> Path:
        """A file in the hidden folder, on disk."""
        return self.write_pieces(name, (data,), mode)

    def write_pieces(self, name: str, pieces: Iterable[bytes | memoryview], mode: int | None = None) -> Path:
        """The same of what follows one another in the file."""
        path = self.path / name
        with Writer(path, mode, is_summed=False) as file:
            for piece in pieces:
                file.write(piece)
        return path


@contextlib.contextmanager
def staging(folder: Path) -> Iterator[Staging]:
    """A hidden folder in `folder`, without what dead processes left there; gone at the end, whatever happens.

    Raises OSError.
    """
    sweep(folder)
    path, lock = _made(folder)
    try:
        yield Staging(folder, path)
    finally:
        with contextlib.suppress(OSError):  # what cannot be removed now is swept by the next save
            settle(folder, path)
        if lock is not None:
            os.close(lock)


def sweep(folder: Path) -> None:
    """Finish what processes began in `folder` and died over; those of living processes are left alone."""
    with contextlib.suppress(OSError):  # a folder that is missing or cannot be listed; the save itself says so
        for name in sorted(os.listdir(folder)):
            path = folder / name
            if _NAME.fullmatch(name) and path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    lock = locked(path)
                    if lock is not None:
                        try:
                            settle(folder, path)
                        finally:
                            os.close(lock)


def _made(folder: Path) -> tuple[Path, int | None]:
    for _ in range(_ATTEMPTS):
        path = folder / f".graphopt-{os.getpid()}-{secrets.token_hex(4)}"
        os.mkdir(path)
        if sys.platform == "win32":
            return path, None
        try:
            lock = locked(path)
        except FileNotFoundError:
            continue
        except OSError:  # a file system without locks; nothing is swept there
            return path, None
        if lock is not None and path.exists():
            return path, lock
    raise OSError(errno.EBUSY, "another process takes away what is written here")


def locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a folder; None where a living process holds it.

    The system drops the lock with the process, however it ends. Raises OSError where there are no locks.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """All bytes to an open file; raises OSError."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]
