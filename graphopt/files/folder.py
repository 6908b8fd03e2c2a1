"""Files of a folder that belong together: a reader finds all of the old ones or all of the new ones, at any moment.

A folder that does not exist is made beside its place and renamed. In one that exists, other files stay as they are, and
the names keep their meaning while the content changes under all of them at once:

    lib.so                  lib.so -> .graphopt-1-0a/now/lib.so       lib.so -> .../now/lib.so        lib.so (new)
    main.weights      -->   main.weights -> ...                 -->   main.weights -> ...       -->   main.weights (new)
                            .graphopt-1-0a/now -> old                 .graphopt-1-0a/now -> new

One rename turns `now`. A process that dies on the way leaves links that lead to whole files, and the next save puts the
files in the place of the links (`leftovers.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from graphopt.errors import SaveError
from graphopt.files.leftovers import NEW, NOW, OLD, sync_folder
from graphopt.files.place import confirm, told
from graphopt.files.staging import Staging, locked, staging, sweep


def write_folder(given: Path, files: Mapping[str, bytes | memoryview], replaced: Collection[str]) -> None:
    """Write `files` into a folder, new or old, in the place of the files named `replaced`, which must be there.

    Raises SaveError, leaving what was there: also where another file has the name of a new one, and where a folder that
    exists is on a file system without links.
    """
    with told(given):
        folder = Path(os.path.realpath(given))
        sweep(folder.parent)
        if not folder.exists():
            _make(given, folder, files)
            return
        with _alone(folder, given):
            for name in sorted(set(files) - set(replaced)):
                if os.path.lexists(folder / name):
                    raise SaveError(f"'{given / name}' would be overwritten; move it away or choose another folder.")
            _replace(given, folder, files, replaced)


@contextlib.contextmanager
def _alone(folder: Path, given: Path) -> Iterator[None]:
    """Two processes must not change the files of one folder at once."""
    try:
        lock = locked(folder)
    except OSError:  # a file system without locks
        yield
        return
    if lock is None:
        raise SaveError(f"another process writes to '{given}' just now; try again when it has ended.")
    try:
        yield
    finally:
        os.close(lock)


def _make(given: Path, folder: Path, files: Mapping[str, bytes | memoryview]) -> None:
    with staging(folder.parent) as stage:
        _write(stage, files)
        os.rename(stage.path / NEW, folder)
        confirm(given, folder.parent)


def _write(stage: Staging, files: Mapping[str, bytes | memoryview]) -> None:
    os.mkdir(stage.path / NEW)
    for name, data in files.items():
        stage.write(f"{NEW}/{name}", data)
    sync_folder(stage.path / NEW)


def _replace(given: Path, folder: Path, files: Mapping[str, bytes | memoryview], replaced: Collection[str]) -> None:
    with staging(folder) as stage:
        _write(stage, files)
        os.mkdir(stage.path / OLD)
        for name in sorted(replaced):
            os.link(folder / name, stage.path / OLD / name)
        os.symlink(OLD, stage.path / NOW)
        sync_folder(stage.path / OLD)
        sync_folder(stage.path)
        for name in sorted({*files, *replaced}):
            leading = f"{stage.path.name}/{NOW}/{name}"
            if name in replaced:
                os.symlink(leading, stage.path / "link")
                os.rename(stage.path / "link", folder / name)
            else:
                os.symlink(leading, folder / name)
        sync_folder(folder)
        os.symlink(NEW, stage.path / "next")
        os.rename(stage.path / "next", stage.path / NOW)
        confirm(given, stage.path)
