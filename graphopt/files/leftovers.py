"""Ending a save: what its hidden folder still holds is brought to rest, for a save that is done, failed or died.

A hidden folder may hold two notes. `now`, a link to `old` or `new`, is the state of a folder of files that is being
replaced (`folder.py`): names in the folder are links into the hidden one, and become the files that they lead to.
`orphans` lists files of the folder, each by name and identity, that are removed unless a model there names them: data
whose model was not written, or was replaced. Notes may have come with a folder that a stranger sent: they reach no file
outside of it, and a file that merely has a name is not meant.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from graphopt.files.references import is_named

NOW, OLD, NEW = "now", "old", "new"
ORPHANS = "orphans"
_UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # a file system that cannot sync a folder


class Orphan(msgspec.Struct, frozen=True):
    """A file that nobody may need, as it was when the note was written."""

    name: str
    inode: int
    bytes: int
    changed: int  # nanoseconds; of the content

    def is_there(self, folder: Path) -> bool:
        """Whether the folder still has this very file."""
        return orphan(folder / self.name, self.name) == self


def orphan(path: Path, name: str) -> Orphan | None:
    """The file as it is now, to be noted under `name`; None where there is no regular file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Orphan(name, found.st_ino, found.st_size, found.st_mtime_ns)


def note(orphans: Iterable[Orphan]) -> bytes:
    """The content of the file ORPHANS."""
    return msgspec.json.encode(tuple(orphans))


def settle(folder: Path, hidden: Path) -> None:
    """Bring a save to rest and remove its hidden folder; raises OSError, after which it can be called again."""
    if _settle_links(folder, hidden):
        sync_folder(folder)  # the names are there for good before what the links led to goes
    orphans = [one for one in _orphans(hidden) if Path(one.name).name == one.name and one.is_there(folder)]
    if orphans:
        sync_folder(folder)  # a model that takes the place of another is there for good before the other's data go
    for one in orphans:
        if not is_named(folder, one.name):
            os.unlink(folder / one.name)
    shutil.rmtree(hidden)


def _settle_links(folder: Path, hidden: Path) -> bool:
    """Every link into the hidden folder becomes the file that it leads to; one that leads nowhere goes.

    Returns whether there may have been any.
    """
    if not (hidden / NOW).is_symlink() or os.readlink(hidden / NOW) not in (OLD, NEW):
        return False
    state = hidden / os.readlink(hidden / NOW)
    if state.is_symlink():
        return False
    for name in sorted(os.listdir(folder)):
        if leads_into(folder / name, hidden):
            try:
                os.rename(state / name, folder / name)
            except FileNotFoundError:
                os.unlink(folder / name)
    return True


def leads_into(path: Path, hidden: Path) -> bool:
    """Whether `path` is the link to a file of the hidden folder's state that stands for it while files change."""
    return path.is_symlink() and os.readlink(path) == f"{hidden.name}/{NOW}/{path.name}"


def _orphans(hidden: Path) -> tuple[Orphan, ...]:
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):  # half a note was of a save that had not begun
        return msgspec.json.decode((hidden / ORPHANS).read_bytes(), type=tuple[Orphan, ...])
    return ()


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on disk; raises OSError."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSYNCED:
            raise
    finally:
        os.close(descriptor)
