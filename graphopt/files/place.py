"""Where an output goes: links are followed, devices and pipes are written through, and the rest is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graphopt.errors import SaveError
from graphopt.files.leftovers import sync_folder


@dataclass(frozen=True, slots=True)
class Place:
    """An output: as the caller named it, and where it lies."""

    given: Path
    path: Path  # with links followed: what is replaced
    stream: bool  # a character device or a pipe: it is opened and written, never replaced


def find_place(path: str | os.PathLike[str]) -> Place:
    """The place of an output file, new or old.

    Raises SaveError for a folder, a missing folder, a block device, a socket, a circle of links, and a name with NUL.
    """
    given = Path(path)
    if "\0" in os.fspath(given):
        raise SaveError(f"{os.fspath(given)!r} is no name of a file, since it holds a NUL character; choose another.")
    with told(given):
        real = Path(os.path.realpath(given))
        try:
            found = os.stat(given)
        except FileNotFoundError:
            if not real.parent.is_dir():
                raise SaveError(f"the folder '{_shown(given, real)}' does not exist; create it first.") from None
            return Place(given, real, stream=False)
    if stat.S_ISDIR(found.st_mode):
        raise SaveError(f"'{given}' is a folder; give the name of the file to write.")
    if stat.S_ISREG(found.st_mode):
        # What /dev/stdout leads to may have no name any more; such a file can only be written through.
        named = real.exists() and real.samefile(given)
        return Place(given, real if named else given, stream=not named)
    if stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode):
        return Place(given, given, stream=True)
    kind = "a block device" if stat.S_ISBLK(found.st_mode) else "a socket"
    raise SaveError(f"'{given}' is {kind}, which is never overwritten; choose a file.")


def _shown(given: Path, real: Path) -> Path:
    """The folder that is missing, as the caller named it where no link stands between."""
    return real.parent if given.is_symlink() else given.parent


def replaced_mode(path: Path) -> int | None:
    """The permissions of the file that is to be replaced; None where there is none."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def told(given: Path) -> Iterator[None]:
    """What the system refuses inside, as a SaveError that names the output."""
    try:
        yield
    except OSError as error:
        raise SaveError(_reason(given, error)) from error


def confirm(given: Path, folder: Path) -> None:
    """Return when the names in `folder`, that of the output among them, are on disk; raises SaveError."""
    try:
        sync_folder(folder)
    except OSError as error:
        raise SaveError(
            f"'{given}' was written, but the system cannot promise that it is on disk: {error.strerror}; look after "
            "the disk and write it again."
        ) from error


def _reason(given: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"'{given}' was not written: the disk is full; free some space or choose another folder."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"'{given}' was not written: no permission to write there; choose another folder."
    return f"'{given}' was not written: {error.strerror or error}; choose another place."
